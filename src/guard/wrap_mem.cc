// Linear, pitched, managed and array memory, and the ways of freeing it.
#include "guard/state.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

Entry entry_at(const Where& at, Kind kind, uint64_t bytes) {
  return Entry{0, kind, static_cast<uint32_t>(at.gpu), lease::to_units(bytes), at.context, 0, 0};
}

// Device memory of `bytes` (as the driver rounds them) for the current context.
template <typename Pointer, typename Call>
CUresult allocate(const char* name, Pointer* out, uint64_t bytes, uint64_t asked, Call call) {
  State& s = state();
  Where at;
  if (out == nullptr || asked == 0 || !here(s, &at)) return call();
  return account(s, name, entry_at(at, Kind::kLinear, bytes), asked, call, [out] { return *out; });
}

template <typename Array, typename Call>
CUresult allocate_array(const char* name, Array* out, uint64_t bytes, Call call) {
  State& s = state();
  Where at;
  if (out == nullptr || bytes == 0 || !here(s, &at)) return call();
  return account(s, name, entry_at(at, Kind::kArray, bytes), bytes, call, [out] { return *out; });
}

// Sparse and deferred arrays are address space until memory of cuMemCreate is mapped into them.
bool backed(unsigned flags) { return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0; }

template <typename Descriptor>
uint64_t array_bytes(const Descriptor* d) {
  if (d == nullptr) return 0;
  return lease::array_cost(d->Width, d->Height, 1, lease::texel_bits(d->Format, d->NumChannels));
}
template <typename Descriptor>
uint64_t array3d_bytes(const Descriptor* d) {
  if (d == nullptr || !backed(d->Flags)) return 0;
  return lease::array_cost(d->Width, d->Height, d->Depth, lease::texel_bits(d->Format, d->NumChannels));
}

// Memory from a pool may be freed like any other, and the other way round as far as the driver allows it.
template <typename Call, typename Freed>
CUresult free_block(CUdeviceptr pointer, Call call, Freed wait_until_freed) {
  State& s = state();
  Entry entry;
  const Kind kinds[] = {Kind::kLinear, Kind::kAsync};
  for (const Kind kind : kinds) {
    if (!s.table.take(kind, pointer, &entry)) continue;
    const CUresult r = call();
    if (KV_LIKELY(r == CUDA_SUCCESS)) {
      wait_until_freed(s, entry);
      settle(s, entry);
    } else {
      s.table.put(entry);
    }
    return r;
  }
  const CUresult r = call();
  if (r == CUDA_SUCCESS) s.pools.mark_dirty();  // perhaps graph memory
  return r;
}
template <typename Call>
CUresult free_block(CUdeviceptr pointer, Call call) {
  return free_block(pointer, call, [](State&, const Entry&) {});
}

// The driver frees when the stream gets there. A pool's charge follows what the pool has reserved; a charge of the
// block's own (cuMemAlloc memory, the last block of a destroyed pool) must wait for it, or another process gets bytes
// that are still in use.
template <bool PerThread>
CUresult free_in_stream(CUdeviceptr pointer, CUstream stream) {
  const auto call = [=] { return REAL_T(PerThread, cuMemFreeAsync)(pointer, stream); };
  if (capturing(PerThread, stream)) return call();  // recorded, not done
  return free_block(pointer, call, [=](State& s, const Entry& entry) {
    const Pool* pool = entry.kind == Kind::kAsync ? s.pools.of_key(entry.owner) : nullptr;
    if (pool != nullptr && pool->destroyed == 0) return;
    if (pool != nullptr) {  // other blocks of it may be on their way in other streams
      REAL(cuCtxSynchronize)();
    } else {
      REAL_T(PerThread, cuStreamSynchronize)(stream);
    }
  });
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return allocate("cuMemAlloc_v2", dptr, lease::linear_cost(bytesize), bytesize,
                  [=] { return REAL(cuMemAlloc_v2)(dptr, bytesize); });
}
KV_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1* dptr, unsigned int bytesize) {
  return allocate("cuMemAlloc", dptr, lease::linear_cost(bytesize), bytesize,
                  [=] { return REAL(cuMemAlloc)(dptr, bytesize); });
}
KV_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  return allocate("cuMemAllocManaged", dptr, lease::linear_cost(bytesize), bytesize,
                  [=] { return REAL(cuMemAllocManaged)(dptr, bytesize, flags); });
}
KV_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pitch, size_t width, size_t height,
                                              unsigned int element) {
  return allocate("cuMemAllocPitch_v2", dptr, lease::pitched_cost(width, height), lease::mul_saturating(width, height),
                  [=] { return REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element); });
}
KV_EXPORT CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned int* pitch, unsigned int width,
                                           unsigned int height, unsigned int element) {
  return allocate("cuMemAllocPitch", dptr, lease::pitched_cost(width, height), lease::mul_saturating(width, height),
                  [=] { return REAL(cuMemAllocPitch)(dptr, pitch, width, height, element); });
}

KV_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  return free_block(dptr, [=] { return REAL(cuMemFree_v2)(dptr); });
}
KV_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr) {
  return free_block(dptr, [=] { return REAL(cuMemFree)(dptr); });
}
KV_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
  return free_in_stream<false>(dptr, stream);
}
KV_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
  return free_in_stream<true>(dptr, stream);
}

KV_EXPORT CUresult CUDAAPI cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  return allocate_array("cuArrayCreate_v2", out, array_bytes(d), [=] { return REAL(cuArrayCreate_v2)(out, d); });
}
KV_EXPORT CUresult CUDAAPI cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  return allocate_array("cuArrayCreate", out, array_bytes(d), [=] { return REAL(cuArrayCreate)(out, d); });
}
KV_EXPORT CUresult CUDAAPI cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  return allocate_array("cuArray3DCreate_v2", out, array3d_bytes(d), [=] { return REAL(cuArray3DCreate_v2)(out, d); });
}
KV_EXPORT CUresult CUDAAPI cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  return allocate_array("cuArray3DCreate", out, array3d_bytes(d), [=] { return REAL(cuArray3DCreate)(out, d); });
}
KV_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d,
                                                  unsigned int levels) {
  uint64_t bytes = 0;
  if (d != nullptr && backed(d->Flags)) {
    bytes = lease::mipmapped_cost(d->Width, d->Height, d->Depth, lease::texel_bits(d->Format, d->NumChannels), levels,
                                  (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0);
  }
  return allocate_array("cuMipmappedArrayCreate", out, bytes,
                        [=] { return REAL(cuMipmappedArrayCreate)(out, d, levels); });
}
namespace {
// With a sparse array go its mappings, and memory that only they kept.
template <typename Call>
CUresult destroy_array(uint64_t array, Call call) {
  State& s = state();
  const CUresult r = discharge(s, Kind::kArray, array, call);
  if (r != CUDA_SUCCESS) return r;
  const Guarded hold(s.vmm.lock());
  Memory gone{};
  while (s.vmm.unmapped(0, UINT64_MAX, &gone, array)) give_back(s, gone);
  return r;
}
}  // namespace
KV_EXPORT CUresult CUDAAPI cuArrayDestroy(CUarray array) {
  return destroy_array(bits(array), [=] { return REAL(cuArrayDestroy)(array); });
}
KV_EXPORT CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return destroy_array(bits(array), [=] { return REAL(cuMipmappedArrayDestroy)(array); });
}
