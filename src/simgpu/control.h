// The control page of the simulated machine: faults on demand, Xid events and the count of calls that are not modelled.
// One file `control` in KUBE_VRAM_SIM_DIR, mapped by every process with a simulated library and by vram-sim; all zero
// means no fault. Every field is read and written atomically, so no call takes a lock here. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvram::simgpu {

constexpr uint32_t kControlGpus = 16;
constexpr uint32_t kFaultRules = 64;
constexpr uint32_t kXidRing = 256;
constexpr uint32_t kCallCounters = 512;
constexpr uint32_t kCallNameBytes = 56;

enum class FaultKind : uint32_t { kNone = 0, kSlow = 1, kHang = 2, kError = 3 };

struct FaultRule {
  std::atomic<uint32_t> kind;       // FaultKind, written last
  std::atomic<uint32_t> remaining;  // calls it still applies to; UINT32_MAX: for ever
  std::atomic<uint64_t> value;      // kSlow: nanoseconds; kError: what the call returns (CUresult or nvmlReturn_t)
  char call[kCallNameBytes];        // name of the driver's function, or "*"
};

struct XidEvent {
  std::atomic<uint64_t> seq;  // 1, 2, ...; 0: not written yet
  uint32_t gpu;
  uint32_t xid;
  uint64_t unix_ns;
};

struct CallCounter {
  std::atomic<uint32_t> state;  // 0 free, 1 being written, 2 valid
  std::atomic<uint32_t> count;
  char name[kCallNameBytes];
};

struct ControlPage {
  std::atomic<uint32_t> armed;                   // rules in use: 0 makes every check one load
  std::atomic<uint32_t> lost_mask;               // bit per GPU: fallen off the bus
  std::atomic<uint64_t> xids;                    // events so far; the ring holds the last kXidRing
  std::atomic<uint64_t> withheld[kControlGpus];  // bytes the driver shows as free and refuses all the same
  FaultRule rules[kFaultRules];
  XidEvent ring[kXidRing];
  CallCounter calls[kCallCounters];
};

// KUBE_VRAM_SIM_DIR, or /dev/shm/kube-vram-sim-$UID. Not created.
std::string sim_folder();
// The mapped page; a private, empty one where the folder cannot be used. Never null. Made at the first call; faults of
// KUBE_VRAM_SIM_FAULTS ("slow:cuMemAlloc_v2=200ms,error:cuInit=100") are added to this process alone.
ControlPage& control();

// A fault on demand for this driver call: sleeps for "slow", never returns for "hang", returns the code of "error", 0
// for none.
int fault_at(const char* call);
bool faults_armed();

bool gpu_lost(uint32_t gpu);
uint64_t withheld_bytes(uint32_t gpu);

// One more call of a function that the simulated driver has and does not model.
void count_unsupported(const char* call);

// What vram-sim does. `add_rule` is false when all rules are taken.
bool add_rule(FaultKind kind, std::string_view call, uint64_t value, uint32_t times);
void set_lost(uint32_t gpu, bool lost);
// Records the event for NVML's event sets and appends the line of the kernel's log to `xid.log` of the folder.
void raise_xid(uint32_t gpu, uint32_t xid);
// Ends every fault; the events and counters stay.
void clear_faults();
// The text of an Xid as the kernel log has it; never null.
const char* xid_text(uint32_t xid);

}  // namespace kvram::simgpu

// First line of a driver entry point: one load when no fault is armed.
#define KVSIM_FAULT(call, type)                                                                     \
  do {                                                                                              \
    if (::kvram::simgpu::faults_armed()) [[unlikely]] {                                             \
      if (int kvsim_code_ = ::kvram::simgpu::fault_at(call)) return static_cast<type>(kvsim_code_); \
    }                                                                                               \
  } while (0)
