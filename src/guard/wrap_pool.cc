// Stream-ordered allocation, memory pools, and the points where pools shrink.
#include "guard/state.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

// The device of a stream: the current one for the default streams, else the one of the stream's context.
bool device_of_stream(bool per_thread, State& s, CUstream stream, CUdevice* device) {
  Where at;
  if (!here(s, &at)) return false;
  *device = at.device;
  if (bits(stream) <= bits(CU_STREAM_PER_THREAD)) return true;
  Entry known;
  if (s.table.find(Kind::kStream, bits(stream), &known)) {
    *device = static_cast<CUdevice>(s.device_of_gpu[known.gpu]) - 1;
    return *device >= 0;
  }
  CUcontext context = nullptr;
  if (REAL_T(per_thread, cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS) return false;
  if (bits(context) == at.context || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return true;
  const bool found = REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
  REAL(cuCtxPopCurrent_v2)(&context);
  return found;
}

// The device whose default or current pool this is; drivers before 13 do not tell a pool's location.
bool device_of_pool(CUmemoryPool handle, CUdevice* device) {
  int count = 0;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return false;
  for (*device = 0; *device < count; ++*device) {
    CUmemoryPool pool = nullptr;
    if (REAL(cuDeviceGetDefaultMemPool)(&pool, *device) == CUDA_SUCCESS && pool == handle) return true;
    if (REAL(cuDeviceGetMemPool)(&pool, *device) == CUDA_SUCCESS && pool == handle) return true;
  }
  return false;
}

// A pool we did not see made: on the GPU of its location, or free of charge where that is the host.
Pool* known_pool(State& s, CUmemoryPool handle) {
  if (Pool* p = s.pools.find(PoolKind::kAsync, bits(handle))) return p;
  if (Pool* p = s.pools.find(PoolKind::kFree, bits(handle))) return p;
  int type = CU_MEM_LOCATION_TYPE_NONE;
  int id = 0;
  if (REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) != CUDA_SUCCESS ||
      REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &id) != CUDA_SUCCESS) {
    type = device_of_pool(handle, &id) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_NONE;
  }
  if (type == CU_MEM_LOCATION_TYPE_DEVICE) return s.pools.get(PoolKind::kAsync, bits(handle), gpu_of_device(s, id));
  if (type != CU_MEM_LOCATION_TYPE_NONE) return s.pools.get(PoolKind::kFree, bits(handle), kNoGpu);
  Where at;
  return here(s, &at) ? s.pools.get(PoolKind::kAsync, bits(handle), at.gpu) : nullptr;
}

// One allocation at a time per pool, so that what the pool has reserved can be read before and after.
template <typename Call, typename Undo>
CUresult allocate_in(State& s, Pool* pool, const char* name, CUdeviceptr* out, size_t bytes, Call call,
                     Undo take_back) {
  if (pool == nullptr) {  // more pools than we can follow: as ordinary memory, charged until it is freed
    Where at;
    if (!here(s, &at)) return call();
    const Entry entry{
        0, Kind::kLinear, static_cast<uint32_t>(at.gpu), lease::to_units(lease::linear_cost(bytes)), at.context, 0, 0};
    return account(s, name, entry, bytes, call, [out] { return *out; });
  }
  if (pool->kind == PoolKind::kFree) return call();
  const Guarded hold(pool->lock);
  if (!s.pools.charge_growth(s, *pool, bytes, name, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    if (r == CUDA_ERROR_OUT_OF_MEMORY) s.client.physical_oom(pool->gpu, bytes, name);
    s.pools.true_up(s, *pool);
    return r;
  }
  if (!s.pools.true_up(s, *pool)) {  // the pool grew by more than was needed, and by more than the budget has
    take_back();
    s.pools.true_up(s, *pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++pool->live;
  s.table.put(Entry{*out, Kind::kAsync, static_cast<uint32_t>(pool->gpu), 0, 0, s.pools.key_of(*pool), 0});
  s.client.succeeded(pool->gpu, bytes);
  return r;
}

template <bool PerThread>
CUresult alloc_async(const char* name, CUdeviceptr* out, size_t bytes, CUstream stream) {
  const auto call = [=] { return REAL_T(PerThread, cuMemAllocAsync)(out, bytes, stream); };
  State& s = state();
  CUdevice device = 0;
  CUmemoryPool pool = nullptr;
  if (out == nullptr || bytes == 0 || capturing(PerThread, stream) ||
      !device_of_stream(PerThread, s, stream, &device)) {
    return call();
  }
  if (gpu_of_device(s, device) == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  if (REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS) return call();
  return allocate_in(s, known_pool(s, pool), name, out, bytes, call, [=] {
    REAL_T(PerThread, cuMemFreeAsync)(*out, stream);
    *out = 0;
  });
}

template <bool PerThread>
CUresult alloc_from_pool(const char* name, CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  const auto call = [=] { return REAL_T(PerThread, cuMemAllocFromPoolAsync)(out, bytes, pool, stream); };
  State& s = state();
  if (out == nullptr || bytes == 0 || pool == nullptr || capturing(PerThread, stream)) return call();
  return allocate_in(s, known_pool(s, pool), name, out, bytes, call, [=] {
    REAL_T(PerThread, cuMemFreeAsync)(*out, stream);
    *out = 0;
  });
}

// Trim, new threshold, ...: afterwards the charge is what the pool still holds.
template <typename Call>
CUresult change_pool(CUmemoryPool handle, Call call) {
  State& s = state();
  Pool* pool = s.pools.find(PoolKind::kAsync, bits(handle));
  if (pool == nullptr) return call();
  const Guarded hold(pool->lock);
  const CUresult r = call();
  s.pools.true_up(s, *pool);
  return r;
}

template <typename Call>
CUresult synchronized(Call call) {
  const CUresult r = call();
  State& s = state();
  s.pools.settle_if_dirty(s);
  return r;
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream stream) {
  return alloc_async<false>("cuMemAllocAsync", dptr, bytesize, stream);
}
KV_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream stream) {
  return alloc_async<true>("cuMemAllocAsync_ptsz", dptr, bytesize, stream);
}
KV_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                                   CUstream stream) {
  return alloc_from_pool<false>("cuMemAllocFromPoolAsync", dptr, bytesize, pool, stream);
}
KV_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                                        CUstream stream) {
  return alloc_from_pool<true>("cuMemAllocFromPoolAsync_ptsz", dptr, bytesize, pool, stream);
}

KV_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  const CUresult r = REAL(cuMemPoolCreate)(pool, props);
  if (r != CUDA_SUCCESS) return r;
  State& s = state();
  if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    s.pools.get(PoolKind::kAsync, bits(*pool), gpu_of_device(s, props->location.id));
  } else if (props->location.type != CU_MEM_LOCATION_TYPE_NONE) {
    s.pools.get(PoolKind::kFree, bits(*pool), kNoGpu);
  }
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle,
                                                              CUmemAllocationHandleType type,
                                                              unsigned long long flags) {
  const CUresult r = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
  if (r == CUDA_SUCCESS) state().pools.get(PoolKind::kFree, bits(*pool), kNoGpu);
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                                            CUmemAllocationHandleType type, unsigned long long flags) {
  State& s = state();
  const CUresult r = REAL(cuMemPoolExportToShareableHandle)(handle, pool, type, flags);
  Pool* known = r == CUDA_SUCCESS ? known_pool(s, pool) : nullptr;
  if (known != nullptr) known->exported = 1;
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  State& s = state();
  Pool* pool = s.pools.find(PoolKind::kAsync, bits(handle));
  if (pool == nullptr) {
    pool = s.pools.find(PoolKind::kFree, bits(handle));
    const CUresult r = REAL(cuMemPoolDestroy)(handle);
    if (pool != nullptr && r == CUDA_SUCCESS) pool->kind = PoolKind::kUnused;
    return r;
  }
  const Guarded hold(pool->lock);
  if (pool->live == 0) s.pools.await_frees(*pool);
  pool->destroyed = 1;
  const CUresult r = REAL(cuMemPoolDestroy)(handle);
  if (r != CUDA_SUCCESS) {
    pool->destroyed = 0;
  } else if (pool->live == 0) {
    s.pools.drop(s, *pool);
  }
  return r;
}
KV_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  return change_pool(pool, [=] { return REAL(cuMemPoolTrimTo)(pool, keep); });
}
KV_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return change_pool(pool, [=] { return REAL(cuMemPoolSetAttribute)(pool, attribute, value); });
}

KV_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  return synchronized([=] { return REAL(cuStreamSynchronize)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream stream) {
  return synchronized([=] { return REAL(cuStreamSynchronize_ptsz)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuCtxSynchronize() {
  return synchronized([] { return REAL(cuCtxSynchronize)(); });
}
KV_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context) {
  return synchronized([=] { return REAL(cuCtxSynchronize_v2)(context); });
}
KV_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  return synchronized([=] { return REAL(cuEventSynchronize)(event); });
}
