// The NVML library's side of the guard: it only reads the budget, as an observer of the daemon.
#pragma once
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "guard/client.h"
#include "nvml_names.h"

namespace kvram::guard {

extern void* g_nvml[nvml::kCount];

// The budget that this process is in, or null: then everything is the driver's own answer.
Client* budget();
// Budget index of a device, or kNoGpu.
int gpu_of(const Client& client, nvmlDevice_t device);
bool is_member(const Client& client, unsigned pid);

}  // namespace kvram::guard

#define NVML_REAL(name) reinterpret_cast<decltype(&::name)>(::kvram::guard::g_nvml[::kvram::guard::nvml::k_##name])
#define KV_NVML_EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t
