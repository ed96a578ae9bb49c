// What the node ledger must not forget when its process dies at any instruction: plain records in one mapped file of
// the run folder. Every change is ordered so that a reader after a crash finds either the old or the new state, or an
// intent that says which of the two to look for. Amounts in units of lease::kUnit.
#pragma once
#include <cstdint>

#include "lease/table.h"

namespace kvram::node {

constexpr uint32_t kMaxBudgets = 4096;
constexpr uint32_t kMaxProcesses = 8192;  // slots of all budgets together
constexpr uint64_t kImageMagic = 0x31676c6d6172766bULL;
constexpr uint32_t kImageVersion = 1;

enum class IntentKind : uint64_t { kNone = 0, kGrant = 1, kRecall = 2, kRelease = 3 };

// Written before a compare-and-swap on the shared word: whether the word carries `seq` afterwards tells whether the
// swap happened, and so which of the two grants is true. kRelease needs no look: its decision is in the record itself.
struct Intent {
  uint64_t kind;  // IntentKind; stored last, cleared first
  uint64_t seq;
  uint64_t before;
  uint64_t after;
};

struct ProcessGpu {
  uint64_t granted;
  Intent intent;
};

enum class ProcessState : uint32_t {
  kFree = 0,
  kLive = 1,
  kDetached = 2,  // its connection ended, the process lives: exec, or a closed socket
  kStale = 3,     // it registered anew; what it held before is not known to be gone
  kDead = 4,      // the kernel says it ended; the driver may still list it
  kClosing = 5,   // being freed: done again after a crash
};

struct ProcessRecord {
  uint32_t budget;  // index of its budget's record
  uint32_t slot;    // in the budget's lease table
  int32_t pid;
  uint32_t reserved;
  uint64_t start;        // of the process, in clock ticks after boot: tells it from a later one of the same pid
  uint64_t release_seq;  // of the last shared release that was carried out
  char name[16];
  ProcessGpu gpu[lease::kMaxGpus];
};

struct BudgetGpu {
  uint8_t uuid[16];
  uint64_t limit;
  uint64_t hidden;  // resident memory that no call announced
  uint64_t peak;
};

enum class BudgetMode : uint32_t { kStarting = 0, kNamespace = 1, kPath = 2 };

struct BudgetRecord {
  uint64_t id;
  uint32_t uid;
  uint32_t gid;
  int32_t root_pid;
  uint32_t gpus;
  uint64_t root_start;
  double created;  // unix seconds
  uint32_t strict;
  uint32_t card;
  uint32_t mode;             // BudgetMode
  uint32_t unknown_symbols;  // that a driver under it exports and the guard's table lacks
  uint64_t namespace_inode;  // of the private mount namespace, 0 without
  uint64_t lease_inode;      // of the lease memfd, 0 before the first process
  uint64_t refused;
  uint64_t overcome;
  BudgetGpu gpu[lease::kMaxGpus];
  char command[256];
  char why[160];  // why there is no namespace
};

struct LedgerImage {
  uint64_t magic;
  uint32_t version;
  uint32_t budgets_max;
  uint32_t processes_max;
  uint32_t reserved;
  char boot_id[40];
  uint64_t next_budget;
  uint64_t next_oom;
  // Apart from the records, so that a start reads 48 KiB and not the whole file.
  uint32_t budget_state[kMaxBudgets];     // 0 free, 1 live
  uint32_t process_state[kMaxProcesses];  // ProcessState
  BudgetRecord budget[kMaxBudgets];
  ProcessRecord process[kMaxProcesses];
};

}  // namespace kvram::node
