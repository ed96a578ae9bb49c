// Memory of graphs: nodes that allocate, and the pool of the device behind them.
#include "simgpu/graph.h"
#include "simgpu/memory.h"
#include "simgpu/pool.h"

#include "lease/cost.h"

namespace kvram::simgpu {
namespace {

struct Known {
  std::mutex mutex;
  std::map<CUdeviceptr, std::weak_ptr<GraphMemory>> all;
  std::map<CUdeviceptr, GraphMemoryPtr> live;  // outlives its graph until it is freed
};
Known& known() {
  static auto* const one = new Known;
  return *one;
}

CUresult read_attribute(Pool& pool, CUgraphMem_attribute attribute, uint64_t* out) {
  std::lock_guard lock(pool.mutex);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = pool.used;
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = pool.used_high;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = pool.reserved;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = pool.reserved_high;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Only the high-water marks can be set, and only to zero, which means to the present value.
CUresult reset_attribute(Pool& pool, CUgraphMem_attribute attribute, uint64_t value) {
  if (value != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool.mutex);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      pool.used_high = pool.used;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      pool.reserved_high = pool.reserved;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

template <typename F>
CUresult with_graph_pool(CUdevice ordinal, F&& body, const char* call) {
  return with_driver(
      [&] {
        Device* device = Driver::get().device(ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        return device->graph_pool ? body(*device->graph_pool) : CUDA_ERROR_NOT_SUPPORTED;
      },
      call);
}

}  // namespace

GraphMemory::~GraphMemory() {
  {
    std::lock_guard lock(known().mutex);
    auto it = known().all.find(at);
    if (it != known().all.end() && it->second.expired()) known().all.erase(it);
  }
  if (!gone) free_uncharged(at);
}

void forget_context_graph_memory(const Context& context) {
  std::vector<GraphMemoryPtr> mine;
  {
    std::lock_guard lock(known().mutex);
    for (auto& [at, weak] : known().all) {
      GraphMemoryPtr memory = weak.lock();
      if (memory && memory->context == &context) mine.push_back(std::move(memory));
    }
  }
  for (const GraphMemoryPtr& memory : mine) {
    give_graph_memory(memory);
    free_uncharged(memory->at);
    std::lock_guard lock(memory->mutex);
    memory->gone = true;
  }
}

CUresult make_graph_memory(Context& context, Device& device, uint64_t bytes, GraphMemoryPtr* out) {
  auto memory = std::make_shared<GraphMemory>();
  memory->device = &device;
  memory->context = &context;
  memory->bytes = lease::linear_cost(bytes);
  if (CUresult r = allocate_uncharged(context, bytes, BlockKind::kGraph, &memory->at); r != CUDA_SUCCESS) return r;
  std::lock_guard lock(known().mutex);
  known().all[memory->at] = memory;
  *out = std::move(memory);
  return CUDA_SUCCESS;
}

GraphMemoryPtr find_graph_memory(CUdeviceptr at) {
  std::lock_guard lock(known().mutex);
  auto it = known().all.find(at);
  return it == known().all.end() ? nullptr : it->second.lock();
}

CUresult take_graph_memory(const GraphMemoryPtr& memory) {
  std::lock_guard lock(memory->mutex);
  if (memory->live || memory->gone) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = memory->device->graph_pool->take(memory->bytes); r != CUDA_SUCCESS) return r;
  memory->live = true;
  std::lock_guard inner(known().mutex);
  known().live[memory->at] = memory;
  return CUDA_SUCCESS;
}

bool give_graph_memory(const GraphMemoryPtr& memory) {
  std::lock_guard lock(memory->mutex);
  if (!memory->live) return false;
  memory->live = false;
  memory->device->graph_pool->give(memory->bytes);
  std::lock_guard inner(known().mutex);
  known().live.erase(memory->at);
  return true;
}

std::optional<CUresult> free_graph_memory(CUdeviceptr at) {
  GraphMemoryPtr memory = find_graph_memory(at);
  if (!memory) return std::nullopt;
  return give_graph_memory(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  return with_graph_pool(
      device,
      [&](Pool& pool) {
        if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return read_attribute(pool, attribute, static_cast<cuuint64_t*>(value));
      },
      __func__);
}
KV_CUDA_EXPORT cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  return with_graph_pool(
      device,
      [&](Pool& pool) {
        if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return reset_attribute(pool, attribute, *static_cast<cuuint64_t*>(value));
      },
      __func__);
}
KV_CUDA_EXPORT cuDeviceGraphMemTrim(CUdevice device) {
  return with_graph_pool(
      device,
      [](Pool& pool) {
        pool.trim(0);
        return CUDA_SUCCESS;
      },
      __func__);
}
