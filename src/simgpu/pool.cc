// Memory pools and stream-ordered allocation.
#include "simgpu/pool.h"

#include <algorithm>

namespace kvram::simgpu {
namespace {

HandleTable<Pool>& pools() {
  static auto* const table = new HandleTable<Pool>;
  return *table;
}

CUmemoryPool handle_of(const std::shared_ptr<Pool>& pool) { return reinterpret_cast<CUmemoryPool>(pool.get()); }

bool charge_pool(Pool& pool, uint64_t bytes) {
  Machine& machine = Driver::get().machine();
  if (pool.object) return machine.charge_object(pool.object->index, bytes);
  return machine.charge(pool.device->gpu, bytes);
}
void uncharge_pool(Pool& pool, uint64_t bytes) {
  Machine& machine = Driver::get().machine();
  if (pool.object) return machine.uncharge_object(pool.object->index, bytes);
  machine.uncharge(pool.device->gpu, bytes);
}

std::shared_ptr<Pool> make_pool(Device& device, const CUmemPoolProps& props) {
  auto pool = std::make_shared<Pool>();
  pool->device = &device;
  pool->props = props;
  pool->max_size = props.maxSize;
  pools().add(pool);
  return pool;
}

CUmemPoolProps device_props(int ordinal) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = ordinal;
  return props;
}

// A 64-bit attribute's place, null for the 32-bit ones and unknown names.
uint64_t* wide_attribute(Pool& pool, CUmemPool_attribute which) {
  switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool.threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return &pool.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return &pool.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool.used_high;
    default:
      return nullptr;
  }
}
int* narrow_attribute(Pool& pool, CUmemPool_attribute which) {
  switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool.reuse_event;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool.reuse_opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool.reuse_internal;
    default:
      return nullptr;
  }
}

CUresult get_attribute(Pool& pool, CUmemPool_attribute which, void* value) {
  std::lock_guard lock(pool.mutex);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (uint64_t* wide = wide_attribute(pool, which)) {
    *static_cast<cuuint64_t*>(value) = *wide;
  } else if (int* narrow = narrow_attribute(pool, which)) {
    *static_cast<int*>(value) = *narrow;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(Pool& pool, CUmemPool_attribute which, const void* value) {
  std::lock_guard lock(pool.mutex);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* narrow = narrow_attribute(pool, which)) {
    *narrow = *static_cast<const int*>(value);
    return CUDA_SUCCESS;
  }
  uint64_t wanted = *static_cast<const cuuint64_t*>(value);
  if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool.threshold = wanted;
    return CUDA_SUCCESS;
  }
  // The high-water marks can be set to 0 and nothing else.
  if (wanted != 0) return CUDA_ERROR_INVALID_VALUE;
  if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
    pool.reserved_high = pool.reserved;
  } else if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    pool.used_high = pool.used;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Pool::take(uint64_t bytes) {
  std::lock_guard lock(mutex);
  uint64_t chunk = device->info->costs.pool_chunk_bytes;
  if (max_size != 0 && used + bytes > max_size) return CUDA_ERROR_OUT_OF_MEMORY;
  if (used + bytes > reserved) {
    uint64_t growth = lease::round_up(used + bytes - reserved, chunk);
    if (!charge_pool(*this, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
    reserved += growth;
    reserved_high = std::max(reserved_high, reserved);
  }
  used += bytes;
  used_high = std::max(used_high, used);
  return CUDA_SUCCESS;
}

void Pool::give(uint64_t bytes) {
  std::lock_guard lock(mutex);
  used -= std::min(used, bytes);
  if (!destroyed || used != 0) return;
  uncharge_pool(*this, reserved);
  reserved = 0;
}

void Pool::trim(uint64_t keep) {
  std::lock_guard lock(mutex);
  uint64_t chunk = device->info->costs.pool_chunk_bytes;
  uint64_t wanted = lease::round_up(std::max(used, keep), chunk);
  if (imported || wanted >= reserved) return;
  uncharge_pool(*this, reserved - wanted);
  reserved = wanted;
}

void trim_pools_at_sync(Device& device) {
  for (const auto& pool : pools().all()) {
    if (pool->device == &device && pool != device.graph_pool) pool->trim(pool->threshold);
  }
}

std::shared_ptr<Pool> find_pool(CUmemoryPool handle) { return pools().find(handle); }

void add_pool(const std::shared_ptr<Pool>& pool) { pools().add(pool); }

void make_default_pools(Device& device) {
  device.default_pool = make_pool(device, device_props(device.ordinal));
  device.default_pool->is_default = true;
  device.current_pool = device.default_pool;
  device.graph_pool = make_pool(device, device_props(device.ordinal));
  pools().remove(device.graph_pool.get());  // no program has its handle
}

CUresult allocate_from_pool(Context& context, const std::shared_ptr<Pool>& pool, size_t bytes, CUstream stream,
                            bool per_thread, CUdeviceptr* out) {
  if (out == nullptr || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return *out = 0, CUDA_SUCCESS;
  if (auto captured = capture_alloc(stream, per_thread, bytes, out)) return *captured;
  if (CUresult r = submit_work(stream, per_thread, Work{}); r != CUDA_SUCCESS) return r;
  uint64_t cost = lease::linear_cost(bytes);
  if (cost >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult taken = pool->take(cost);
  if (taken != CUDA_SUCCESS) {
    // Frees that are still on their way may make room.
    drain_context(&context);
    taken = pool->take(cost);
  }
  if (taken != CUDA_SUCCESS) return taken;
  Block block;
  if (int r = make_backing(*pool->device, 0, cost, lease::kLinearAlign, &block.backing)) {
    pool->give(cost);
    return static_cast<CUresult>(r);
  }
  block.base = reinterpret_cast<CUdeviceptr>(block.backing->address);
  block.size = bytes;
  block.kind = BlockKind::kAsync;
  block.device = pool->device;
  block.context = nullptr;  // a pool's memory belongs to the device
  block.pool = pool;
  block.pool_cost = cost;
  *out = block.base;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread) {
  if (pointer == 0) return CUDA_SUCCESS;
  if (auto captured = capture_free(stream, per_thread, pointer)) return *captured;
  if (auto graph = free_graph_memory(pointer)) return *graph;
  bool ours = update_block(pointer, [](Block& b) {
    bool fits = b.kind == BlockKind::kAsync || b.kind == BlockKind::kLinear || b.kind == BlockKind::kManaged;
    if (!fits || b.freeing) return false;
    return b.freeing = true;
  });
  if (!ours) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.effect = [pointer] {
    Block block;
    update_block(pointer, [](Block& b) { return b.freeing = false, true; });
    if (remove_block(pointer, {BlockKind::kAsync, BlockKind::kLinear, BlockKind::kManaged}, &block)) {
      dispose(std::move(block));
    }
    return CUDA_SUCCESS;
  };
  CUresult r = submit_work(stream, per_thread, std::move(work));
  if (r != CUDA_SUCCESS) update_block(pointer, [](Block& b) { return b.freeing = false, true; });
  return r;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

namespace {

CUresult alloc_async(CUdeviceptr* out, size_t bytes, CUstream stream, bool per_thread, const char* call) {
  return with_context(
      [&](Context& c) {
        std::shared_ptr<Pool> pool;
        {
          std::lock_guard lock(c.device->mutex);
          pool = c.device->current_pool;
        }
        return allocate_from_pool(c, pool, bytes, stream, per_thread, out);
      },
      call);
}

CUresult alloc_from(CUdeviceptr* out, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread,
                    const char* call) {
  return with_context(
      [&](Context& c) {
        auto pool = find_pool(handle);
        return pool ? allocate_from_pool(c, pool, bytes, stream, per_thread, out) : CUDA_ERROR_INVALID_VALUE;
      },
      call);
}

template <typename F>
CUresult with_pool(CUmemoryPool handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        auto pool = find_pool(handle);
        return pool ? body(pool) : CUDA_ERROR_INVALID_VALUE;
      },
      call);
}

template <typename F>
CUresult with_device(CUdevice ordinal, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        Device* device = Driver::get().device(ordinal);
        return device != nullptr ? body(*device) : CUDA_ERROR_INVALID_DEVICE;
      },
      call);
}

}  // namespace

KV_CUDA_EXPORT cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return alloc_async(out, bytes, stream, false, __func__);
}
KV_CUDA_EXPORT cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return alloc_async(out, bytes, stream, true, __func__);
}
KV_CUDA_EXPORT cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return alloc_from(out, bytes, pool, stream, false, __func__);
}
KV_CUDA_EXPORT cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return alloc_from(out, bytes, pool, stream, true, __func__);
}
KV_CUDA_EXPORT cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return with_context([&](Context&) { return free_async(pointer, stream, false); });
}
KV_CUDA_EXPORT cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return with_context([&](Context&) { return free_async(pointer, stream, true); });
}

KV_CUDA_EXPORT cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  return with_driver([&] {
    if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    Device* device = Driver::get().device(props->location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if ((props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *out = handle_of(make_pool(*device, *props));
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemPoolDestroy(CUmemoryPool handle) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) {
    if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    pools().remove(handle);
    {
      std::lock_guard lock(pool->device->mutex);
      if (pool->device->current_pool == pool) pool->device->current_pool = pool->device->default_pool;
    }
    std::lock_guard lock(pool->mutex);
    pool->destroyed = true;
    if (pool->used == 0 && !pool->imported) {
      uncharge_pool(*pool, pool->reserved);
      pool->reserved = 0;
    }
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) { return pool->trim(keep), CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) { return get_attribute(*pool, which, value); });
}
KV_CUDA_EXPORT cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) { return set_attribute(*pool, which, value); });
}
KV_CUDA_EXPORT cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>&) {
    return map == nullptr && count != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == pool->device->ordinal;
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = handle_of(d.default_pool);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceGetMemPool(CUmemoryPool* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(d.mutex);
    *out = handle_of(d.current_pool);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return with_device(ordinal, [&](Device& d) {
    auto pool = find_pool(handle);
    if (!pool || pool->device != &d) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(d.mutex);
    d.current_pool = pool;
    return CUDA_SUCCESS;
  });
}
