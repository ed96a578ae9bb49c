// Copies and fills as entry points use them.
#pragma once
#include "simgpu/memory.h"

namespace kvram::simgpu {

// Where and how: `wait` for the synchronous names.
struct CopyWay {
  CUstream stream = nullptr;
  bool per_thread = false;
  bool wait = true;
};
constexpr CopyWay now(bool per_thread = false) { return CopyWay{nullptr, per_thread, true}; }
inline CopyWay on(CUstream stream, bool per_thread = false) { return CopyWay{stream, per_thread, false}; }

// One end of a copy.
struct CopyEnd {
  CUmemorytype type;
  const void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  size_t offset = 0;
};
inline CopyEnd host_end(const void* pointer) { return CopyEnd{CU_MEMORYTYPE_HOST, pointer, 0, nullptr, 0}; }
inline CopyEnd device_end(CUdeviceptr pointer) { return CopyEnd{CU_MEMORYTYPE_DEVICE, nullptr, pointer, nullptr, 0}; }
inline CopyEnd unified_end(CUdeviceptr pointer) { return CopyEnd{CU_MEMORYTYPE_UNIFIED, nullptr, pointer, nullptr, 0}; }
inline CopyEnd array_end(CUarray array, size_t offset) {
  return CopyEnd{CU_MEMORYTYPE_ARRAY, nullptr, 0, array, offset};
}

CUresult copy_linear(const CopyEnd& to, const CopyEnd& from, size_t bytes, const CopyWay& way, const char* call);
CUresult copy_2d(const CUDA_MEMCPY2D* copy, const CopyWay& way, const char* call);
CUresult copy_3d(const CUDA_MEMCPY3D* copy, const CopyWay& way, const char* call);
CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* copy, const CopyWay& way, const char* call);
// A fill of width x height elements of element_size bytes (1, 2, 4).
CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element_size, size_t width, size_t height,
              const CopyWay& way, const char* call);

}  // namespace kvram::simgpu
