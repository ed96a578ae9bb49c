#include "guard/pools.h"

#include <time.h>

#include "guard/state.h"

namespace kvram::guard {

Pool* Pools::find(PoolKind kind, uint64_t handle) {
  const uint32_t n = __atomic_load_n(&count_, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < n; ++i) {
    if (pool_[i].kind == kind && pool_[i].handle == handle && pool_[i].destroyed == 0) return &pool_[i];
  }
  return nullptr;
}

Pool* Pools::get(PoolKind kind, uint64_t handle, int gpu) {
  if (Pool* known = find(kind, handle)) return known;
  const Guarded hold(lock_);
  if (Pool* known = find(kind, handle)) return known;
  Pool* place = nullptr;
  for (uint32_t i = 0; i < count_ && place == nullptr; ++i) {
    if (pool_[i].kind == PoolKind::kUnused) place = &pool_[i];
  }
  const bool grown = place == nullptr;
  if (grown && count_ == kMaxPools) return nullptr;
  if (grown) place = &pool_[count_];
  place->handle = handle;
  place->gpu = gpu;
  place->units = place->live = 0;
  place->destroyed = place->exported = 0;
  place->kind = kind;
  if (grown) __atomic_store_n(&count_, count_ + 1, __ATOMIC_RELEASE);
  return place;
}

bool Pools::read(const Pool& pool, uint64_t* reserved, uint64_t* used) {
  cuuint64_t r = 0;
  cuuint64_t u = 0;
  bool ok = false;
  if (pool.kind == PoolKind::kAsync && pool.destroyed == 0) {
    const CUmemoryPool handle = reinterpret_cast<CUmemoryPool>(pool.handle);
    ok = REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r) == CUDA_SUCCESS &&
         REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u) == CUDA_SUCCESS;
  } else if (pool.kind == PoolKind::kGraph) {
    const CUdevice device = static_cast<CUdevice>(pool.handle);
    ok = REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &r) == CUDA_SUCCESS &&
         REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &u) == CUDA_SUCCESS;
  }
  *reserved = r;
  *used = u;
  return ok;
}

// What the pool may have reserved after an allocation: never less than what is charged for it now.
uint64_t Pools::units_after(State& s, const Pool& pool, uint64_t bytes) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  if (!read(pool, &reserved, &used)) reserved = used = lease::to_bytes(pool.units);
  const uint64_t wanted = lease::linear_cost(bytes);
  const uint64_t unused = reserved > used ? reserved - used : 0;
  uint64_t target = reserved;
  if (wanted > unused) {
    target = lease::add_saturating(target, lease::round_up(wanted - unused, s.client.cost(pool.gpu).pool_chunk_bytes));
  }
  const uint64_t units = lease::to_units(target);
  return units > pool.units ? units : pool.units;
}

bool Pools::charge_growth(State& s, Pool& pool, uint64_t bytes, const char* call, uint64_t asked) {
  if (pool.gpu < 0 || !s.client.attach()) return false;
  const uint64_t units = units_after(s, pool, bytes);
  if (units != pool.units && !charge(s, pool.gpu, units - pool.units, call, asked)) return false;
  pool.units = units;
  return true;
}

bool Pools::charge_growth_locally(State& s, Pool& pool, uint64_t bytes) {
  if (pool.gpu < 0 || !s.client.attach()) return false;
  const uint64_t units = units_after(s, pool, bytes);
  if (units != pool.units && !s.client.spend(pool.gpu, units - pool.units)) return false;
  pool.units = units;
  return true;
}

bool Pools::busy(const Pool& pool) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  return read(pool, &reserved, &used) && used != 0;
}

bool Pools::true_up(State& s, Pool& pool) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  if (pool.gpu < 0 || !read(pool, &reserved, &used)) return true;
  const uint64_t units = lease::to_units(reserved);
  if (units < pool.units) {
    const uint64_t less = pool.units - units;
    pool.units = units;
    s.client.give_back(pool.gpu, less);
  } else if (units > pool.units) {
    if (!s.client.spend(pool.gpu, units - pool.units) &&
        !s.client.refill_and_spend(pool.gpu, units - pool.units, "pool growth", 0)) {
      return false;
    }
    pool.units = units;
  }
  return true;
}

bool Pools::shrink(State& s, int gpu) {
  bool given = false;
  const uint32_t n = __atomic_load_n(&count_, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < n; ++i) {
    Pool& pool = pool_[i];
    if (pool.units == 0 || (gpu != kNoGpu && pool.gpu != gpu)) continue;
    if (!pool.lock.try_lock()) {
      mark_dirty();  // looked at again at the next synchronisation
      continue;
    }
    uint64_t reserved = 0;
    uint64_t used = 0;
    if (read(pool, &reserved, &used) && lease::to_units(reserved) < pool.units) {
      true_up(s, pool);
      given = true;
    }
    pool.lock.unlock();
  }
  return given;
}

void Pools::settle_dirty(State& s) {
  __atomic_store_n(&dirty_, 0, __ATOMIC_RELAXED);
  shrink(s, kNoGpu);
}

void Pools::block_freed(State& s, Pool& pool) {
  const Guarded hold(pool.lock);
  if (pool.live != 0) --pool.live;
  if (pool.destroyed != 0) {
    if (pool.live == 0) drop(s, pool);
    return;
  }
  uint64_t reserved = 0;
  uint64_t used = 0;
  if (read(pool, &reserved, &used) && lease::to_units(reserved) < pool.units) true_up(s, pool);
  mark_dirty();
}

void Pools::await_frees(const Pool& pool) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  for (int tries = 0; tries < 20000 && read(pool, &reserved, &used) && used != 0; ++tries) {
    const timespec pause{0, 50000};
    nanosleep(&pause, nullptr);
  }
}

void Pools::drop(State& s, Pool& pool) {
  if (pool.exported != 0) {
    s.client.release_shared(pool.gpu, pool.units);
  } else {
    s.client.give_back(pool.gpu, pool.units);
  }
  pool.units = 0;
  pool.kind = PoolKind::kUnused;
}

}  // namespace kvram::guard
