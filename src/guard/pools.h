// Memory pools and graph memory. The driver reserves pool memory in steps and keeps it after a free, so the charge of a
// pool is what it has reserved, not what the program holds of it.
#pragma once
#include <stdint.h>

#include "guard/sys.h"

namespace kvram::guard {

struct State;

enum class PoolKind : uint32_t {
  kUnused = 0,
  kAsync,  // a CUmemoryPool on a GPU
  kGraph,  // the graph memory of a device; `handle` is the device
  kFree,   // costs the budget nothing: on the host, or another process's
};

struct Pool {
  Lock lock;
  PoolKind kind;
  int gpu;
  uint32_t destroyed;  // by the program, while blocks of it live
  uint32_t exported;
  uint64_t handle;
  uint64_t units;  // charged
  uint64_t live;   // blocks that the program holds
};

class Pools {
 public:
  // The pool of that handle, added when new; null when there are too many.
  Pool* get(PoolKind kind, uint64_t handle, int gpu);
  Pool* find(PoolKind kind, uint64_t handle);
  // Charges what the pool can grow by an allocation of `bytes`. The caller holds pool.lock. False: refused.
  bool charge_growth(State& s, Pool& pool, uint64_t bytes, const char* call, uint64_t asked);
  // The same without asking the daemon, and without a post-mortem.
  bool charge_growth_locally(State& s, Pool& pool, uint64_t bytes);
  // Is memory of the pool in use, perhaps by work that is not done?
  static bool busy(const Pool& pool);
  // Makes the charge what the pool has reserved. The caller holds pool.lock. False: the pool holds more than could be
  // charged.
  bool true_up(State& s, Pool& pool);
  // All pools of a GPU (kNoGpu: all), except those in use right now. True when something was given back.
  bool shrink(State& s, int gpu);
  // A block was freed: its pool may shrink when its stream gets there.
  void mark_dirty() { __atomic_store_n(&dirty_, 1, __ATOMIC_RELAXED); }
  void settle_if_dirty(State& s) {
    if (KV_UNLIKELY(__atomic_load_n(&dirty_, __ATOMIC_RELAXED) != 0)) settle_dirty(s);
  }
  void block_freed(State& s, Pool& pool);
  // Waits, at most a second, until frees that are still in streams have reached the pool; the caller holds pool.lock.
  void await_frees(const Pool& pool);
  void drop(State& s, Pool& pool);  // the driver destroyed it and no block lives; the caller holds pool.lock
  uint64_t key_of(const Pool& pool) const { return static_cast<uint64_t>(&pool - pool_) + 1; }
  Pool* of_key(uint64_t key) { return key == 0 || key > kMaxPools ? nullptr : &pool_[key - 1]; }

 private:
  static constexpr uint32_t kMaxPools = 256;
  void settle_dirty(State& s);
  static uint64_t units_after(State& s, const Pool& pool, uint64_t bytes);
  static bool read(const Pool& pool, uint64_t* reserved, uint64_t* used);
  Lock lock_;  // adding
  uint32_t count_;
  uint32_t dirty_;
  Pool pool_[kMaxPools];
};

}  // namespace kvram::guard
