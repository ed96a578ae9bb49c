// Entry points of copies and fills: every name leads to copy.cc. The 32-bit forms of before CUDA 3.2 are stubs: no
// address of ours fits them.
#include "simgpu/copy.h"

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_linear(unified_end(to), unified_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_linear(unified_end(to), unified_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(unified_end(to), unified_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(unified_end(to), unified_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) {
  return copy_linear(device_end(to), host_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t n) {
  return copy_linear(device_end(to), host_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) {
  return copy_linear(host_end(to), device_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t n) {
  return copy_linear(host_end(to), device_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_linear(device_end(to), device_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_linear(device_end(to), device_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr from, size_t n) {
  return copy_linear(array_end(to, at), device_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoA_v2_ptds(CUarray to, size_t at, CUdeviceptr from, size_t n) {
  return copy_linear(array_end(to, at), device_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t at, size_t n) {
  return copy_linear(device_end(to), array_end(from, at), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t at, size_t n) {
  return copy_linear(device_end(to), array_end(from, at), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoA_v2(CUarray to, size_t at, const void* from, size_t n) {
  return copy_linear(array_end(to, at), host_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoA_v2_ptds(CUarray to, size_t at, const void* from, size_t n) {
  return copy_linear(array_end(to, at), host_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoH_v2(void* to, CUarray from, size_t at, size_t n) {
  return copy_linear(host_end(to), array_end(from, at), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoH_v2_ptds(void* to, CUarray from, size_t at, size_t n) {
  return copy_linear(host_end(to), array_end(from, at), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoA_v2(CUarray to, size_t at, CUarray from, size_t from_at, size_t n) {
  return copy_linear(array_end(to, at), array_end(from, from_at), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoA_v2_ptds(CUarray to, size_t at, CUarray from, size_t from_at, size_t n) {
  return copy_linear(array_end(to, at), array_end(from, from_at), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream s) {
  return copy_linear(device_end(to), host_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t n, CUstream s) {
  return copy_linear(device_end(to), host_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(host_end(to), device_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(host_end(to), device_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(device_end(to), device_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_linear(device_end(to), device_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void* from, size_t n, CUstream s) {
  return copy_linear(array_end(to, at), host_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t at, const void* from, size_t n, CUstream s) {
  return copy_linear(array_end(to, at), host_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t at, size_t n, CUstream s) {
  return copy_linear(host_end(to), array_end(from, at), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyAtoHAsync_v2_ptsz(void* to, CUarray from, size_t at, size_t n, CUstream s) {
  return copy_linear(host_end(to), array_end(from, at), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n) {
  return copy_linear(device_end(to), device_end(from), n, now(), __func__);
}
KV_CUDA_EXPORT cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n) {
  return copy_linear(device_end(to), device_end(from), n, now(true), __func__);
}
KV_CUDA_EXPORT cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream s) {
  return copy_linear(device_end(to), device_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream s) {
  return copy_linear(device_end(to), device_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) { return copy_2d(c, now(), __func__); }
KV_CUDA_EXPORT cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* c) { return copy_2d(c, now(true), __func__); }
KV_CUDA_EXPORT cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) { return copy_2d(c, now(), __func__); }
KV_CUDA_EXPORT cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* c) { return copy_2d(c, now(true), __func__); }
KV_CUDA_EXPORT cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream s) { return copy_2d(c, on(s), __func__); }
KV_CUDA_EXPORT cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* c, CUstream s) { return copy_2d(c, on(s, true), __func__); }
KV_CUDA_EXPORT cuMemcpy3D_v2(const CUDA_MEMCPY3D* c) { return copy_3d(c, now(), __func__); }
KV_CUDA_EXPORT cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* c) { return copy_3d(c, now(true), __func__); }
KV_CUDA_EXPORT cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* c, CUstream s) { return copy_3d(c, on(s), __func__); }
KV_CUDA_EXPORT cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* c, CUstream s) { return copy_3d(c, on(s, true), __func__); }
KV_CUDA_EXPORT cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* c) { return copy_3d_peer(c, now(), __func__); }
KV_CUDA_EXPORT cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* c) { return copy_3d_peer(c, now(true), __func__); }
KV_CUDA_EXPORT cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* c, CUstream s) { return copy_3d_peer(c, on(s), __func__); }
KV_CUDA_EXPORT cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* c, CUstream s) {
  return copy_3d_peer(c, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes*,
                                           CUstream s) {
  return copy_linear(unified_end(to), unified_end(from), n, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes*,
                                                CUstream s) {
  return copy_linear(unified_end(to), unified_end(from), n, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n) {
  return fill(to, 0, v, 1, n, 1, now(), __func__);
}
KV_CUDA_EXPORT cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char v, size_t n) {
  return fill(to, 0, v, 1, n, 1, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) {
  return fill(to, 0, v, 1, n, 1, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char v, size_t n, CUstream s) {
  return fill(to, 0, v, 1, n, 1, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h) {
  return fill(to, pitch, v, 1, w, h, now(), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h) {
  return fill(to, pitch, v, 1, w, h, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 1, w, h, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 1, w, h, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD16_v2(CUdeviceptr to, unsigned short v, size_t n) {
  return fill(to, 0, v, 2, n, 1, now(), __func__);
}
KV_CUDA_EXPORT cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short v, size_t n) {
  return fill(to, 0, v, 2, n, 1, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD16Async(CUdeviceptr to, unsigned short v, size_t n, CUstream s) {
  return fill(to, 0, v, 2, n, 1, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short v, size_t n, CUstream s) {
  return fill(to, 0, v, 2, n, 1, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h) {
  return fill(to, pitch, v, 2, w, h, now(), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h) {
  return fill(to, pitch, v, 2, w, h, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 2, w, h, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 2, w, h, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n) { return fill(to, 0, v, 4, n, 1, now(), __func__); }
KV_CUDA_EXPORT cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned v, size_t n) {
  return fill(to, 0, v, 4, n, 1, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream s) {
  return fill(to, 0, v, 4, n, 1, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned v, size_t n, CUstream s) {
  return fill(to, 0, v, 4, n, 1, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h) {
  return fill(to, pitch, v, 4, w, h, now(), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h) {
  return fill(to, pitch, v, 4, w, h, now(true), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 4, w, h, on(s), __func__);
}
KV_CUDA_EXPORT cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h, CUstream s) {
  return fill(to, pitch, v, 4, w, h, on(s, true), __func__);
}

namespace {

// A batch is its copies one after the other; the first that fails ends it.
CUresult copy_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, size_t* failed, const CopyWay& way,
                    const char* call) {
  if (to == nullptr || from == nullptr || sizes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    CUresult r = copy_linear(unified_end(to[i]), unified_end(from[i]), sizes[i], way, call);
    if (r == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace

KV_CUDA_EXPORT cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, CUmemcpyAttributes*,
                                  size_t*, size_t, size_t* failed, CUstream s) {
  return copy_batch(to, from, sizes, count, failed, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyBatchAsync_ptsz(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                       CUmemcpyAttributes*, size_t*, size_t, size_t* failed, CUstream s) {
  return copy_batch(to, from, sizes, count, failed, on(s, true), __func__);
}
KV_CUDA_EXPORT cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                     CUmemcpyAttributes*, size_t*, size_t, CUstream s) {
  return copy_batch(to, from, sizes, count, nullptr, on(s), __func__);
}
KV_CUDA_EXPORT cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                          CUmemcpyAttributes*, size_t*, size_t, CUstream s) {
  return copy_batch(to, from, sizes, count, nullptr, on(s, true), __func__);
}
