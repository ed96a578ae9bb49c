#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <nvml.h>

#include <algorithm>
#include <map>

#include "gpu/source.h"

namespace kvram::gpu {
namespace {

struct Functions {
  nvmlReturn_t (*init)();
  nvmlReturn_t (*shutdown)();
  const char* (*error_string)(nvmlReturn_t);
  nvmlReturn_t (*driver_version)(char*, unsigned);
  nvmlReturn_t (*nvml_version)(char*, unsigned);
  nvmlReturn_t (*cuda_version)(int*);
  nvmlReturn_t (*count)(unsigned*);
  nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t*);
  nvmlReturn_t (*uuid)(nvmlDevice_t, char*, unsigned);
  nvmlReturn_t (*name)(nvmlDevice_t, char*, unsigned);
  nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t*);
  nvmlReturn_t (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t*);
  nvmlReturn_t (*compute)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);
  nvmlReturn_t (*graphics)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);
  nvmlReturn_t (*mps)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);
};

template <typename F>
bool load(void* library, const char* name, F& into) {
  into = reinterpret_cast<F>(dlsym(library, name));
  return into != nullptr;
}

// The first name that is missing among those that nothing works without.
const char* load_all(void* library, Functions& f) {
  if (!load(library, "nvmlInit_v2", f.init)) return "nvmlInit_v2";
  if (!load(library, "nvmlShutdown", f.shutdown)) return "nvmlShutdown";
  if (!load(library, "nvmlErrorString", f.error_string)) return "nvmlErrorString";
  if (!load(library, "nvmlDeviceGetCount_v2", f.count)) return "nvmlDeviceGetCount_v2";
  if (!load(library, "nvmlDeviceGetHandleByIndex_v2", f.by_index)) return "nvmlDeviceGetHandleByIndex_v2";
  if (!load(library, "nvmlDeviceGetUUID", f.uuid)) return "nvmlDeviceGetUUID";
  if (!load(library, "nvmlDeviceGetName", f.name)) return "nvmlDeviceGetName";
  if (!load(library, "nvmlDeviceGetMemoryInfo", f.memory)) return "nvmlDeviceGetMemoryInfo";
  if (!load(library, "nvmlDeviceGetComputeRunningProcesses_v3", f.compute)) {
    return "nvmlDeviceGetComputeRunningProcesses_v3";
  }
  load(library, "nvmlDeviceGetMemoryInfo_v2", f.memory_v2);
  load(library, "nvmlDeviceGetGraphicsRunningProcesses_v3", f.graphics);
  load(library, "nvmlDeviceGetMPSComputeRunningProcesses_v3", f.mps);
  load(library, "nvmlSystemGetDriverVersion", f.driver_version);
  load(library, "nvmlSystemGetNVMLVersion", f.nvml_version);
  load(library, "nvmlSystemGetCudaDriverVersion_v2", f.cuda_version);
  return nullptr;
}

class Nvml final : public Source {
 public:
  Nvml(void* library, const Functions& functions) : library_(library), f_(functions) {}
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() override {
    f_.shutdown();
    dlclose(library_);
  }

  const Inventory& inventory() const override { return inventory_; }

  Result<void> take_inventory() {
    char text[128] = "";
    if (f_.driver_version != nullptr && f_.driver_version(text, sizeof text) == NVML_SUCCESS) inventory_.driver = text;
    if (f_.nvml_version != nullptr && f_.nvml_version(text, sizeof text) == NVML_SUCCESS) inventory_.nvml = text;
    if (f_.cuda_version != nullptr) f_.cuda_version(&inventory_.cuda);
    link_map* map = nullptr;
    if (dlinfo(library_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) inventory_.library = map->l_name;
    unsigned count = 0;
    if (nvmlReturn_t status = f_.count(&count); status != NVML_SUCCESS) return refuse("the count of GPUs", status);
    for (unsigned i = 0; i < count; ++i) add_gpu(i);
    return {};
  }

  Result<std::vector<Measurement>> measure() override {
    std::vector<Measurement> all;
    bool any = inventory_.gpus.empty();
    for (size_t i = 0; i < handles_.size(); ++i) {
      all.push_back(measure_one(i));
      any = any || all.back().ok;
    }
    if (!any) {
      return fail(ErrorCode::kDriverLost,
                  fmt::format("NVML does not answer for any of the {} GPUs ({}). Nothing new is granted until it does.",
                              all.size(), all.front().health));
    }
    return all;
  }

 private:
  std::unexpected<Error> refuse(const char* what, nvmlReturn_t status) const {
    return fail(ErrorCode::kDriverMissing,
                fmt::format("NVML does not tell {}: {}. Check `nvidia-smi`; on a machine without a GPU add --sim 1xA10 "
                            "for the simulated driver.",
                            what, f_.error_string(status)));
  }

  // A GPU that does not answer stays in the list, so that indexes agree with other tools.
  void add_gpu(unsigned index) {
    model::Gpu gpu;
    gpu.index = static_cast<int>(index);
    nvmlDevice_t handle = nullptr;
    char text[128] = "";
    nvmlReturn_t status = f_.by_index(index, &handle);
    if (status == NVML_SUCCESS) status = f_.uuid(handle, text, sizeof text);
    if (status == NVML_SUCCESS && !model::parse_uuid(text, gpu.uuid)) status = NVML_ERROR_UNKNOWN;
    if (status == NVML_SUCCESS && f_.name(handle, text, sizeof text) == NVML_SUCCESS) gpu.name = text;
    nvmlMemory_v2_t memory{};
    if (status == NVML_SUCCESS) status = read_memory(handle, memory);
    gpu.total = Bytes(static_cast<int64_t>(memory.total));
    gpu.reserved = Bytes(static_cast<int64_t>(memory.reserved));
    gpu.healthy = status == NVML_SUCCESS;
    gpu.health = gpu.healthy ? "ok" : f_.error_string(status);
    inventory_.gpus.push_back(std::move(gpu));
    handles_.push_back(handle);
  }

  nvmlReturn_t read_memory(nvmlDevice_t handle, nvmlMemory_v2_t& memory) const {
    memory.version = nvmlMemory_v2;
    if (f_.memory_v2 != nullptr && f_.memory_v2(handle, &memory) == NVML_SUCCESS) return NVML_SUCCESS;
    nvmlMemory_t old{};
    nvmlReturn_t status = f_.memory(handle, &old);  // counts the reserve as used
    memory.total = old.total;
    memory.free = old.free;
    memory.used = old.used;
    memory.reserved = 0;
    return status;
  }

  using List = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);
  nvmlReturn_t add_processes(nvmlDevice_t handle, List list, std::map<int32_t, uint64_t>& bytes) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      auto count = static_cast<unsigned>(buffer_.size());
      nvmlReturn_t status = list(handle, &count, buffer_.data());
      if (status == NVML_ERROR_INSUFFICIENT_SIZE) {
        buffer_.resize(count + 64);
        continue;
      }
      if (status != NVML_SUCCESS) return status;
      for (unsigned i = 0; i < count && i < buffer_.size(); ++i) {
        const nvmlProcessInfo_t& info = buffer_[i];
        uint64_t used =
            info.usedGpuMemory == static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE) ? 0 : info.usedGpuMemory;
        uint64_t& sum = bytes[static_cast<int32_t>(info.pid)];
        sum = std::max(sum, used);  // one that computes and draws is in both lists, with all it has
      }
      return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }

  Measurement measure_one(size_t index) {
    Measurement m;
    nvmlDevice_t handle = handles_[index];
    nvmlMemory_v2_t memory{};
    nvmlReturn_t status = handle == nullptr ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    // The sum on both sides of the lists, and the smaller one counts: what is taken or freed in between is no foreign
    // memory.
    nvmlMemory_v2_t before{};
    if (status == NVML_SUCCESS) status = read_memory(handle, before);
    std::map<int32_t, uint64_t> bytes;
    if (status == NVML_SUCCESS) status = add_processes(handle, f_.compute, bytes);
    if (status == NVML_SUCCESS && f_.graphics != nullptr) add_processes(handle, f_.graphics, bytes);
    if (status == NVML_SUCCESS && f_.mps != nullptr) add_processes(handle, f_.mps, bytes);
    if (status == NVML_SUCCESS) status = read_memory(handle, memory);
    m.ok = status == NVML_SUCCESS;
    m.health = m.ok ? "ok" : f_.error_string(status);
    if (!m.ok) return m;
    m.used = Bytes(static_cast<int64_t>(std::min(before.used, memory.used)));
    m.free = Bytes(static_cast<int64_t>(memory.free));
    for (auto [pid, used] : bytes) m.processes.push_back({pid, Bytes(static_cast<int64_t>(used))});
    return m;
  }

  void* library_;
  Functions f_;
  Inventory inventory_;
  std::vector<nvmlDevice_t> handles_;
  std::vector<nvmlProcessInfo_t> buffer_{64};
};

}  // namespace

Result<std::unique_ptr<Source>> open_nvml(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return fail(
        ErrorCode::kDriverMissing,
        fmt::format("NVIDIA's management library cannot be loaded: {}. On a machine without a GPU add --sim 1xA10 "
                    "for the simulated driver.",
                    dlerror()));
  }
  Functions functions{};
  if (const char* missing = load_all(handle, functions); missing != nullptr) {
    dlclose(handle);
    return fail(ErrorCode::kDriverMissing,
                fmt::format("{} lacks {}: the driver is older than this program needs (450 or newer). On a machine "
                            "without a GPU add --sim 1xA10 for the simulated driver.",
                            library, missing));
  }
  if (nvmlReturn_t status = functions.init(); status != NVML_SUCCESS) {
    std::string says = functions.error_string(status);
    dlclose(handle);
    return fail(
        ErrorCode::kDriverMissing,
        fmt::format("NVML does not start: {}. `nvidia-smi` should show the same fault. On a machine without a GPU "
                    "add --sim 1xA10 for the simulated driver.",
                    says));
  }
  auto nvml = std::make_unique<Nvml>(handle, functions);
  if (Result<void> taken = nvml->take_inventory(); !taken) return std::unexpected(taken.error());
  return nvml;
}

}  // namespace kvram::gpu
