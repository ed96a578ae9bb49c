// Virtual memory management, multicast and memory that is shared between processes.
#include "guard/state.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

// The GPU that pays: the one the memory lies on, whichever context is current.
bool payer(State& s, const CUmemAllocationProp* prop, int* gpu) {
  if (prop == nullptr) return false;
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    *gpu = gpu_of_device(s, prop->location.id);
    return true;
  }
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) {
    *gpu = gpu_of_device(s, prop->location.localized.deviceId);
    return true;
  }
  return false;  // on the host
}

// What is bound to a multicast team stays alive with it.
void bound(State& s, CUmemGenericAllocationHandle team, size_t offset, size_t size, Memory* memory) {
  if (memory != nullptr) s.vmm.mapped(offset, size, memory, team);
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                       const CUmemAllocationProp* prop, unsigned long long flags) {
  State& s = state();
  int gpu = kNoGpu;
  if (handle == nullptr || size == 0 || !payer(s, prop, &gpu)) return REAL(cuMemCreate)(handle, size, prop, flags);
  const uint64_t units = lease::to_units(lease::round_up(size, lease::kUnit));
  if (!charge(s, gpu, units, "cuMemCreate", size)) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const Guarded hold(s.vmm.lock());
    const CUresult r = REAL(cuMemCreate)(handle, size, prop, flags);
    if (r != CUDA_SUCCESS) return undo(s, gpu, units, r, "cuMemCreate", size);
    s.vmm.created(*handle, static_cast<uint32_t>(gpu), units);
  }
  s.client.succeeded(gpu, size);
  return CUDA_SUCCESS;
}

KV_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  State& s = state();
  Memory gone{};
  {
    const Guarded hold(s.vmm.lock());
    const CUresult r = REAL(cuMemRelease)(handle);
    if (r != CUDA_SUCCESS || !s.vmm.released(handle, &gone)) return r;
  }
  give_back(s, gone);
  return CUDA_SUCCESS;
}

KV_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                    unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMemMap)(ptr, size, offset, handle, flags);
  Memory* memory = r == CUDA_SUCCESS ? s.vmm.of_handle(handle) : nullptr;
  if (memory != nullptr) s.vmm.mapped(ptr, size, memory);
  return r;
}

KV_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMemUnmap)(ptr, size);
  Memory gone{};
  while (r == CUDA_SUCCESS && s.vmm.unmapped(ptr, size, &gone)) give_back(s, gone);
  return r;
}

KV_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMemRetainAllocationHandle)(handle, address);
  Memory* memory = r == CUDA_SUCCESS ? s.vmm.of_address(bits(address)) : nullptr;
  if (memory != nullptr) s.vmm.retained(*handle, memory);
  return r;
}

KV_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                                          CUmemAllocationHandleType type) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
  if (r != CUDA_SUCCESS) return r;
  if (Memory* own = s.vmm.of_handle(*handle)) {
    s.vmm.retained(*handle, own);  // the driver gave an object of this process its own handle again
  } else {
    s.vmm.created(*handle, 0, 0);
  }
  return r;
}

KV_EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void* os_handle, CUmemGenericAllocationHandle handle,
                                                        CUmemAllocationHandleType type, unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMemExportToShareableHandle)(os_handle, handle, type, flags);
  Memory* memory = r == CUDA_SUCCESS ? s.vmm.of_handle(handle) : nullptr;
  if (memory != nullptr) memory->exported = 1;
  return r;
}

// A block that another process may open: when we free it, the daemon watches until the GPU no longer has it.
static void mark_exported(State& s, CUdeviceptr pointer) {
  Entry entry;
  if (s.table.find(Kind::kLinear, pointer, &entry)) {
    entry.exported = 1;
    s.table.update(entry);
  } else {
    const Guarded hold(s.vmm.lock());
    if (Memory* memory = s.vmm.of_address(pointer)) memory->exported = 1;
  }
}

KV_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const CUresult r = REAL(cuIpcGetMemHandle)(handle, pointer);
  if (r == CUDA_SUCCESS) mark_exported(state(), pointer);
  return r;
}

KV_EXPORT CUresult CUDAAPI cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, size_t size,
                                                         CUmemRangeHandleType type, unsigned long long flags) {
  const CUresult r = REAL(cuMemGetHandleForAddressRange)(handle, pointer, size, type, flags);
  if (r == CUDA_SUCCESS) mark_exported(state(), pointer);
  return r;
}

// Memory mapped into a sparse array is kept by the array until it is unmapped there: one reference per mapping.
template <bool PerThread>
static CUresult map_array(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL_T(PerThread, cuMemMapArrayAsync)(list, count, stream);
  for (unsigned i = 0; r == CUDA_SUCCESS && i < count; ++i) {
    const CUarrayMapInfo& m = list[i];
    const uint64_t array = bits(m.resource.array);
    const bool tail = m.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    const auto& level = m.subresource.sparseLevel;
    const uint64_t place = tail
                               ? 1ULL << 63 | m.subresource.miptail.offset
                               : (static_cast<uint64_t>(level.level) << 56 | static_cast<uint64_t>(level.layer) << 44) +
                                     (static_cast<uint64_t>(level.offsetZ) << 32 | level.offsetY << 16 | level.offsetX);
    Memory gone{};
    if (s.vmm.unmapped(place, 1, &gone, array)) give_back(s, gone);
    Memory* memory = m.memOperationType == CU_MEM_OPERATION_TYPE_MAP ? s.vmm.of_handle(m.memHandle.memHandle) : nullptr;
    if (memory != nullptr) s.vmm.mapped(place, 1, memory, array);
  }
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return map_array<false>(list, count, stream);
}
KV_EXPORT CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return map_array<true>(list, count, stream);
}

KV_EXPORT CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle team, size_t offset,
                                              CUmemGenericAllocationHandle handle, size_t at, size_t size,
                                              unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMulticastBindMem)(team, offset, handle, at, size, flags);
  if (r == CUDA_SUCCESS) bound(s, team, offset, size, s.vmm.of_handle(handle));
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle team, CUdevice device, size_t offset,
                                                 CUmemGenericAllocationHandle handle, size_t at, size_t size,
                                                 unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMulticastBindMem_v2)(team, device, offset, handle, at, size, flags);
  if (r == CUDA_SUCCESS) bound(s, team, offset, size, s.vmm.of_handle(handle));
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle team, size_t offset, CUdeviceptr pointer,
                                               size_t size, unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMulticastBindAddr)(team, offset, pointer, size, flags);
  if (r == CUDA_SUCCESS) bound(s, team, offset, size, s.vmm.of_address(pointer));
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle team, CUdevice device, size_t offset,
                                                  CUdeviceptr pointer, size_t size, unsigned long long flags) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMulticastBindAddr_v2)(team, device, offset, pointer, size, flags);
  if (r == CUDA_SUCCESS) bound(s, team, offset, size, s.vmm.of_address(pointer));
  return r;
}
// Each device of a team may have something bound at the same place; one is let go per call, whichever: the sum is
// right.
KV_EXPORT CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle team, CUdevice device, size_t offset,
                                             size_t size) {
  State& s = state();
  const Guarded hold(s.vmm.lock());
  const CUresult r = REAL(cuMulticastUnbind)(team, device, offset, size);
  Memory gone{};
  if (r == CUDA_SUCCESS && s.vmm.unmapped(offset, size, &gone, team)) give_back(s, gone);
  return r;
}
