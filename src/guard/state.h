// All that the guard remembers in one process. It lies in memory that reads as zero in a forked child, where it is an
// empty state again: the child is a process of its own to the ledger.
#pragma once
#include "guard/client.h"
#include "guard/pools.h"
#include "guard/ptr_table.h"
#include "guard/real.h"
#include "guard/vmm.h"
#include "lease/cost.h"

namespace kvram::guard {

constexpr int kMaxDevices = 64;

struct Primary {  // the primary context of one GPU: charged once, however often it is retained
  Lock lock;
  uint64_t units;
  uint64_t context;
  uint64_t references;  // that we know of, green contexts included
};

struct State {
  uint32_t alive;  // 0 after fork
  Client client;
  PtrTable table;
  Vmm vmm;
  Pools pools;
  Lock limits;  // over reading, changing and remembering a context's limit
  Primary primary[lease::kMaxGpus];
  uint8_t gpu_of_device[kMaxDevices];      // budget index + 2; 1: not in the budget; 0: not looked up
  uint8_t device_of_gpu[lease::kMaxGpus];  // device + 1
};

void make_state();
State& revive_state();
extern State* g_state;
extern int g_owner_pid;  // 0: the kernel wipes the state for a forked child; else whose it is
int current_pid();

inline State& state() {
  if (KV_UNLIKELY(g_state->alive == 0 || (g_owner_pid != 0 && g_owner_pid != current_pid()))) return revive_state();
  return *g_state;
}

// Budget index of a device, kNoGpu if it is not in the budget or there is none.
int gpu_of_device(State& s, CUdevice device);

// Where an allocation of the calling thread lands.
struct Where {
  int gpu;
  CUdevice device;
  uint64_t context;
};
// Is the stream recording a graph? Nothing happens to memory then.
bool capturing(bool per_thread, CUstream stream);
// False without a current context: the driver then says so itself.
bool here(State& s, Where* where);

// Takes the units before the driver is called: from the lease, from what pools no longer hold, from the daemon. `asked`
// in bytes. False: refused, answer CUDA_ERROR_OUT_OF_MEMORY.
bool charge(State& s, int gpu, uint64_t units, const char* call, uint64_t asked);
// The driver refused what was charged: gives it back, and tells the daemon when the GPU itself was full.
CUresult undo(State& s, int gpu, uint64_t units, CUresult why, const char* call, uint64_t asked);
// Gives back what an entry was charged with, once the driver has freed it.
void settle(State& s, const Entry& entry);
// The same for memory of cuMemCreate whose last reference went.
void give_back(State& s, const Memory& gone);
// All that was made in a context, taken out of the table before the driver destroys it: afterwards its addresses and
// even its handle may be in use again by another thread.
class Detached {
 public:
  Detached(State& s, uint64_t context);
  ~Detached();  // back into the table, unless settled
  Detached(const Detached&) = delete;
  Detached& operator=(const Detached&) = delete;
  void settle();  // the driver has freed it all

 private:
  bool add(const Entry& entry);
  State& s_;
  Entry* entries_;
  size_t count_;
  size_t capacity_;
};

template <typename T>
uint64_t bits(T handle) {
  return (uint64_t)handle;  // NOLINT: handles are integers or pointers
}

// Charges, calls, remembers. `key_of` is read after the call.
template <typename Call, typename Key>
CUresult account(State& s, const char* name, Entry entry, uint64_t asked, Call call, Key key_of) {
  const int gpu = static_cast<int>(entry.gpu);
  if (!charge(s, gpu, entry.units, name, asked)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  if (KV_UNLIKELY(r != CUDA_SUCCESS)) return undo(s, gpu, entry.units, r, name, asked);
  entry.key = bits(key_of());
  s.table.put(entry);
  s.client.succeeded(gpu, asked);
  return r;
}

// Forgets, calls, gives back; an unknown key just passes through to the driver.
template <typename Call>
CUresult discharge(State& s, Kind kind, uint64_t key, Call call) {
  Entry entry;
  const bool known = s.table.take(kind, key, &entry);
  const CUresult r = call();
  if (!known) return r;
  if (KV_LIKELY(r == CUDA_SUCCESS)) {
    settle(s, entry);
  } else {
    s.table.put(entry);
  }
  return r;
}

}  // namespace kvram::guard
