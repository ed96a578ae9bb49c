// The guard's end of the node ledger: one lease table word per GPU, spent by compare-and-swap, refilled over a socket.
// Everything here is per process; a forked child starts with a zeroed Client and becomes a process of its own.
#pragma once
#include <stdint.h>

#include "guard/socket.h"
#include "guard/sys.h"
#include "lease/table.h"
#include "lease/wire.h"

namespace kvram::guard {

constexpr int kNoGpu = -1;  // a GPU outside the budget, or no budget at all

class Client {
 public:
  // True once this process has its place in a budget; connects when it has not. At most about a second, and not again
  // at once when the daemon was away or refused. `observer`: only reads, takes no slot.
  bool attach(bool observer = false) {
    if (KV_LIKELY(__atomic_load_n(&attached_, __ATOMIC_ACQUIRE) != 0)) return true;
    return attach_slow(observer);
  }
  // Budget index of a GPU by its uuid (16 bytes), or kNoGpu. Needs attach().
  int gpu_of_uuid(const void* uuid) const;
  // Takes units without talking to the daemon.
  bool spend(int gpu, uint64_t units) { return gpu >= 0 && attach() && lease::spend(word(gpu), units); }
  // Takes units, asking the daemon if needed. `call` and `asked` (bytes) go into the post-mortem. False: refused.
  bool refill_and_spend(int gpu, uint64_t units, const char* call, uint64_t asked);
  void give_back(int gpu, uint64_t units) {
    if (gpu >= 0 && units != 0) lease::give_back(word(gpu), units);
  }
  // The memory may live on in another process: the daemon keeps it charged until the GPU no longer has it.
  void release_shared(int gpu, uint64_t units);
  // An allocation succeeded: an earlier refusal of at most this size is overcome.
  void succeeded(int gpu, uint64_t asked) {
    if (KV_UNLIKELY(__atomic_load_n(&refusals_, __ATOMIC_RELAXED) != 0)) overcome(gpu, asked);
  }
  // The driver had no memory although the ledger had.
  void physical_oom(int gpu, uint64_t asked, const char* call);
  // Units that the budget can still allocate there; limit and cost model from the grant page.
  uint64_t free_units(int gpu) const;
  const lease::GrantPage* page() const { return __atomic_load_n(&page_, __ATOMIC_ACQUIRE); }
  const uint32_t* pids() const { return __atomic_load_n(&pids_, __ATOMIC_ACQUIRE); }
  const lease::CostModel& cost(int gpu) const { return page()->gpu[gpu].cost; }

 private:
  enum class Attempt { kConnected, kAway, kRefused };
  enum class Exchange { kAnswered, kUnsent, kUnanswered };
  struct Refusal {
    uint64_t oom_id;
    uint64_t asked;
    int gpu;
  };
  static constexpr uint32_t kMaxRefusals = 8;

  uint64_t* word(int gpu) const { return lease::word_at(table_, gpus_, slot_, static_cast<uint32_t>(gpu)); }
  bool attach_slow(bool observer);
  bool connected_until(uint64_t deadline_ms);
  Attempt connect_once(uint64_t deadline_ms);
  Attempt hello(uint64_t deadline_ms);
  bool welcomed(const lease::Welcome& welcome, const int (&fds)[2]);
  Exchange exchange(lease::Header* message, lease::RefillReply* reply, uint64_t deadline_ms);
  void disconnect();
  void flush_shared(uint64_t deadline_ms);
  void remember_refusal(int gpu, uint64_t asked, uint64_t oom_id);
  void overcome(int gpu, uint64_t asked);
  static OpenFile& inherited_socket();
  static OpenFile& inherited_lease();

  uint32_t attached_;
  uint32_t observer_;
  uint32_t slot_;
  uint32_t gpus_;
  uint64_t* table_;
  const lease::GrantPage* page_;
  const uint32_t* pids_;
  Lock lock_;  // the members below
  OpenFile socket_;
  OpenFile lease_;
  uint64_t seq_;
  uint64_t budget_id_;
  uint64_t granted_[lease::kMaxGpus];
  uint64_t shared_[lease::kMaxGpus];  // releases that the daemon does not know yet
  uint64_t away_since_ms_;            // 0: it answered last time
  uint64_t retry_at_ms_;
  uint32_t refusals_;
  Refusal refusal_[kMaxRefusals];

 public:
  // Closes what a forked child inherited; the numbers survive in memory that fork does not wipe.
  static void close_inherited();
};

// What this library reports about itself in its first message.
struct Facts {
  uint32_t unknown_symbols;
  uint32_t driver_version;
};
Facts facts();  // defined by each library

}  // namespace kvram::guard
