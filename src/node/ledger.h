// The node ledger: budgets, the processes in them, what each was granted. Pure: no IO, no clock, no threads; it works
// on records and shared words that its caller maps. Every grant keeps
//     sum of granted + hidden <= limit      per budget and GPU, at every instruction,
// and charged = granted - available, so charged <= limit. Amounts in units of lease::kUnit unless a name says bytes.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lease/table.h"
#include "model/gpu.h"
#include "node/records.h"

namespace kvram::node {

struct NewBudget {
  uint64_t id = 0;  // 0: the next one; else of a budget that comes back from the journal
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t root_pid = 0;
  uint64_t root_start = 0;
  double created = 0;
  bool strict = false;
  bool card = false;
  std::string command;
  model::Assignment parts;
};

// What the watch knows of one GPU of a budget; not kept over a restart.
struct GpuWatch {
  uint64_t resident = 0;        // units, as last measured
  uint64_t charged_before = 0;  // just before that measurement
  uint64_t excess_before = 0;   // of the measurement before
  uint32_t over_count = 0;      // measurements in a row above the limit
};

struct Budget {
  uint32_t index = 0;
  BudgetRecord* record = nullptr;
  uint64_t* table = nullptr;         // lease table, null before the first process
  lease::GrantPage* page = nullptr;  // null likewise
  std::vector<int32_t> slots;        // slot -> process record, -1: free
  std::array<GpuWatch, lease::kMaxGpus> watch{};
  bool keeps_words = false;  // its records were lost: words of free slots may be of processes that are to come back
  bool distrusted = false;   // an invariant broke: nothing more is granted
  uint64_t id() const { return record->id; }
};

enum class RefillStatus { kGranted, kRefused, kInvalid };

class Ledger {
 public:
  // Takes the image as it is (a new one is all zero: call format() first) and brings half-done changes to an end.
  explicit Ledger(LedgerImage& image);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  static void format(LedgerImage& image, const std::string& boot_id);
  // What is wrong with an image, or nothing. Reads only what is in use.
  static std::optional<std::string> fault_of(const LedgerImage& image);

  // kTooManyBudgets when no record is free.
  Result<uint64_t> create(const NewBudget& budget);
  // Frees the budget and all that its processes held.
  void end(uint64_t id);
  Budget* find(uint64_t id);
  std::map<uint64_t, Budget>& budgets() { return budgets_; }
  uint64_t take_oom_id() { return image_.next_oom++; }
  void raise_ids(uint64_t next_budget, uint64_t next_oom);

  // Gives the budget its shared pages, settles what a crash left open and publishes. Words of free slots become zero.
  void attach(Budget& budget, uint64_t* table, lease::GrantPage* page);

  // A free slot for the process, with nothing granted. kTooManyProcesses.
  Result<uint32_t> add_process(Budget& budget, int32_t pid, uint64_t start, const std::string& name);
  // A process whose record was lost takes its slot again, with what it says it was granted as far as the limit allows.
  // kBadReplay when the slot is taken or the amounts make no sense.
  Result<void> adopt_process(Budget& budget, uint32_t slot, int32_t pid, uint64_t start, const std::string& name,
                             const uint64_t* granted);
  ProcessRecord* process(Budget& budget, uint32_t slot);
  ProcessState state(const Budget& budget, uint32_t slot) const;
  void set_state(Budget& budget, uint32_t slot, ProcessState state);
  // The slot is free afterwards and all it was granted is back in the budget.
  void close_process(Budget& budget, uint32_t slot);

  // Makes at least `need` available in the slot's word: from what the budget has not granted, then by recalling what
  // other slots have not spent. kRefused: nothing more can be recalled. kInvalid: no such slot, GPU or table.
  RefillStatus refill(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t need);
  // Takes `units` out of the slot's charge without making them available; once for each seq (rising per slot).
  // `resident` is what the driver shows for the budget: what stays resident is hidden from then on.
  bool release_shared(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t units, uint64_t seq, uint64_t resident);
  // Call it before a measurement: a charge given back while it is taken is then no hidden memory.
  void before_measurement();
  // A measurement of what the driver shows for the budget. Memory without a charge is hidden once two measurements in a
  // row show it, at once when `urgent` (a process of the budget is about to be closed: `leaving` is its charge).
  void observe(Budget& budget, uint32_t gpu, uint64_t resident, bool urgent = false, uint64_t leaving = 0);

  uint64_t granted(const Budget& budget, uint32_t gpu) const;
  uint64_t charged(const Budget& budget, uint32_t gpu) const;  // without hidden
  uint64_t charged_of(const Budget& budget, uint32_t slot, uint32_t gpu) const;
  uint64_t free_in(const Budget& budget, uint32_t gpu) const;  // limit less charged and hidden

  // The first broken invariant, or nothing.
  std::optional<std::string> check(const Budget& budget) const;

  // For tests: called between any two stores that a crash could part.
  void on_step(void (*hook)(void*), void* context) {
    step_hook_ = hook;
    step_context_ = context;
  }

 private:
  void load();
  void load_process(uint32_t index);
  std::optional<uint32_t> free_record();
  bool slot_is_free(const Budget& budget, uint32_t slot) const;
  void step() {
    if (step_hook_ != nullptr) step_hook_(step_context_);
  }
  uint64_t* word(const Budget& budget, uint32_t slot, uint32_t gpu) const;
  void settle(Budget& budget, uint32_t slot, uint32_t gpu);
  void grant(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t units);
  uint64_t recall(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t most);
  uint64_t recall_any(Budget& budget, uint32_t except, uint32_t gpu, uint64_t want);
  uint64_t ungranted(const Budget& budget, uint32_t gpu) const;
  uint64_t available(const Budget& budget, uint32_t slot, uint32_t gpu) const;
  void begin_intent(Intent& intent, IntentKind kind, uint64_t seq, uint64_t before, uint64_t after);
  void end_intent(Intent& intent);
  void set_hidden(Budget& budget, uint32_t gpu, uint64_t hidden);
  void publish(Budget& budget);
  void publish_gpu(Budget& budget, uint32_t gpu);
  uint32_t live_slots(const Budget& budget) const;

  LedgerImage& image_;
  std::map<uint64_t, Budget> budgets_;
  uint32_t process_hint_ = 0;
  void (*step_hook_)(void*) = nullptr;
  void* step_context_ = nullptr;
};

}  // namespace kvram::node
