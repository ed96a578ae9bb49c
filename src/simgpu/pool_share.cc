// Memory pools shared between processes: the pool by a descriptor, its allocations by 64 bytes of data. The bytes of a
// shared pool are the shared object's: they stay taken while any process holds the pool.
#include <cstring>

#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

// What a CUmemPoolPtrExportData holds; checked against the imported pool before it is used.
struct Ticket {
  uint64_t magic;
  uint64_t generation;
  uint64_t arena;
  uint64_t offset;
  uint64_t size;
  uint32_t object;
};
constexpr uint64_t kTicketMagic = 0x6b7672616d706f6f;
static_assert(sizeof(Ticket) <= sizeof(CUmemPoolPtrExportData));

bool share(Pool& pool) {
  std::lock_guard lock(pool.mutex);
  if (pool.object) return true;
  Arena* arena = Arena::get();
  if (arena == nullptr || !arena->publish()) return false;
  Machine& machine = Driver::get().machine();
  uint32_t index = 0;
  // The data may lie anywhere in the arena.
  Machine::NewObject wanted{kObjectPool, pool.device->gpu, pool.reserved, arena->id(), 0, arena->size(), {}};
  if (!machine.create_object(wanted, &index)) return false;
  pool.object = shared_ref(index, machine.object(index).generation);
  return true;
}

CUresult import_pool(CUmemoryPool* out, int fd) {
  auto shared = import_shared(fd);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  const Object& object = Driver::get().machine().object(shared->index);
  if (object.kind != kObjectPool) return CUDA_ERROR_INVALID_VALUE;
  for (int d = 0; d < Driver::get().device_count(); ++d) {
    Device* device = Driver::get().device(d);
    if (device->gpu != object.gpu) continue;
    auto pool = std::make_shared<Pool>();
    pool->device = device;
    pool->imported = true;
    pool->object = std::move(shared);
    add_pool(pool);
    *out = reinterpret_cast<CUmemoryPool>(pool.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult import_pointer(CUdeviceptr* out, const std::shared_ptr<Pool>& pool, const CUmemPoolPtrExportData& data) {
  Ticket ticket;
  std::memcpy(&ticket, &data, sizeof ticket);
  bool ours = ticket.magic == kTicketMagic && pool->imported && pool->object->index == ticket.object &&
              pool->object->generation == ticket.generation;
  if (!ours) return CUDA_ERROR_INVALID_VALUE;
  const Object& object = Driver::get().machine().object(ticket.object);
  if (object.arena != ticket.arena || ticket.offset >= object.length || ticket.size > object.length - ticket.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Block block;
  block.backing = map_foreign(pool->device, ticket.arena, ticket.offset, ticket.size, pool->object);
  if (!block.backing) return CUDA_ERROR_MAP_FAILED;
  block.base = reinterpret_cast<CUdeviceptr>(block.backing->address);
  block.size = ticket.size;
  block.kind = BlockKind::kAsync;
  block.device = pool->device;
  block.pool = pool;
  *out = block.base;
  add_block(std::move(block));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                                unsigned long long flags) {
  return with_driver([&] {
    auto pool = find_pool(handle);
    if (!pool || out == nullptr || flags != 0 || pool->is_default || pool->imported) return CUDA_ERROR_INVALID_VALUE;
    if ((pool->props.handleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!share(*pool)) return CUDA_ERROR_OPERATING_SYSTEM;
    int fd = Driver::get().machine().export_object(pool->object->index);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(out) = fd;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  return with_driver([&] {
    if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      return CUDA_ERROR_INVALID_VALUE;
    return import_pool(out, static_cast<int>(reinterpret_cast<intptr_t>(handle)));
  });
}

KV_CUDA_EXPORT cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr pointer) {
  return with_driver([&] {
    Block block;
    if (out == nullptr || !find_block(pointer, &block) || !block.pool || !block.pool->object || block.pool->imported) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const SharedRef& object = *block.pool->object;
    Ticket ticket{kTicketMagic, object.generation, Arena::get()->id(), block.backing->offset, block.size, object.index};
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle, CUmemPoolPtrExportData* data) {
  return with_driver([&] {
    auto pool = find_pool(handle);
    return pool && out != nullptr && data != nullptr ? import_pointer(out, pool, *data) : CUDA_ERROR_INVALID_VALUE;
  });
}
