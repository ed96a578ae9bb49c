// The simulated NVML inside one process: the machine it watches, device handles, and how an entry point begins.
//
//   KV_NVML_EXPORT nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
//     return with_device(device, [&](const View& view) { ...; return NVML_SUCCESS; });
//   }
// Names that have no body are weak stubs: NVML_ERROR_NOT_SUPPORTED, counted. NVML shows every GPU of the machine,
// whatever CUDA_VISIBLE_DEVICES says.
#pragma once
#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#endif
#include <nvml.h>

#include <memory>
#include <string_view>

#include "simgpu/control.h"
#include "simgpu/machine.h"

#define KV_NVML_EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st {
  uint32_t index;
};

namespace kvram::simgpu {

// One device of the machine, for the length of a call.
struct View {
  Machine& machine;
  uint32_t gpu;
  const GpuInfo& info() const { return machine.gpu(gpu); }
};

// The machine, null before nvmlInit. Opened again when another machine took its place, and in a forked child.
std::shared_ptr<Machine> watched_machine();
bool nvml_initialised();
nvmlDevice_t handle_of(uint32_t gpu);
// The index behind a handle, or kMaxGpus for a pointer that is none.
uint32_t index_of(nvmlDevice_t device);

// Copies text with its NUL: NVML_ERROR_INSUFFICIENT_SIZE when it does not fit.
nvmlReturn_t put_text(std::string_view text, char* out, unsigned int length);

template <typename F>
nvmlReturn_t with_machine(F&& body, const char* call = __builtin_FUNCTION()) {
  if (!nvml_initialised()) return NVML_ERROR_UNINITIALIZED;
  KVSIM_FAULT(call, nvmlReturn_t);
  std::shared_ptr<Machine> machine = watched_machine();
  if (!machine) return NVML_ERROR_UNKNOWN;
  return body(*machine);
}

template <typename F>
nvmlReturn_t with_device(nvmlDevice_t device, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_machine(
      [&](Machine& machine) {
        uint32_t gpu = index_of(device);
        if (gpu >= machine.gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
        if (gpu_lost(gpu)) return NVML_ERROR_GPU_IS_LOST;
        return body(View{machine, gpu});
      },
      call);
}

// The usual shape: one value of a device into *out.
template <typename T, typename F>
nvmlReturn_t give(nvmlDevice_t device, T* out, F&& value, const char* call = __builtin_FUNCTION()) {
  return with_device(
      device,
      [&](const View& view) {
        if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        *out = static_cast<T>(value(view));
        return NVML_SUCCESS;
      },
      call);
}

}  // namespace kvram::simgpu
