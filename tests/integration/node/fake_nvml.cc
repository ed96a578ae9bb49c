// A management library whose figures a test writes into a file, for tests of the daemon alone. Lines of `figures` in
// KUBE_VRAM_SIM_DIR: "gpu TOTAL RESERVED NAME", "process GPU PID BYTES" (listed while the pid lives), "other GPU BYTES"
// (used by nobody listed), "ghost GPU PID BYTES" (listed also when dead), "lost GPU".
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <cstdlib>
#include <string>
#include <vector>

#define KV_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Process {
  unsigned pid;
  unsigned long long bytes;
};
struct FakeGpu {
  unsigned long long total = 0;
  unsigned long long reserved = 0;
  unsigned long long other = 0;
  std::string name;
  bool lost = false;
  std::vector<Process> processes;
};

std::vector<FakeGpu> read_figures() {
  std::vector<FakeGpu> gpus;
  const char* folder = getenv("KUBE_VRAM_SIM_DIR");
  FILE* file = fopen((std::string(folder == nullptr ? "." : folder) + "/figures").c_str(), "re");
  if (file == nullptr) return gpus;
  char line[256];
  while (fgets(line, sizeof line, file) != nullptr) {
    FakeGpu gpu;
    char name[128] = "";
    unsigned index = 0;
    unsigned pid = 0;
    unsigned long long bytes = 0;
    if (sscanf(line, "gpu %llu %llu %127[^\n]", &gpu.total, &gpu.reserved, name) == 3) {
      gpu.name = name;
      gpus.push_back(gpu);
    } else if (sscanf(line, "process %u %u %llu", &index, &pid, &bytes) == 3 && index < gpus.size()) {
      if (kill(static_cast<pid_t>(pid), 0) == 0) gpus[index].processes.push_back({pid, bytes});
    } else if (sscanf(line, "ghost %u %u %llu", &index, &pid, &bytes) == 3 && index < gpus.size()) {
      gpus[index].processes.push_back({pid, bytes});
    } else if (sscanf(line, "other %u %llu", &index, &bytes) == 2 && index < gpus.size()) {
      gpus[index].other = bytes;
    } else if (sscanf(line, "lost %u", &index) == 1 && index < gpus.size()) {
      gpus[index].lost = true;
    }
  }
  fclose(file);
  return gpus;
}

size_t index_of(nvmlDevice_t device) { return reinterpret_cast<size_t>(device) - 1; }

}  // namespace

KV_EXPORT nvmlReturn_t nvmlInit_v2() { return read_figures().empty() ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS; }
KV_EXPORT nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
KV_EXPORT const char* nvmlErrorString(nvmlReturn_t status) {
  return status == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : status == NVML_SUCCESS ? "Success" : "Driver Not Loaded";
}
KV_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned length) {
  snprintf(text, length, "580.00-test");
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(read_figures().size());
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(static_cast<size_t>(index) + 1);
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned length) {
  snprintf(text, length, "GPU-00000000-0000-0000-0000-%012zx", index_of(device) + 1);
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned length) {
  snprintf(text, length, "%s", read_figures()[index_of(device)].name.c_str());
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  std::vector<FakeGpu> gpus = read_figures();
  if (index_of(device) >= gpus.size() || gpus[index_of(device)].lost) return NVML_ERROR_GPU_IS_LOST;
  const FakeGpu& gpu = gpus[index_of(device)];
  memory->total = gpu.total;
  memory->reserved = gpu.reserved;
  memory->used = gpu.other;
  for (const Process& p : gpu.processes) memory->used += p.bytes;
  memory->free = gpu.total - gpu.reserved - memory->used;
  return NVML_SUCCESS;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  nvmlMemory_v2_t full{};
  nvmlReturn_t status = nvmlDeviceGetMemoryInfo_v2(device, &full);
  *memory = {full.total, full.free, full.used + full.reserved};
  return status;
}
KV_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                               nvmlProcessInfo_t* infos) {
  std::vector<FakeGpu> gpus = read_figures();
  if (index_of(device) >= gpus.size() || gpus[index_of(device)].lost) return NVML_ERROR_GPU_IS_LOST;
  const std::vector<Process>& processes = gpus[index_of(device)].processes;
  bool fits = *count >= processes.size();
  *count = static_cast<unsigned>(processes.size());
  if (!fits) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < processes.size(); ++i) {
    memset(&infos[i], 0, sizeof infos[i]);
    infos[i].pid = processes[i].pid;
    infos[i].usedGpuMemory = processes[i].bytes;
  }
  return NVML_SUCCESS;
}
