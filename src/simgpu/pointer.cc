// What a pointer is: attributes of an address, and advice on managed memory, which stays where it is.
#include "simgpu/pool.h"
#include "simgpu/vmm.h"

namespace kvram::simgpu {
namespace {

// An address, whatever kind of memory it lies in.
struct Facts {
  bool known = false;
  Block block;          // of the address, when `mapped` is false
  bool mapped = false;  // virtual memory management
  CUdeviceptr start = 0;
  size_t size = 0;
  Device* device = nullptr;
  bool host() const { return block.kind == BlockKind::kHost || block.kind == BlockKind::kRegistered; }
};

Facts look_up(CUdeviceptr address) {
  Facts f;
  if (find_block(address, &f.block)) {
    f.known = true;
    f.start = f.block.base;
    f.size = f.block.size;
    f.device = f.block.device;
    return f;
  }
  std::shared_ptr<Backing> backing;
  if (!vmm_mapping_of(address, &f.start, &f.size, &backing)) return f;
  f.known = true;
  f.mapped = true;
  f.device = backing->device;
  return f;
}

template <typename T>
CUresult put(void* out, T value) {
  *static_cast<T*>(out) = value;
  return CUDA_SUCCESS;
}

CUresult get_attribute(void* out, CUpointer_attribute which, CUdeviceptr address, const Facts& f) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put<CUcontext>(out, f.block.context != nullptr ? f.block.context->handle() : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(out, static_cast<unsigned>(f.host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(out, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!f.host() && f.block.kind != BlockKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      return put(out, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(out, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(out, f.mapped ? f.start : f.block.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(out, static_cast<unsigned>(!f.mapped && f.block.kind == BlockKind::kManaged));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(out, f.device != nullptr ? f.device->ordinal : -1);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(out, static_cast<unsigned>(!f.mapped && f.block.kind == BlockKind::kLinear));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(out, f.start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(out, f.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(out, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(out, static_cast<unsigned long long>(f.block.pool ? f.block.pool->props.handleTypes : 0));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(out, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(out, reinterpret_cast<CUmemoryPool>(f.block.pool.get()));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(out, 0U);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes gives for an address that is no memory of the driver.
void put_nothing(void* out, CUpointer_attribute which) {
  if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    put(out, -2);
  } else if (which == CU_POINTER_ATTRIBUTE_CONTEXT || which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
             which == CU_POINTER_ATTRIBUTE_HOST_POINTER || which == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
    put<void*>(out, nullptr);
  } else if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
    put(out, 0U);
  }
}

bool managed_range(CUdeviceptr address, size_t bytes) {
  Block block;
  return bytes != 0 && find_block(address, &block) && block.kind == BlockKind::kManaged &&
         device_range_valid(address, bytes);
}

CUresult prefetch(CUdeviceptr address, size_t bytes, CUstream stream, bool per_thread, const char* call) {
  return with_context(
      [&](Context&) {
        if (!managed_range(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        return submit_work(stream, per_thread, Work{});
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
  return with_driver([&] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Facts facts = look_up(address);
    return facts.known ? get_attribute(out, which, address, facts) : CUDA_ERROR_INVALID_VALUE;
  });
}

KV_CUDA_EXPORT cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** out, CUdeviceptr address) {
  return with_driver([&] {
    if (which == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Facts facts = look_up(address);
    for (unsigned i = 0; i < count; ++i) {
      if (out[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (!facts.known || get_attribute(out[i], which[i], address, facts) != CUDA_SUCCESS)
        put_nothing(out[i], which[i]);
    }
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
  return with_driver([&] {
    bool fits = value != nullptr && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && look_up(address).known;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

KV_CUDA_EXPORT cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice, CUstream stream) {
  return prefetch(address, bytes, stream, false, __func__);
}
KV_CUDA_EXPORT cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice, CUstream stream) {
  return prefetch(address, bytes, stream, true, __func__);
}
KV_CUDA_EXPORT cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned, CUstream stream) {
  return prefetch(address, bytes, stream, false, __func__);
}
KV_CUDA_EXPORT cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned, CUstream stream) {
  return prefetch(address, bytes, stream, true, __func__);
}
KV_CUDA_EXPORT cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise, CUdevice) {
  return with_context(
      [&](Context&) { return managed_range(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise, CUmemLocation) {
  return with_context(
      [&](Context&) { return managed_range(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}
