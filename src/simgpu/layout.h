// The simulated machine as it lies in shared memory: plain data, mapped by every process that uses the simulated
// driver or NVML. Every figure that a dead process could leave half-done is one 64-bit word, so that a SIGKILL between
// any two instructions leaves a state that the next reader can use.
#pragma once
#include <pthread.h>

#include <cstdint>

namespace kvram::simgpu {

constexpr uint32_t kMachineMagic = 0x4b56534d;
constexpr uint32_t kMachineVersion = 1;
constexpr uint32_t kMaxGpus = 16;       // GPUs of one simulated machine
constexpr uint32_t kMaxSlots = 2048;    // processes with an initialised driver at one time
constexpr uint32_t kMaxObjects = 8192;  // allocations shared between processes at one time
constexpr uint32_t kSpecBytes = 256;
constexpr uint32_t kNameBytes = 64;

// What implicit memory costs (bytes); the same figures as lease::CostModel, from data/gpus.json.
struct Costs {
  uint64_t context_bytes;
  uint64_t green_context_bytes;
  uint64_t module_page_bytes;
  uint64_t stream_bytes;
  uint64_t graph_exec_bytes;
  uint64_t pool_chunk_bytes;
};

// One GPU, constant after creation.
struct GpuInfo {
  char name[kNameBytes];  // "NVIDIA A10"
  uint8_t uuid[16];
  uint64_t total_bytes;    // what NVML calls total
  uint64_t reserve_bytes;  // taken by the driver before any process; CUDA's total is total - reserve
  Costs costs;
  int32_t sms;
  int32_t cc_major;
  int32_t cc_minor;
  int32_t sm_clock_mhz;
  int32_t memory_clock_mhz;
  int32_t memory_bus_bits;
  int32_t l2_bytes;
  int32_t power_limit_w;
  int32_t idle_power_w;
  int32_t pci_bus;
  int32_t threads_per_sm;
  int32_t shared_per_sm_bytes;
};

struct alignas(64) Gpu {
  GpuInfo info;
};

enum SlotState : uint32_t { kSlotFree = 0, kSlotLive = 1 };

// One process. `resident` is written only by that process (and zeroed by the reaper once it is dead).
struct alignas(64) Slot {
  uint32_t state;  // SlotState; atomic
  int32_t pid;     // in the pid namespace of the process
  uint64_t start_time;
  uint64_t image;  // differs for each exec: the kernel's random bytes of the program image
  uint64_t arena;  // its arena's file is arena-<this>; 0: none yet
  char command[32];
  uint64_t resident[kMaxGpus];  // bytes, shared objects not included; atomic
};

enum ObjectState : uint32_t { kObjectFree = 0, kObjectLive = 1 };
enum ObjectKind : uint32_t { kObjectLinear = 1, kObjectVmm = 2, kObjectPool = 3, kObjectEvent = 4 };

// Memory (or an event) that more than one process can hold. It lives while a live slot's bit is set in `refs` or a file
// descriptor that was exported for it is open anywhere (each such descriptor holds an open-file lock on byte `index`).
struct alignas(64) Object {
  uint32_t state;  // ObjectState; atomic
  uint32_t kind;
  uint64_t generation;  // differs for each use of this place in the table
  uint32_t gpu;
  uint32_t owner;  // slot that NVML shows it under while its bit is set; else the lowest holder
  uint64_t bytes;  // charged to the GPU; atomic
  uint64_t arena;  // where the data lies
  uint64_t offset;
  uint64_t length;                // of the data
  uint64_t extra[4];              // kind-specific
  uint64_t refs[kMaxSlots / 64];  // atomic words
};

struct MachineFile {
  uint32_t magic;
  uint32_t version;
  uint32_t replaced;  // 1: another file took this one's place; open it anew; atomic
  uint32_t gpus;
  char spec[kSpecBytes];  // canonical: "2xA10,1xH100-80GB"
  pthread_mutex_t mutex;  // robust, process-shared; guards charging, slots and objects
  uint64_t next_id;       // arenas and generations
  uint32_t slots_used;    // slots below this may be in use; atomic
  uint32_t objects_used;
  Gpu gpu[kMaxGpus];
  Slot slot[kMaxSlots];
  Object object[kMaxObjects];
};

}  // namespace kvram::simgpu
