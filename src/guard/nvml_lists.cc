// Process lists: those of the budget's own processes, in every version of the call.
#include "guard/nvml_state.h"

using namespace kvram::guard;

namespace {

unsigned pid_of(unsigned pid) { return pid; }
template <typename Info>
unsigned pid_of(const Info& info) {
  return info.pid;
}

// `real(&count, buffer)` has NVML's way with sizes: too few, and it says how many there are. So has this.
template <typename Info, typename Call>
nvmlReturn_t filter(unsigned* count, Info* infos, Call real) {
  const Client* client = count != nullptr ? budget() : nullptr;
  if (client == nullptr) return real(count, infos);
  unsigned all = 0;
  nvmlReturn_t r = real(&all, static_cast<Info*>(nullptr));
  if (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE) return r;
  all += 64;  // processes that start in between
  const size_t bytes = sizeof(Info) * all;
  Info* buffer = static_cast<Info*>(map_pages(bytes));
  if (buffer == nullptr) return NVML_ERROR_MEMORY;
  r = real(&all, buffer);
  if (r == NVML_SUCCESS) {
    unsigned ours = 0;
    for (unsigned i = 0; i < all; ++i) {
      if (!is_member(*client, pid_of(buffer[i]))) continue;
      if (infos != nullptr && ours < *count) infos[ours] = buffer[i];
      ++ours;
    }
    if (ours > *count || (ours != 0 && infos == nullptr)) r = NVML_ERROR_INSUFFICIENT_SIZE;
    *count = ours;
  }
  unmap_pages(buffer, bytes);
  return r;
}

}  // namespace

#define KV_LIST(name, Info)                                                                             \
  KV_NVML_EXPORT name(nvmlDevice_t device, unsigned int* count, Info* infos) {                          \
    return filter(count, infos, [=](unsigned* n, Info* to) { return NVML_REAL(name)(device, n, to); }); \
  }
KV_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
KV_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
KV_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
KV_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
KV_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
KV_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
KV_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
KV_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
KV_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
KV_LIST(nvmlDeviceGetAccountingPids, unsigned int)
#undef KV_LIST

KV_NVML_EXPORT nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  const auto real = NVML_REAL(nvmlDeviceGetRunningProcessDetailList);
  if (list == nullptr) return real(device, list);
  return filter(&list->numProcArrayEntries, list->procArray, [=](unsigned* n, nvmlProcessDetail_v1_t* to) {
    nvmlProcessDetailList_t inner = *list;
    inner.numProcArrayEntries = *n;
    inner.procArray = to;
    const nvmlReturn_t r = real(device, &inner);
    *n = inner.numProcArrayEntries;
    return r;
  });
}

KV_NVML_EXPORT nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                               unsigned int* count, unsigned long long since) {
  return filter(count, samples, [=](unsigned* n, nvmlProcessUtilizationSample_t* to) {
    return NVML_REAL(nvmlDeviceGetProcessUtilization)(device, to, n, since);
  });
}

KV_NVML_EXPORT nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* info) {
  const auto real = NVML_REAL(nvmlDeviceGetProcessesUtilizationInfo);
  if (info == nullptr) return real(device, info);
  return filter(&info->processSamplesCount, info->procUtilArray, [=](unsigned* n, nvmlProcessUtilizationInfo_v1_t* to) {
    nvmlProcessesUtilizationInfo_t inner = *info;
    inner.processSamplesCount = *n;
    inner.procUtilArray = to;
    const nvmlReturn_t r = real(device, &inner);
    *n = inner.processSamplesCount;
    return r;
  });
}
