// Which GPUs a monitoring tool sees, and how much memory they have: those of the budget, and its limit.
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "guard/elf.h"
#include "guard/nvml_state.h"
#include "lease/embed.h"

namespace kvram::guard {

void* g_nvml[nvml::kCount];

namespace {

nvmlReturn_t missing() { return NVML_ERROR_FUNCTION_NOT_FOUND; }

#define KV_ROW(symbol) #symbol,
const char* const kNames[] = {KV_NVML_RESOLVED(KV_ROW)};
#undef KV_ROW

struct Observer {
  uint32_t alive;  // 0 after fork
  Client client;
};
Observer* g_observer;
Observer g_fallback;
bool g_wiped;
int g_pid;

__attribute__((constructor)) void load() {
  void* handle = open_real(reinterpret_cast<const void*>(&missing), lease::kRealNvmlName);
  for (unsigned i = 0; i < nvml::kCount; ++i) {
    g_nvml[i] = handle != nullptr ? dlsym(handle, kNames[i]) : nullptr;
    if (g_nvml[i] == nullptr) g_nvml[i] = reinterpret_cast<void*>(&missing);
  }
  g_observer = static_cast<Observer*>(map_wiped_on_fork(sizeof(Observer), &g_wiped));
  if (g_observer == nullptr) g_observer = &g_fallback;
  g_observer->alive = 1;
  g_pid = static_cast<int>(getpid());
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 32);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// "GPU-01234567-89ab-cdef-0123-456789abcdef" as 16 bytes; false for anything else, a MIG device for instance.
bool parse_uuid(const char* text, uint8_t (&uuid)[16]) {
  if (strncmp(text, "GPU-", 4) != 0) return false;
  unsigned digits = 0;
  memset(uuid, 0, sizeof uuid);
  for (text += 4; *text != 0; ++text) {
    if (*text == '-') continue;
    const int value = hex(*text);
    if (value < 0 || digits == 32) return false;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | value);
    ++digits;
  }
  return digits == 32;
}

}  // namespace

Facts facts() { return Facts{0, 0}; }

Client* budget() {
  if (g_observer->alive == 0 || (!g_wiped && g_pid != static_cast<int>(getpid()))) {
    if (!g_wiped) memset(static_cast<void*>(g_observer), 0, sizeof *g_observer);
    g_pid = static_cast<int>(getpid());
    Client::close_inherited();
    g_observer->alive = 1;
  }
  return g_observer->client.attach(true) ? &g_observer->client : nullptr;
}

int gpu_of(const Client& client, nvmlDevice_t device) {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {};
  uint8_t uuid[16];
  if (NVML_REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid)) return kNoGpu;
  return client.gpu_of_uuid(uuid);
}

bool is_member(const Client& client, unsigned pid) {
  if (pid == static_cast<unsigned>(getpid())) return true;
  const uint32_t* pids = client.pids();
  const uint32_t slots = pids != nullptr ? __atomic_load_n(&client.page()->slots_used, __ATOMIC_ACQUIRE) : 0;
  for (uint32_t i = 0; i < slots && i < lease::kMaxSlots; ++i) {
    if (__atomic_load_n(&pids[i], __ATOMIC_RELAXED) == pid) return true;
  }
  return false;
}

}  // namespace kvram::guard

using namespace kvram::guard;

namespace {

// The budget's n-th GPU in the driver's order; null behind the last. *count: how many there are.
nvmlDevice_t nth(const Client& client, unsigned n, unsigned* count) {
  unsigned all = 0;
  nvmlDevice_t found = nullptr;
  *count = 0;
  if (NVML_REAL(nvmlDeviceGetCount_v2)(&all) != NVML_SUCCESS) return nullptr;
  for (unsigned i = 0; i < all; ++i) {
    nvmlDevice_t device = nullptr;
    if (NVML_REAL(nvmlDeviceGetHandleByIndex_v2)(i, &device) != NVML_SUCCESS || gpu_of(client, device) == kNoGpu)
      continue;
    if ((*count)++ == n) found = device;
  }
  return found;
}

template <typename Call>
nvmlReturn_t count_devices(unsigned* count, Call real) {
  const nvmlReturn_t r = real(count);
  const Client* client = r == NVML_SUCCESS && count != nullptr ? budget() : nullptr;
  if (client != nullptr) nth(*client, 0, count);
  return r;
}

template <typename Call>
nvmlReturn_t by_index(unsigned index, nvmlDevice_t* device, Call real) {
  const Client* client = device != nullptr ? budget() : nullptr;
  unsigned count = 0;
  if (client == nullptr) return real(index, device);
  const nvmlReturn_t alive = NVML_REAL(nvmlDeviceGetCount_v2)(&count);
  if (alive != NVML_SUCCESS) return alive;
  nvmlDevice_t found = nth(*client, index, &count);
  if (found == nullptr) return index < count ? NVML_ERROR_UNKNOWN : NVML_ERROR_INVALID_ARGUMENT;
  *device = found;
  return NVML_SUCCESS;
}

// A GPU that is named some other way is not there unless the budget has it.
nvmlReturn_t only_ours(nvmlReturn_t r, nvmlDevice_t* device) {
  const Client* client = r == NVML_SUCCESS && device != nullptr ? budget() : nullptr;
  if (client == nullptr || gpu_of(*client, *device) != kNoGpu) return r;
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {};
  if (NVML_REAL(nvmlDeviceGetUUID)(*device, text, sizeof text) == NVML_SUCCESS && strncmp(text, "MIG-", 4) == 0)
    return r;
  *device = nullptr;
  return NVML_ERROR_NOT_FOUND;
}

template <typename Memory>
nvmlReturn_t memory_info(nvmlReturn_t r, nvmlDevice_t device, Memory* memory) {
  const Client* client = r == NVML_SUCCESS && memory != nullptr ? budget() : nullptr;
  const int gpu = client != nullptr ? gpu_of(*client, device) : kNoGpu;
  if (gpu == kNoGpu) return r;
  const uint64_t left = kvram::lease::to_bytes(client->free_units(gpu));
  memory->total = kvram::lease::to_bytes(client->page()->gpu[gpu].limit_units);
  if (left < memory->free) memory->free = left;
  memory->used = memory->total > memory->free ? memory->total - memory->free : 0;
  return r;
}

}  // namespace

KV_NVML_EXPORT nvmlDeviceGetCount_v2(unsigned int* count) {
  return count_devices(count, NVML_REAL(nvmlDeviceGetCount_v2));
}
KV_NVML_EXPORT nvmlDeviceGetCount(unsigned int* count) { return count_devices(count, NVML_REAL(nvmlDeviceGetCount)); }
KV_NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device, NVML_REAL(nvmlDeviceGetHandleByIndex_v2));
}
KV_NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device, NVML_REAL(nvmlDeviceGetHandleByIndex));
}
KV_NVML_EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return only_ours(NVML_REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}
KV_NVML_EXPORT nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  return only_ours(NVML_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}
KV_NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* device) {
  return only_ours(NVML_REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus, device), device);
}
KV_NVML_EXPORT nvmlDeviceGetHandleByPciBusId(const char* bus, nvmlDevice_t* device) {
  return only_ours(NVML_REAL(nvmlDeviceGetHandleByPciBusId)(bus, device), device);
}
KV_NVML_EXPORT nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  return only_ours(NVML_REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}
KV_NVML_EXPORT nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  const nvmlReturn_t r = NVML_REAL(nvmlDeviceGetIndex)(device, index);
  const Client* client = r == NVML_SUCCESS && index != nullptr ? budget() : nullptr;
  if (client == nullptr) return r;
  unsigned count = 1;
  for (unsigned i = 0; i < count; ++i) {
    if (nth(*client, i, &count) != device) continue;
    *index = i;
    return r;
  }
  return r;
}
KV_NVML_EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return memory_info(NVML_REAL(nvmlDeviceGetMemoryInfo)(device, memory), device, memory);
}
KV_NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const nvmlReturn_t r = memory_info(NVML_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory), device, memory);
  const Client* client = r == NVML_SUCCESS && memory != nullptr ? budget() : nullptr;
  // The driver's reserve is not the budget's: total = used + free, reserved none.
  if (client != nullptr && gpu_of(*client, device) != kNoGpu) memory->reserved = 0;
  return r;
}
