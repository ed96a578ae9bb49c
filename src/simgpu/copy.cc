#include "simgpu/copy.h"

#include <algorithm>
#include <cstring>

#include "simgpu/array.h"

namespace kvram::simgpu {
namespace {

// One end of a copy, resolved to addresses.
struct Place {
  char* base = nullptr;
  uint64_t pitch = 0;  // bytes from row to row
  uint64_t rows = 0;   // rows from slice to slice
  uint64_t x = 0;
  uint64_t y = 0;
  uint64_t z = 0;
  std::shared_ptr<Array> array;  // kept while the copy runs
  char* row(uint64_t dy, uint64_t dz) const { return base + ((z + dz) * rows + y + dy) * pitch + x; }
};

struct End {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t x, y, z, pitch, height;
};

End source_of(const CUDA_MEMCPY3D& c) {
  return End{c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes,
             c.srcY,          c.srcZ,    c.srcPitch,  c.srcHeight};
}
End target_of(const CUDA_MEMCPY3D& c) {
  return End{c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes,
             c.dstY,          c.dstZ,    c.dstPitch,  c.dstHeight};
}

// Is it host memory that the driver has not pinned?
bool pageable(const End& end) {
  if (end.type != CU_MEMORYTYPE_HOST && end.type != CU_MEMORYTYPE_UNIFIED) return false;
  auto address = end.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(end.host) : end.device;
  Block block;
  return !find_block(address, &block) && !device_range_valid(address, 1);
}

CUresult resolve(const End& end, const CUDA_MEMCPY3D& c, Place* out) {
  out->x = end.x;
  out->y = end.y;
  out->z = end.z;
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    out->array = find_array(end.array);
    if (!out->array) return CUDA_ERROR_INVALID_HANDLE;
    const Array& a = *out->array;
    bool inside = end.x <= a.row_bytes && c.WidthInBytes <= a.row_bytes - end.x && end.y + c.Height <= a.rows &&
                  end.z + c.Depth <= a.slices;
    if (!inside) return CUDA_ERROR_INVALID_VALUE;
    out->base = a.base;
    out->pitch = a.row_bytes;
    out->rows = a.rows;
    return CUDA_SUCCESS;
  }
  out->pitch = end.pitch != 0 ? end.pitch : c.WidthInBytes + end.x;
  out->rows = end.height != 0 ? end.height : c.Height + end.y;
  if (out->pitch < c.WidthInBytes && (c.Height > 1 || c.Depth > 1)) return CUDA_ERROR_INVALID_VALUE;
  if (end.type == CU_MEMORYTYPE_HOST) {
    out->base = static_cast<char*>(const_cast<void*>(end.host));
    return out->base != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (end.type != CU_MEMORYTYPE_DEVICE && end.type != CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
  out->base = reinterpret_cast<char*>(end.device);
  if (out->base == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (end.type == CU_MEMORYTYPE_UNIFIED && pageable(end)) return CUDA_SUCCESS;
  auto first = reinterpret_cast<CUdeviceptr>(out->row(0, 0));
  auto last = reinterpret_cast<CUdeviceptr>(out->row(c.Height - 1, c.Depth - 1)) + c.WidthInBytes;
  return device_range_valid(first, last - first) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult submit(const CUDA_MEMCPY3D& c, const CopyWay& way) {
  if (CUresult r = check_copy(c); r != CUDA_SUCCESS) return r;
  bool host = pageable(source_of(c)) || pageable(target_of(c));
  bool pcie = host || c.srcMemoryType == CU_MEMORYTYPE_HOST || c.dstMemoryType == CU_MEMORYTYPE_HOST;
  Work work;
  work.gpu_ns = copy_ns(copy_bytes(c), pcie);
  work.effect = [c] { return run_copy(c), CUDA_SUCCESS; };
  work.node = c;
  // Pageable memory is staged before the call returns, so that the program may reuse it.
  if (way.wait || (host && !is_capturing(way.stream, way.per_thread))) {
    return submit_and_wait(way.stream, way.per_thread, std::move(work));
  }
  return submit_work(way.stream, way.per_thread, std::move(work));
}

}  // namespace

uint64_t copy_bytes(const CUDA_MEMCPY3D& c) {
  return lease::mul_saturating(lease::mul_saturating(c.WidthInBytes, c.Height), c.Depth);
}

CUresult check_copy(const CUDA_MEMCPY3D& c) {
  if (copy_bytes(c) == 0) return CUDA_SUCCESS;
  if (copy_bytes(c) >= lease::kHuge) return CUDA_ERROR_INVALID_VALUE;
  Place place;
  if (CUresult r = resolve(source_of(c), c, &place); r != CUDA_SUCCESS) return r;
  return resolve(target_of(c), c, &place);
}

void run_copy(const CUDA_MEMCPY3D& c) {
  Place from;
  Place to;
  if (copy_bytes(c) == 0) return;
  // Memory may have gone since the copy was put on its stream; a GPU would fault, here nothing is copied.
  if (resolve(source_of(c), c, &from) != CUDA_SUCCESS || resolve(target_of(c), c, &to) != CUDA_SUCCESS) return;
  for (uint64_t z = 0; z < c.Depth; ++z) {
    for (uint64_t y = 0; y < c.Height; ++y) std::memmove(to.row(y, z), from.row(y, z), c.WidthInBytes);
  }
}

CUresult check_set(const CUDA_MEMSET_NODE_PARAMS& s) {
  if (s.elementSize != 1 && s.elementSize != 2 && s.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
  if (s.width == 0 || s.height == 0) return CUDA_SUCCESS;
  uint64_t row = lease::mul_saturating(s.width, s.elementSize);
  if (s.dst % s.elementSize != 0 || (s.height > 1 && s.pitch < row)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = lease::add_saturating(lease::mul_saturating(s.pitch, s.height - 1), row);
  return bytes < lease::kHuge && device_range_valid(s.dst, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void run_set(const CUDA_MEMSET_NODE_PARAMS& s) {
  if (check_set(s) != CUDA_SUCCESS) return;
  for (size_t y = 0; y < s.height; ++y) {
    char* row = reinterpret_cast<char*>(s.dst) + y * s.pitch;
    if (s.elementSize == 1) {
      std::memset(row, static_cast<int>(s.value & 0xff), s.width);
    } else if (s.elementSize == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(row), s.width, static_cast<uint16_t>(s.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(row), s.width, s.value);
    }
  }
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, const CopyWay& way, const char* call) {
  return with_context([&](Context&) { return copy != nullptr ? submit(*copy, way) : CUDA_ERROR_INVALID_VALUE; }, call);
}

CUresult copy_linear(const CopyEnd& to, const CopyEnd& from, size_t bytes, const CopyWay& way, const char* call) {
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = from.type;
  c.srcHost = from.host;
  c.srcDevice = from.device;
  c.srcArray = from.array;
  c.srcXInBytes = from.offset;
  c.dstMemoryType = to.type;
  c.dstHost = const_cast<void*>(to.host);
  c.dstDevice = to.device;
  c.dstArray = to.array;
  c.dstXInBytes = to.offset;
  c.WidthInBytes = bytes;
  c.Height = 1;
  c.Depth = 1;
  return copy_3d(&c, way, call);
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, const CopyWay& way, const char* call) {
  if (copy == nullptr) return copy_3d(nullptr, way, call);
  CUDA_MEMCPY3D c{};
  c.srcXInBytes = copy->srcXInBytes;
  c.srcY = copy->srcY;
  c.srcMemoryType = copy->srcMemoryType;
  c.srcHost = copy->srcHost;
  c.srcDevice = copy->srcDevice;
  c.srcArray = copy->srcArray;
  c.srcPitch = copy->srcPitch;
  c.dstXInBytes = copy->dstXInBytes;
  c.dstY = copy->dstY;
  c.dstMemoryType = copy->dstMemoryType;
  c.dstHost = copy->dstHost;
  c.dstDevice = copy->dstDevice;
  c.dstArray = copy->dstArray;
  c.dstPitch = copy->dstPitch;
  c.WidthInBytes = copy->WidthInBytes;
  c.Height = copy->Height;
  c.Depth = 1;
  return copy_3d(&c, way, call);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* copy, const CopyWay& way, const char* call) {
  if (copy == nullptr) return copy_3d(nullptr, way, call);
  CUDA_MEMCPY3D c{};
  c.srcXInBytes = copy->srcXInBytes;
  c.srcY = copy->srcY;
  c.srcZ = copy->srcZ;
  c.srcMemoryType = copy->srcMemoryType;
  c.srcHost = copy->srcHost;
  c.srcDevice = copy->srcDevice;
  c.srcArray = copy->srcArray;
  c.srcPitch = copy->srcPitch;
  c.srcHeight = copy->srcHeight;
  c.dstXInBytes = copy->dstXInBytes;
  c.dstY = copy->dstY;
  c.dstZ = copy->dstZ;
  c.dstMemoryType = copy->dstMemoryType;
  c.dstHost = copy->dstHost;
  c.dstDevice = copy->dstDevice;
  c.dstArray = copy->dstArray;
  c.dstPitch = copy->dstPitch;
  c.dstHeight = copy->dstHeight;
  c.WidthInBytes = copy->WidthInBytes;
  c.Height = copy->Height;
  c.Depth = copy->Depth;
  return copy_3d(&c, way, call);
}

CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element_size, size_t width, size_t height,
              const CopyWay& way, const char* call) {
  return with_context(
      [&](Context&) {
        CUDA_MEMSET_NODE_PARAMS s{};
        s.dst = to;
        s.pitch = pitch;
        s.value = value;
        s.elementSize = element_size;
        s.width = width;
        s.height = height;
        if (CUresult r = check_set(s); r != CUDA_SUCCESS) return r;
        if (width == 0 || height == 0) return CUDA_SUCCESS;
        Work work;
        work.gpu_ns = copy_ns(lease::mul_saturating(width * element_size, height), false);
        work.effect = [s] { return run_set(s), CUDA_SUCCESS; };
        work.node = s;
        if (way.wait) return submit_and_wait(way.stream, way.per_thread, std::move(work));
        return submit_work(way.stream, way.per_thread, std::move(work));
      },
      call);
}

}  // namespace kvram::simgpu
