// NVML: memory, and who uses it. Pids are those of the caller's pid namespace (a monitor on the host sees host pids).
#include <cstring>
#include <ctime>
#include <vector>

#include "simgpu/gpu_clock.h"
#include "simgpu/nvml_state.h"

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

namespace {

void fill(nvmlProcessInfo_v1_t& out, const ProcessUse& use) {
  out.pid = static_cast<unsigned>(use.pid);
  out.usedGpuMemory = use.bytes;
}
void fill(nvmlProcessInfo_v2_t& out, const ProcessUse& use) {
  out.pid = static_cast<unsigned>(use.pid);
  out.usedGpuMemory = use.bytes;
  out.gpuInstanceId = 0xFFFFFFFFU;
  out.computeInstanceId = 0xFFFFFFFFU;
}
void fill(nvmlProcessDetail_v1_t& out, const ProcessUse& use) {
  out.pid = static_cast<unsigned>(use.pid);
  out.usedGpuMemory = use.bytes;
  out.gpuInstanceId = 0xFFFFFFFFU;
  out.computeInstanceId = 0xFFFFFFFFU;
  out.usedGpuCcProtectedMemory = 0;
}

// The protocol of all lists: *count is the room on entry and the number of entries on return; too little room is
// NVML_ERROR_INSUFFICIENT_SIZE with the number that would do.
template <typename T, typename Item, typename F>
nvmlReturn_t put_list(const std::vector<Item>& items, unsigned int* count, T* out, F&& put) {
  unsigned room = *count;
  *count = static_cast<unsigned>(items.size());
  if (items.size() > room || (out == nullptr && !items.empty())) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < items.size(); ++i) put(out[i], items[i]);
  return NVML_SUCCESS;
}

template <typename T>
nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned int* count, T* infos, const char* call) {
  return with_device(
      device,
      [&](const View& view) {
        if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        return put_list(view.machine.processes(view.gpu), count, infos,
                        [](T& out, const ProcessUse& use) { fill(out, use); });
      },
      call);
}

// Nobody draws and there is no MPS server on a simulated GPU.
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int* count, const char* call) {
  return give(device, count, [](const View&) { return 0; }, call);
}

unsigned long long unix_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<unsigned long long>(now.tv_sec) * 1000000 + static_cast<unsigned long long>(now.tv_nsec) / 1000;
}

struct Busy {
  unsigned pid;
  unsigned percent;
};

std::vector<Busy> busy_processes(const View& view) {
  std::vector<Busy> busy;
  for (const ProcessUse& use : view.machine.processes(view.gpu)) {
    // The clock knows a process by the pid of its own namespace.
    auto own_pid = static_cast<uint32_t>(view.machine.file().slot[use.slot].pid);
    ProcessShare share = clock_process_share(view.gpu, own_pid);
    if (share.percent != 0) busy.push_back(Busy{static_cast<unsigned>(use.pid), share.percent});
  }
  return busy;
}

}  // namespace

KV_NVML_EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return with_device(device, [&](const View& view) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = view.info().total_bytes;
    memory->used = view.machine.used(view.gpu) + view.info().reserve_bytes;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
  });
}

KV_NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return with_device(device, [&](const View& view) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = view.info().total_bytes;
    memory->reserved = view.info().reserve_bytes;
    memory->used = view.machine.used(view.gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
  });
}

KV_NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  return give(device, memory, [](const View&) {
    constexpr unsigned long long kMiB = 1024ULL * 1024;
    return nvmlBAR1Memory_t{256 * kMiB, 252 * kMiB, 4 * kMiB};
  });
}

KV_NVML_EXPORT nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                    nvmlProcessInfo_v1_t* infos) {
  return compute_processes(device, count, infos, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                       nvmlProcessInfo_v2_t* infos) {
  return compute_processes(device, count, infos, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                       nvmlProcessInfo_t* infos) {
  return compute_processes(device, count, infos, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v1_t*) {
  return no_processes(device, count, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_v2_t*) {
  return no_processes(device, count, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t*) {
  return no_processes(device, count, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                       nvmlProcessInfo_v1_t*) {
  return no_processes(device, count, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                          nvmlProcessInfo_v2_t*) {
  return no_processes(device, count, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                          nvmlProcessInfo_t*) {
  return no_processes(device, count, __func__);
}

KV_NVML_EXPORT nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  return with_device(device, [&](const View& view) {
    if (list == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode >= NVML_PROCESS_MODE_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    std::vector<ProcessUse> uses;
    if (list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL) {
      uses = view.machine.processes(view.gpu);
    }
    return put_list(uses, &list->numProcArrayEntries, list->procArray,
                    [](nvmlProcessDetail_v1_t& out, const ProcessUse& use) { fill(out, use); });
  });
}

KV_NVML_EXPORT nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                               unsigned int* count, unsigned long long last_seen_us) {
  return with_device(device, [&](const View& view) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned long long now = unix_us();
    std::vector<Busy> busy = last_seen_us < now ? busy_processes(view) : std::vector<Busy>();
    if (busy.empty()) {
      *count = 0;
      return NVML_ERROR_NOT_FOUND;
    }
    return put_list(busy, count, samples, [&](nvmlProcessUtilizationSample_t& out, const Busy& one) {
      out = nvmlProcessUtilizationSample_t{one.pid, now, one.percent, one.percent / 2, 0, 0};
    });
  });
}

KV_NVML_EXPORT nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* info) {
  return with_device(device, [&](const View& view) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned long long now = unix_us();
    std::vector<Busy> busy = busy_processes(view);
    if (busy.empty()) {
      info->processSamplesCount = 0;
      return NVML_ERROR_NOT_FOUND;
    }
    return put_list(busy, &info->processSamplesCount, info->procUtilArray,
                    [&](nvmlProcessUtilizationInfo_v1_t& out, const Busy& one) {
                      out = nvmlProcessUtilizationInfo_v1_t{now, one.pid, one.percent, one.percent / 2, 0, 0, 0, 0};
                    });
  });
}
