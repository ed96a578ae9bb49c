// What the program is told: the budget instead of the card, and our entry points instead of the driver's.
#include "guard/state.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

template <typename T>
T clamp_to(uint64_t value) {
  constexpr uint64_t kMost = static_cast<T>(~static_cast<T>(0));
  return static_cast<T>(value < kMost ? value : kMost);
}

// total is the limit; free is what the budget has left, and never more than the GPU has.
template <typename T>
CUresult report(T* free, T* total, CUresult r) {
  State& s = state();
  CUdevice device = 0;
  if (r != CUDA_SUCCESS || free == nullptr || total == nullptr || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
    return r;
  const int gpu = gpu_of_device(s, device);
  if (gpu == kNoGpu) {  // nothing can be had here
    *free = 0;
    return r;
  }
  const uint64_t left = lease::to_bytes(s.client.free_units(gpu));
  if (left < *free) *free = static_cast<T>(left);
  *total = clamp_to<T>(lease::to_bytes(s.client.page()->gpu[gpu].limit_units));
  return r;
}

template <typename T>
CUresult report_total(T* bytes, CUdevice device, CUresult r) {
  State& s = state();
  if (r != CUDA_SUCCESS || bytes == nullptr) return r;
  const int gpu = gpu_of_device(s, device);
  if (gpu != kNoGpu) *bytes = clamp_to<T>(lease::to_bytes(s.client.page()->gpu[gpu].limit_units));
  return r;
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  return report(free, total, REAL(cuMemGetInfo_v2)(free, total));
}
KV_EXPORT CUresult CUDAAPI cuMemGetInfo(unsigned int* free, unsigned int* total) {
  return report(free, total, REAL(cuMemGetInfo)(free, total));
}
KV_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return report_total(bytes, device, REAL(cuDeviceTotalMem_v2)(bytes, device));
}
KV_EXPORT CUresult CUDAAPI cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  return report_total(bytes, device, REAL(cuDeviceTotalMem)(bytes, device));
}

KV_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                                               CUdriverProcAddressQueryResult* status) {
  const CUresult r = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
  if (r == CUDA_SUCCESS && symbol != nullptr && pfn != nullptr) *pfn = route(*pfn, symbol, version, flags);
  return r;
}
KV_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  const CUresult r = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
  if (r == CUDA_SUCCESS && symbol != nullptr && pfn != nullptr) *pfn = route(*pfn, symbol, version, flags);
  return r;
}
