// Devices: count, names, attributes.
#include <cstdio>
#include <cstring>

#include "simgpu/driver.h"
#include "simgpu/version.h"

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

namespace {

template <typename F>
CUresult with_device(CUdevice ordinal, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        Device* device = Driver::get().device(ordinal);
        return device != nullptr ? body(*device) : CUDA_ERROR_INVALID_DEVICE;
      },
      call);
}

// What depends on the model.
bool model_attribute(const GpuInfo& info, CUdevice_attribute which, int* out) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return *out = info.sms, true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return *out = info.cc_major, true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return *out = info.cc_minor, true;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return *out = info.sm_clock_mhz * 1000, true;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return *out = info.memory_clock_mhz * 1000, true;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return *out = info.memory_bus_bits, true;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return *out = info.l2_bytes, true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return *out = info.threads_per_sm, true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return *out = info.shared_per_sm_bytes, true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return *out = info.shared_per_sm_bytes - 1024, true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return *out = info.pci_bus, true;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      return *out = info.l2_bytes / 2, true;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return *out = info.cc_major >= 9 ? 1 : 0, true;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return *out = info.cc_major == 7 || info.cc_minor == 6 ? 16 : (info.cc_minor == 9 ? 24 : 32), true;
    default:
      return false;
  }
}

struct Constant {
  CUdevice_attribute which;
  int value;
};
// What every simulated GPU has; an attribute that is in neither list reads 0, as for a feature it lacks.
constexpr Constant kConstants[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 0},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 32},
};

int attribute(const GpuInfo& info, CUdevice_attribute which) {
  int value = 0;
  if (model_attribute(info, which, &value)) return value;
  for (const Constant& c : kConstants) {
    if (c.which == which) return c.value;
  }
  return 0;
}

CUresult put_text(char* out, int length, const char* text) {
  if (out == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(out, static_cast<size_t>(length), "%s", text);
  return CUDA_SUCCESS;
}

CUresult put_uuid(CUuuid* out, CUdevice ordinal, const char* call) {
  return with_device(
      ordinal,
      [&](Device& d) {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(out->bytes, d.info->uuid, sizeof out->bytes);
        return CUDA_SUCCESS;
      },
      call);
}

}  // namespace

KV_CUDA_EXPORT cuDriverGetVersion(int* out) {
  return out ? (*out = kCudaVersion, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
KV_CUDA_EXPORT cuDeviceGet(CUdevice* out, int ordinal) {
  return with_device(ordinal,
                     [&](Device& d) { return out ? (*out = d.ordinal, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuDeviceGetCount(int* out) {
  return with_driver(
      [&] { return out ? (*out = Driver::get().device_count(), CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuDeviceGetName(char* out, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) { return put_text(out, length, d.info->name); });
}
KV_CUDA_EXPORT cuDeviceGetUuid(CUuuid* out, CUdevice ordinal) { return put_uuid(out, ordinal, __func__); }
KV_CUDA_EXPORT cuDeviceGetUuid_v2(CUuuid* out, CUdevice ordinal) { return put_uuid(out, ordinal, __func__); }
KV_CUDA_EXPORT cuDeviceTotalMem_v2(size_t* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = Driver::get().machine().capacity(d.gpu);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceGetAttribute(int* out, CUdevice_attribute which, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (out == nullptr || which <= 0 || which >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *out = attribute(*d.info, which);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *major = d.info->cc_major;
    *minor = d.info->cc_minor;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceGetProperties(CUdevprop* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto get = [&](CUdevice_attribute which) { return attribute(*d.info, which); };
    out->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    out->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    out->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    out->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    out->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    out->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    out->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    out->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    out->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    out->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    out->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    out->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    out->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceGetPCIBusId(char* out, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& d) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(d.info->pci_bus) & 0xff);
    return put_text(out, length, text);
  });
}
KV_CUDA_EXPORT cuDeviceGetByPCIBusId(CUdevice* out, const char* text) {
  return with_driver([&] {
    unsigned domain = 0;
    unsigned bus = 0;
    if (out == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // NOLINTNEXTLINE(cert-err34-c): a number out of range names no device
    if (std::sscanf(text, "%x:%x:", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < Driver::get().device_count(); ++i) {
      if (Driver::get().device(i)->info->pci_bus == static_cast<int>(bus)) return *out = i, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuDeviceCanAccessPeer(int* out, CUdevice a, CUdevice b) {
  return with_device(a, [&](Device&) {
    if (Driver::get().device(b) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return out ? (*out = a != b ? 1 : 0, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuDeviceGetP2PAttribute(int* out, CUdevice_P2PAttribute which, CUdevice a, CUdevice b) {
  return with_device(a, [&](Device&) {
    if (Driver::get().device(b) == nullptr || a == b) return CUDA_ERROR_INVALID_DEVICE;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = which == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuDeviceGetExecAffinitySupport(int* out, CUexecAffinityType, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) { return out ? (*out = 0, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuDeviceGetTexture1DLinearMaxWidth(size_t* out, CUarray_format, unsigned, CUdevice ordinal) {
  return with_device(ordinal,
                     [&](Device&) { return out ? (*out = 1U << 28, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
