// The memory that the node ledger shares with the processes of one budget. Freestanding: the guard links no C++
// runtime.
//
// Lease table (client-writable, sealed against resizing): one 64-bit word per process slot and GPU, {seq:24 |
// available:40}, in units of kUnit bytes. `available` is what the process was granted and has not spent. A client
// spends and gives back by compare-and-swap on it; the daemon grants and recalls by compare-and-swap on the same word
// and bumps `seq`, so that after a crash it can tell whether its last swap happened. What a process has charged is
// granted - available; `granted` is in the daemon's own records, so a client cannot raise it.
//
// Grant page (written by the daemon, read-only in the client): limits and what the ledger knows of the GPU.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace kvram::lease {

constexpr uint64_t kUnit = 512;       // bytes; the smallest thing that is accounted
constexpr uint32_t kMaxGpus = 16;     // GPUs of one budget
constexpr uint32_t kMaxSlots = 1024;  // processes of one budget that have a driver open at one time
constexpr int kAvailableBits = 40;    // 2^40 units = 512 TiB
constexpr uint64_t kAvailableMask = (1ULL << kAvailableBits) - 1;
constexpr uint64_t kSeqMask = 0xffffff;
constexpr uint32_t kAbiVersion = 1;

constexpr uint64_t to_units(uint64_t bytes) { return bytes / kUnit + (bytes % kUnit != 0 ? 1 : 0); }
constexpr uint64_t to_bytes(uint64_t units) { return units * kUnit; }

struct Word {
  uint64_t seq;
  uint64_t available;
};
constexpr Word unpack(uint64_t word) { return Word{word >> kAvailableBits, word & kAvailableMask}; }
constexpr uint64_t pack(Word w) { return (w.seq & kSeqMask) << kAvailableBits | (w.available & kAvailableMask); }

// Words of one slot lie together; one slot is one cache line per 8 GPUs, so that two processes do not share a line.
constexpr uint32_t slot_stride_words(uint32_t gpus) { return (gpus + 7) / 8 * 8; }
constexpr size_t table_bytes(uint32_t gpus) { return sizeof(uint64_t) * slot_stride_words(gpus) * kMaxSlots; }
inline uint64_t* word_at(uint64_t* table, uint32_t gpus, uint32_t slot, uint32_t gpu) {
  return table + static_cast<size_t>(slot) * slot_stride_words(gpus) + gpu;
}

// Takes `units` from the word. False, and nothing taken, if less is available: ask the daemon to refill. Lock-free, any
// thread.
inline bool spend(uint64_t* word, uint64_t units) {
  uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  do {
    if ((seen & kAvailableMask) < units) return false;
  } while (!__atomic_compare_exchange_n(word, &seen, seen - units, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return true;
}
// Gives back what was spent. The sum stays below 2^40 units because no more was ever granted.
inline void give_back(uint64_t* word, uint64_t units) { __atomic_fetch_add(word, units, __ATOMIC_ACQ_REL); }

// What implicit memory costs on a GPU (bytes), learned by the daemon per (GPU model, driver) and published to clients.
struct CostModel {
  uint64_t context_bytes;        // a primary or explicit context, in the first use of a GPU by a process
  uint64_t green_context_bytes;  // a green context on top
  uint64_t module_page_bytes;    // a module costs its image rounded up to this
  uint64_t stream_bytes;
  uint64_t graph_exec_bytes;
  uint64_t pool_chunk_bytes;  // a memory pool grows in steps of this
};

struct GpuPage {
  uint8_t uuid[16];  // as cuDeviceGetUuid gives it
  uint64_t limit_units;
  uint64_t granted_units;  // sum over the slots; atomic
  uint64_t hidden_units;   // memory that no call announced, charged by true-up; atomic
  uint64_t physical_total_bytes;
  uint64_t physical_free_bytes;  // as last measured; atomic
  CostModel cost;
};

struct GrantPage {
  uint32_t magic;  // kGrantMagic
  uint32_t abi;
  uint64_t budget_id;
  uint32_t gpus;
  uint32_t slots_used;  // slots below this may be in use; atomic
  uint64_t refused;     // refusals so far; atomic
  GpuPage gpu[kMaxGpus];
};
constexpr uint32_t kGrantMagic = 0x4b565247;

// Behind the page, in the same read-only mapping: the host pid of each slot's process (0: none), for the process lists
// that the budget's members see. Whoever maps the file checks its size: without this part it ends at the
// offset. The first slots' pids share a page of memory with the limits: a budget with few processes takes one page.
constexpr size_t kGrantPidsOffset = 2048;
static_assert(sizeof(GrantPage) <= kGrantPidsOffset);
constexpr size_t kGrantBytes = kGrantPidsOffset + sizeof(uint32_t) * kMaxSlots;
inline uint32_t* slot_pids(const GrantPage* page) {
  return reinterpret_cast<uint32_t*>(reinterpret_cast<uintptr_t>(page) + kGrantPidsOffset);
}

// Limit less charges, from the two shared pages: what the budget can still allocate on a GPU (units). Never above the
// limit.
inline uint64_t free_units(const GrantPage* page, uint64_t* table, uint32_t gpu) {
  const GpuPage* g = &page->gpu[gpu];
  uint64_t taken =
      __atomic_load_n(&g->granted_units, __ATOMIC_ACQUIRE) + __atomic_load_n(&g->hidden_units, __ATOMIC_ACQUIRE);
  uint64_t unspent = 0;
  uint32_t slots = __atomic_load_n(&page->slots_used, __ATOMIC_ACQUIRE);
  for (uint32_t s = 0; s < slots && s < kMaxSlots; ++s) {
    unspent += __atomic_load_n(word_at(table, page->gpus, s, gpu), __ATOMIC_RELAXED) & kAvailableMask;
  }
  uint64_t charged = taken > unspent ? taken - unspent : 0;
  return g->limit_units > charged ? g->limit_units - charged : 0;
}

}  // namespace kvram::lease
