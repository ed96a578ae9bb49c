// The table of blocks, and linear memory: cuMemAlloc, pitched, managed, host.
#include "simgpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "simgpu/pool.h"
#include "simgpu/vmm.h"

namespace kvram::simgpu {
namespace {

struct Table {
  std::mutex mutex;
  std::map<CUdeviceptr, Block> blocks;
};
Table& table() {
  static auto* const t = new Table;
  return *t;
}

constexpr uint64_t kHugePage = 2ULL << 20;

}  // namespace

uint64_t next_buffer_id() {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(1);
}

void add_block(Block block) {
  if (block.id == 0) block.id = next_buffer_id();
  std::lock_guard lock(table().mutex);
  CUdeviceptr base = block.base;
  table().blocks.insert_or_assign(base, std::move(block));
}

bool remove_block(CUdeviceptr base, std::initializer_list<BlockKind> kinds, Block* out) {
  std::lock_guard lock(table().mutex);
  auto it = table().blocks.find(base);
  if (it == table().blocks.end() || it->second.freeing) return false;
  if (std::find(kinds.begin(), kinds.end(), it->second.kind) == kinds.end()) return false;
  *out = std::move(it->second);
  table().blocks.erase(it);
  return true;
}

bool update_block(CUdeviceptr base, const std::function<bool(Block&)>& change) {
  std::lock_guard lock(table().mutex);
  auto it = table().blocks.find(base);
  return it != table().blocks.end() && change(it->second);
}

std::vector<Block> remove_blocks_of(Context* context) {
  std::vector<Block> out;
  std::lock_guard lock(table().mutex);
  for (auto it = table().blocks.begin(); it != table().blocks.end();) {
    if (it->second.context != context) {
      ++it;
      continue;
    }
    out.push_back(std::move(it->second));
    it = table().blocks.erase(it);
  }
  return out;
}

bool find_block(CUdeviceptr address, Block* out) {
  std::lock_guard lock(table().mutex);
  auto it = table().blocks.upper_bound(address);
  if (it == table().blocks.begin()) return false;
  --it;
  if (address - it->first >= std::max<size_t>(it->second.size, 1)) return false;
  *out = it->second;
  return true;
}

bool device_range_valid(CUdeviceptr address, size_t bytes) {
  if (bytes == 0) return true;
  if (address + bytes < address) return false;
  {
    std::lock_guard lock(table().mutex);
    auto it = table().blocks.upper_bound(address);
    if (it != table().blocks.begin()) {
      --it;
      if (address - it->first < it->second.size) return bytes <= it->second.size - (address - it->first);
    }
  }
  return vmm_range_accessible(address, bytes);
}

CUresult allocate_linear(Context& context, size_t bytes, BlockKind kind, unsigned flags, CUdeviceptr* out) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t cost = lease::linear_cost(bytes);
  if (cost >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  uint64_t align = cost >= kHugePage ? kHugePage : lease::kLinearAlign;
  if (int r = make_backing(*context.device, cost, cost, align, &block.backing)) return static_cast<CUresult>(r);
  block.base = reinterpret_cast<CUdeviceptr>(block.backing->address);
  block.size = bytes;
  block.kind = kind;
  block.device = context.device;
  block.context = &context;
  block.flags = flags;
  *out = block.base;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

CUresult allocate_uncharged(Context& context, size_t bytes, BlockKind kind, CUdeviceptr* out) {
  uint64_t length = lease::linear_cost(std::max<size_t>(bytes, 1));
  if (length >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  if (int r = make_backing(*context.device, 0, length, lease::kLinearAlign, &block.backing)) {
    return static_cast<CUresult>(r);
  }
  block.base = reinterpret_cast<CUdeviceptr>(block.backing->address);
  block.size = bytes;
  block.kind = kind;
  block.device = context.device;
  block.context = &context;
  if (kind == BlockKind::kModule) std::memset(block.backing->address, 0, length);
  *out = block.base;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

void free_uncharged(CUdeviceptr base) {
  Block block;
  remove_block(base, {BlockKind::kGraph, BlockKind::kModule, BlockKind::kAsync, BlockKind::kArray}, &block);
}

void dispose(Block block) {
  std::shared_ptr<Pool> pool = std::move(block.pool);
  uint64_t cost = block.pool_cost;
  if (block.kind == BlockKind::kHost) munmap(reinterpret_cast<void*>(block.base), (block.size + 4095) / 4096 * 4096);
  block.backing.reset();
  if (pool && cost != 0) pool->give(cost);
}

namespace {

CUresult free_device(Context& context, CUdeviceptr pointer) {
  if (pointer == 0) return CUDA_SUCCESS;
  if (auto graph = free_graph_memory(pointer)) return *graph;
  Block seen;
  if (!find_block(pointer, &seen) || seen.base != pointer) return CUDA_ERROR_INVALID_VALUE;
  drain_context(&context);
  Block block;
  if (!remove_block(pointer, {BlockKind::kLinear, BlockKind::kManaged, BlockKind::kAsync}, &block)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  dispose(std::move(block));
  return CUDA_SUCCESS;
}

CUresult allocate_host(Context& context, size_t bytes, unsigned flags, void** out) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = mmap(nullptr, (bytes + 4095) / 4096 * 4096, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  block.base = reinterpret_cast<CUdeviceptr>(at);
  block.size = bytes;
  block.kind = BlockKind::kHost;
  block.device = context.device;
  block.context = &context;
  block.flags = flags;
  add_block(std::move(block));
  *out = at;
  return CUDA_SUCCESS;
}

CUresult register_host(Context& context, void* pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |
                              CU_MEMHOSTREGISTER_READ_ONLY;
  if (pointer == nullptr || bytes == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto base = reinterpret_cast<CUdeviceptr>(pointer);
  Block block;
  if (find_block(base, &block) || find_block(base + bytes - 1, &block)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  block = Block{};
  block.base = base;
  block.size = bytes;
  block.kind = BlockKind::kRegistered;
  block.device = context.device;
  block.context = &context;
  block.flags = flags;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

CUresult allocate_pitch(Context& context, size_t width, size_t height, unsigned element, CUdeviceptr* out,
                        size_t* pitch) {
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = lease::pitched_cost(width, height);
  if (bytes >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = allocate_linear(context, bytes, BlockKind::kLinear, 0, out);
  if (r == CUDA_SUCCESS) *pitch = lease::pitch_of(width);
  return r;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return with_context([&](Context& c) { return allocate_linear(c, bytes, BlockKind::kLinear, 0, out); });
}

KV_CUDA_EXPORT cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  return with_context([&](Context& c) { return allocate_pitch(c, width, height, element, out, pitch); });
}

KV_CUDA_EXPORT cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  return with_context([&](Context& c) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate_linear(c, bytes, BlockKind::kManaged, flags, out);
  });
}

KV_CUDA_EXPORT cuMemFree_v2(CUdeviceptr pointer) {
  return with_context([&](Context& c) { return free_device(c, pointer); });
}

KV_CUDA_EXPORT cuMemGetInfo_v2(size_t* free, size_t* total) {
  return with_context([&](Context& c) {
    Machine& machine = Driver::get().machine();
    if (free != nullptr) *free = machine.free_bytes(c.device->gpu);
    if (total != nullptr) *total = machine.capacity(c.device->gpu);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  return with_context([&](Context&) {
    Block block;
    if (find_block(pointer, &block)) {
      if (base != nullptr) *base = block.base;
      if (size != nullptr) *size = block.size;
      return CUDA_SUCCESS;
    }
    CUdeviceptr from = 0;
    size_t length = 0;
    if (!vmm_mapping_of(pointer, &from, &length, nullptr)) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = from;
    if (size != nullptr) *size = length;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemAllocHost_v2(void** out, size_t bytes) {
  return with_context([&](Context& c) { return allocate_host(c, bytes, 0, out); });
}

KV_CUDA_EXPORT cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return with_context([&](Context& c) {
    constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    return (flags & ~kKnown) != 0 ? CUDA_ERROR_INVALID_VALUE : allocate_host(c, bytes, flags, out);
  });
}

KV_CUDA_EXPORT cuMemFreeHost(void* pointer) {
  return with_context([&](Context& c) {
    if (pointer == nullptr) return CUDA_SUCCESS;
    drain_context(&c);
    Block block;
    if (!remove_block(reinterpret_cast<CUdeviceptr>(pointer), {BlockKind::kHost}, &block)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    dispose(std::move(block));
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return with_context([&](Context& c) { return register_host(c, pointer, bytes, flags); });
}
KV_CUDA_EXPORT cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return with_context([&](Context& c) { return register_host(c, pointer, bytes, flags); });
}

KV_CUDA_EXPORT cuMemHostUnregister(void* pointer) {
  return with_context([&](Context&) {
    Block block;
    bool found = remove_block(reinterpret_cast<CUdeviceptr>(pointer), {BlockKind::kRegistered}, &block);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

KV_CUDA_EXPORT cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  return with_context([&](Context&) {
    Block block;
    auto address = reinterpret_cast<CUdeviceptr>(pointer);
    if (out == nullptr || flags != 0 || !find_block(address, &block)) return CUDA_ERROR_INVALID_VALUE;
    if (block.kind != BlockKind::kHost && block.kind != BlockKind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
    *out = address;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return with_context([&](Context&) {
    Block block;
    if (flags == nullptr || !find_block(reinterpret_cast<CUdeviceptr>(pointer), &block))
      return CUDA_ERROR_INVALID_VALUE;
    if (block.kind != BlockKind::kHost) return CUDA_ERROR_INVALID_VALUE;
    *flags = block.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}
