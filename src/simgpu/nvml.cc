// NVML: start and end, the system, and how a device is found.
#include <pthread.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "simgpu/nvml_state.h"
#include "simgpu/version.h"

namespace kvram::simgpu {
namespace {

struct Library {
  std::mutex mutex;
  unsigned refs = 0;
  std::shared_ptr<Machine> machine;
};

Library& library() {
  static Library* const one = new Library;  // never destroyed: other threads may still call at exit
  return *one;
}

std::array<nvmlDevice_st, kMaxGpus> g_devices = [] {
  std::array<nvmlDevice_st, kMaxGpus> devices{};
  for (uint32_t i = 0; i < kMaxGpus; ++i) devices[i].index = i;
  return devices;
}();

// The child's copies of the mapping belong to the parent's Machine: left alone, and opened anew at the next call.
void after_fork() {
  Library& lib = library();
  new (&lib.mutex) std::mutex;
  new (&lib.machine) std::shared_ptr<Machine>;
}

nvmlReturn_t open_machine(Library& lib) {
  auto opened = Machine::open(sim_folder(), spec_from_environment(), false);
  if (!opened) return NVML_ERROR_DRIVER_NOT_LOADED;
  lib.machine = std::move(*opened);
  return NVML_SUCCESS;
}

nvmlReturn_t init() {
  Library& lib = library();
  std::lock_guard guard(lib.mutex);
  static const int once = pthread_atfork(nullptr, nullptr, after_fork);
  (void)once;
  if (!lib.machine) {
    if (nvmlReturn_t r = open_machine(lib); r != NVML_SUCCESS) return r;
  }
  ++lib.refs;
  return NVML_SUCCESS;
}

}  // namespace

std::shared_ptr<Machine> watched_machine() {
  Library& lib = library();
  std::lock_guard guard(lib.mutex);
  if (lib.refs == 0) return nullptr;
  if (lib.machine && lib.machine->replaced()) lib.machine.reset();
  if (!lib.machine) open_machine(lib);
  return lib.machine;
}

bool nvml_initialised() {
  Library& lib = library();
  std::lock_guard guard(lib.mutex);
  return lib.refs != 0;
}

nvmlDevice_t handle_of(uint32_t gpu) { return &g_devices[gpu % kMaxGpus]; }

uint32_t index_of(nvmlDevice_t device) {
  for (const nvmlDevice_st& known : g_devices) {
    if (&known == device) return known.index;
  }
  return kMaxGpus;
}

nvmlReturn_t put_text(std::string_view text, char* out, unsigned int length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return NVML_SUCCESS;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): the rest are C entry points

// What a stub answers; counted for `vram-sim show`.
extern "C" int kvsim_unsupported(const char* name) {
  if (!nvml_initialised()) return NVML_ERROR_UNINITIALIZED;
  count_unsupported(name);
  return NVML_ERROR_NOT_SUPPORTED;
}

KV_NVML_EXPORT nvmlInit() {
  KVSIM_FAULT("nvmlInit", nvmlReturn_t);
  return init();
}
KV_NVML_EXPORT nvmlInit_v2() {
  KVSIM_FAULT("nvmlInit_v2", nvmlReturn_t);
  return init();
}
KV_NVML_EXPORT nvmlInitWithFlags(unsigned int flags) {
  KVSIM_FAULT("nvmlInitWithFlags", nvmlReturn_t);
  if ((flags & ~static_cast<unsigned>(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) != 0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return init();
}

KV_NVML_EXPORT nvmlShutdown() {
  Library& lib = library();
  std::lock_guard guard(lib.mutex);
  if (lib.refs == 0) return NVML_ERROR_UNINITIALIZED;
  if (--lib.refs == 0) lib.machine.reset();
  return NVML_SUCCESS;
}

KV_NVML_EXPORT nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return with_machine([&](Machine&) { return put_text(kDriverVersion, version, length); });
}
KV_NVML_EXPORT nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  // Works without initialisation, as on the genuine library.
  return put_text(kNvmlVersion, version, length);
}
KV_NVML_EXPORT nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}
KV_NVML_EXPORT nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

KV_NVML_EXPORT nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  return with_machine([&](Machine&) -> nvmlReturn_t {
    if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    std::string path = "/proc/" + std::to_string(pid) + "/cmdline";
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return NVML_ERROR_NOT_FOUND;
    std::array<char, 4096> text{};
    size_t got = std::fread(text.data(), 1, text.size() - 1, file);
    std::fclose(file);
    if (got == 0) return NVML_ERROR_NOT_FOUND;
    // The first argument; cut short where the caller has less room.
    std::string_view first(text.data());
    return put_text(first.substr(0, length - 1), name, length);
  });
}

KV_NVML_EXPORT nvmlDeviceGetCount_v2(unsigned int* count) {
  return with_machine([&](Machine& machine) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = machine.gpu_count();
    return NVML_SUCCESS;
  });
}
KV_NVML_EXPORT nvmlDeviceGetCount(unsigned int* count) { return nvmlDeviceGetCount_v2(count); }

KV_NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return with_machine([&](Machine& machine) {
    if (device == nullptr || index >= machine.gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu_lost(index)) return NVML_ERROR_GPU_IS_LOST;
    *device = handle_of(index);
    return NVML_SUCCESS;
  });
}
KV_NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

namespace {
struct BusId {
  unsigned long domain = 0;
  unsigned long bus = 0;
  unsigned long slot = 0;
};

// "domain:bus:device.function", the domain with any number of digits or left out.
bool read_bus_id(const char* text, BusId* out) {
  std::array<unsigned long, 3> parts{};
  size_t count = 0;
  for (const char* at = text; count < parts.size(); ++at) {
    char* end = nullptr;
    parts[count] = std::strtoul(at, &end, 16);
    if (end == at) return false;
    ++count;
    at = end;
    if (*at != ':') break;
  }
  if (count < 2) return false;
  *out = count == 3 ? BusId{parts[0], parts[1], parts[2]} : BusId{0, parts[0], parts[1]};
  return true;
}

// The device that `matches`; NVML_ERROR_NOT_FOUND if none does.
template <typename F>
nvmlReturn_t find_device(nvmlDevice_t* device, F&& matches, const char* call) {
  return with_machine(
      [&](Machine& machine) {
        if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        for (uint32_t g = 0; g < machine.gpu_count(); ++g) {
          if (!matches(machine.gpu(g))) continue;
          if (gpu_lost(g)) return NVML_ERROR_GPU_IS_LOST;
          *device = handle_of(g);
          return NVML_SUCCESS;
        }
        return NVML_ERROR_NOT_FOUND;
      },
      call);
}
}  // namespace

KV_NVML_EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  auto same = [&](const GpuInfo& info) { return strcasecmp(uuid_text(info.uuid).c_str(), uuid) == 0; };
  return find_device(device, same, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  auto same = [&](const GpuInfo& info) { return std::memcmp(info.uuid, uuid->value.bytes, sizeof info.uuid) == 0; };
  return find_device(device, same, __func__);
}

KV_NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  if (bus_id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  BusId id;
  if (!read_bus_id(bus_id, &id)) return NVML_ERROR_INVALID_ARGUMENT;
  auto same = [&](const GpuInfo& info) {
    return id.domain == 0 && id.slot == 0 && static_cast<int32_t>(id.bus) == info.pci_bus;
  };
  return find_device(device, same, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
