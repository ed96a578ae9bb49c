// NVML: events. A set delivers the Xids that vram-sim raises on its devices after they were registered.
#include <ctime>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "simgpu/gpu_clock.h"
#include "simgpu/nvml_state.h"

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

struct nvmlEventSet_st {
  std::mutex mutex;
  uint64_t seen = 0;      // the last event of the control page that this set has looked at
  uint32_t gpu_mask = 0;  // devices registered for Xids
};

namespace {

constexpr unsigned long long kSupported = nvmlEventTypeXidCriticalError;

struct Sets {
  std::mutex mutex;
  std::unordered_map<nvmlEventSet_t, std::shared_ptr<nvmlEventSet_st>> live;
};
Sets& sets() {
  static Sets* const one = new Sets;  // never destroyed: a waiting thread may outlive main
  return *one;
}

std::shared_ptr<nvmlEventSet_st> find_set(nvmlEventSet_t handle) {
  std::lock_guard guard(sets().mutex);
  auto it = sets().live.find(handle);
  return it == sets().live.end() ? nullptr : it->second;
}

// The set's next event; false if there is none yet.
bool next_event(nvmlEventSet_st& set, nvmlEventData_t& out) {
  std::lock_guard guard(set.mutex);
  ControlPage& page = control();
  uint64_t written = page.xids.load();
  if (written > set.seen + kXidRing) set.seen = written - kXidRing;  // a reader that slow loses the oldest
  while (set.seen < written) {
    const XidEvent& event = page.ring[(set.seen + 1) % kXidRing];
    if (event.seq.load(std::memory_order_acquire) != set.seen + 1) return false;  // being written
    ++set.seen;
    if ((set.gpu_mask >> event.gpu & 1) == 0) continue;
    out = nvmlEventData_t{handle_of(event.gpu), nvmlEventTypeXidCriticalError, event.xid, 0xFFFFFFFFU, 0xFFFFFFFFU};
    return true;
  }
  return false;
}

nvmlReturn_t wait_event(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms, const char* call) {
  return with_machine(
      [&](Machine&) {
        std::shared_ptr<nvmlEventSet_st> set = find_set(handle);
        if (!set || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        uint64_t until = real_now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
        while (!next_event(*set, *data)) {
          if (real_now_ns() >= until) return NVML_ERROR_TIMEOUT;
          timespec rest{0, 2000000};
          nanosleep(&rest, nullptr);
        }
        return NVML_SUCCESS;
      },
      call);
}

}  // namespace

KV_NVML_EXPORT nvmlEventSetCreate(nvmlEventSet_t* out) {
  return with_machine([&](Machine&) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    auto set = std::make_shared<nvmlEventSet_st>();
    set->seen = control().xids.load();
    std::lock_guard guard(sets().mutex);
    *out = set.get();
    sets().live[set.get()] = set;
    return NVML_SUCCESS;
  });
}

KV_NVML_EXPORT nvmlEventSetFree(nvmlEventSet_t set) {
  return with_machine([&](Machine&) {
    std::lock_guard guard(sets().mutex);
    return sets().live.erase(set) == 1 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
  });
}

KV_NVML_EXPORT nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  return give(device, types, [](const View&) { return kSupported; });
}

KV_NVML_EXPORT nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle) {
  return with_device(device, [&](const View& view) {
    std::shared_ptr<nvmlEventSet_st> set = find_set(handle);
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    if ((types & ~kSupported) != 0) return NVML_ERROR_NOT_SUPPORTED;
    std::lock_guard guard(set->mutex);
    if (set->gpu_mask == 0) set->seen = control().xids.load();
    if ((types & kSupported) != 0) set->gpu_mask |= 1U << view.gpu;
    return NVML_SUCCESS;
  });
}

KV_NVML_EXPORT nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  return wait_event(set, data, timeout_ms, __func__);
}
KV_NVML_EXPORT nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  return wait_event(set, data, timeout_ms, __func__);
}
