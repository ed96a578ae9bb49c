#include "node/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvram::node {
namespace {

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  size_t length = std::min(from.size(), N - 1);
  memcpy(to, from.data(), length);
  memset(to + length, 0, N - length);
}

void store_release(uint32_t& at, uint32_t value) { __atomic_store_n(&at, value, __ATOMIC_SEQ_CST); }

}  // namespace

Ledger::Ledger(LedgerImage& image) : image_(image) { load(); }

void Ledger::format(LedgerImage& image, const std::string& boot_id) {
  image.version = kImageVersion;
  image.budgets_max = kMaxBudgets;
  image.processes_max = kMaxProcesses;
  copy_text(image.boot_id, boot_id);
  image.next_budget = 1;
  image.next_oom = 1;
  __atomic_store_n(&image.magic, kImageMagic, __ATOMIC_SEQ_CST);
}

std::optional<std::string> Ledger::fault_of(const LedgerImage& image) {
  if (image.magic != kImageMagic) return "it is not a ledger";
  if (image.version != kImageVersion || image.budgets_max != kMaxBudgets || image.processes_max != kMaxProcesses) {
    return "it is of another version";
  }
  for (uint32_t i = 0; i < kMaxBudgets; ++i) {
    if (image.budget_state[i] == 0) continue;
    const BudgetRecord& b = image.budget[i];
    bool sound = image.budget_state[i] == 1 && b.id != 0 && b.id < image.next_budget && b.gpus >= 1 &&
                 b.gpus <= lease::kMaxGpus && memchr(b.command, 0, sizeof b.command) != nullptr &&
                 memchr(b.why, 0, sizeof b.why) != nullptr;
    for (uint32_t g = 0; sound && g < b.gpus; ++g) sound = b.gpu[g].limit <= lease::kAvailableMask;
    if (!sound) return fmt::format("record {} of the budgets makes no sense", i);
  }
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    if (image.process_state[i] == 0) continue;
    const ProcessRecord& p = image.process[i];
    bool sound = image.process_state[i] <= static_cast<uint32_t>(ProcessState::kClosing) && p.budget < kMaxBudgets &&
                 p.slot < lease::kMaxSlots && p.pid > 0;
    for (uint32_t g = 0; sound && g < lease::kMaxGpus; ++g) sound = p.gpu[g].granted <= lease::kAvailableMask;
    if (!sound) return fmt::format("record {} of the processes makes no sense", i);
  }
  return std::nullopt;
}

void Ledger::load() {
  for (uint32_t i = 0; i < kMaxBudgets; ++i) {
    if (image_.budget_state[i] != 1) continue;
    Budget budget;
    budget.index = i;
    budget.record = &image_.budget[i];
    budgets_.emplace(budget.record->id, std::move(budget));
  }
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    if (image_.process_state[i] != 0) load_process(i);
  }
}

void Ledger::load_process(uint32_t index) {
  ProcessRecord& p = image_.process[index];
  Budget* owner = nullptr;
  if (image_.budget_state[p.budget] == 1) owner = find(image_.budget[p.budget].id);
  auto state = static_cast<ProcessState>(image_.process_state[index]);
  if (owner == nullptr || state == ProcessState::kClosing) {
    store_release(image_.process_state[index], 0);  // the word is cleared when the pages are attached
    return;
  }
  if (owner->slots.size() <= p.slot) owner->slots.resize(p.slot + 1, -1);
  owner->slots[p.slot] = static_cast<int32_t>(index);
  // Until the shared word can be seen, the larger of the two grants counts: never too little is taken.
  for (ProcessGpu& gpu : p.gpu) {
    auto kind = static_cast<IntentKind>(gpu.intent.kind);
    if (kind == IntentKind::kRelease) {
      gpu.granted = gpu.intent.after;
      p.release_seq = gpu.intent.seq;
      end_intent(gpu.intent);
    } else if (kind != IntentKind::kNone) {
      gpu.granted = std::max(gpu.intent.before, gpu.intent.after);
    }
  }
}

Result<uint64_t> Ledger::create(const NewBudget& wanted) {
  uint32_t index = 0;
  while (index < kMaxBudgets && image_.budget_state[index] != 0) ++index;
  if (index == kMaxBudgets) {
    return fail(ErrorCode::kTooManyBudgets,
                fmt::format("There are {} budgets, as many as the ledger can hold. End some with `vram kill`.", index));
  }
  BudgetRecord& record = image_.budget[index];
  record = BudgetRecord{};
  if (wanted.id != 0) raise_ids(wanted.id + 1, 1);
  record.id = wanted.id != 0 ? wanted.id : image_.next_budget++;
  step();
  record.uid = wanted.uid;
  record.gid = wanted.gid;
  record.root_pid = wanted.root_pid;
  record.root_start = wanted.root_start;
  record.created = wanted.created;
  record.strict = wanted.strict ? 1 : 0;
  record.card = wanted.card ? 1 : 0;
  record.gpus = static_cast<uint32_t>(std::min<size_t>(wanted.parts.size(), lease::kMaxGpus));
  for (uint32_t g = 0; g < record.gpus; ++g) {
    memcpy(record.gpu[g].uuid, wanted.parts[g].uuid.data(), 16);
    record.gpu[g].limit = lease::to_units(static_cast<uint64_t>(wanted.parts[g].limit.count()));
  }
  copy_text(record.command, wanted.command);
  step();
  store_release(image_.budget_state[index], 1);
  step();
  Budget budget;
  budget.index = index;
  budget.record = &record;
  budgets_.emplace(record.id, std::move(budget));
  return record.id;
}

void Ledger::end(uint64_t id) {
  Budget* budget = find(id);
  if (budget == nullptr) return;
  store_release(image_.budget_state[budget->index], 0);  // its processes' records go with it, also after a crash
  step();
  for (int32_t record : budget->slots) {
    if (record >= 0) store_release(image_.process_state[record], 0);
    step();
  }
  budgets_.erase(id);
}

Budget* Ledger::find(uint64_t id) {
  auto it = budgets_.find(id);
  return it == budgets_.end() ? nullptr : &it->second;
}

void Ledger::raise_ids(uint64_t next_budget, uint64_t next_oom) {
  image_.next_budget = std::max(image_.next_budget, next_budget);
  image_.next_oom = std::max(image_.next_oom, next_oom);
}

void Ledger::attach(Budget& budget, uint64_t* table, lease::GrantPage* page) {
  budget.table = table;
  budget.page = page;
  uint32_t gpus = budget.record->gpus;
  // No further: a slot that was never used has a word of zero, and looking at it would make a page of it.
  const size_t ever_used = std::max<size_t>(budget.slots.size(), __atomic_load_n(&page->slots_used, __ATOMIC_RELAXED));
  for (uint32_t slot = 0; slot < std::min<size_t>(ever_used, lease::kMaxSlots); ++slot) {
    bool used = slot < budget.slots.size() && budget.slots[slot] >= 0;
    for (uint32_t g = 0; g < gpus; ++g) {
      if (used) {
        settle(budget, slot, g);
      } else if (uint64_t* w = lease::word_at(table, gpus, slot, g);
                 !budget.keeps_words && __atomic_load_n(w, __ATOMIC_RELAXED) != 0) {
        __atomic_store_n(w, 0, __ATOMIC_SEQ_CST);
      }
    }
  }
  publish(budget);
}

Result<uint32_t> Ledger::add_process(Budget& budget, int32_t pid, uint64_t start, const std::string& name) {
  uint32_t slot = 0;
  while (slot < lease::kMaxSlots && !slot_is_free(budget, slot)) ++slot;
  std::optional<uint32_t> free = free_record();
  if (slot >= lease::kMaxSlots || !free) {
    return fail(ErrorCode::kTooManyProcesses,
                fmt::format("Budget {} has {} processes with a driver open, as many as it can have at one time.",
                            budget.id(), budget.slots.size()));
  }
  uint32_t record = *free;
  ProcessRecord& p = image_.process[record];
  p = ProcessRecord{};
  p.budget = budget.index;
  p.slot = slot;
  p.pid = pid;
  p.start = start;
  copy_text(p.name, name);
  step();
  if (budget.slots.size() <= slot) budget.slots.resize(slot + 1, -1);
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    // The counter goes on from the slot's last user, so that an old swap is never taken for a new one.
    if (uint64_t* w = word(budget, slot, g)) {
      uint64_t seen = __atomic_load_n(w, __ATOMIC_RELAXED);
      __atomic_store_n(w, lease::pack({lease::unpack(seen).seq + 1, 0}), __ATOMIC_SEQ_CST);
    }
  }
  step();
  store_release(image_.process_state[record], static_cast<uint32_t>(ProcessState::kLive));
  step();
  budget.slots[slot] = static_cast<int32_t>(record);
  publish(budget);
  return slot;
}

std::optional<uint32_t> Ledger::free_record() {
  for (uint32_t tried = 0; tried < kMaxProcesses; ++tried) {
    uint32_t record = (process_hint_ + tried) % kMaxProcesses;
    if (image_.process_state[record] != 0) continue;
    process_hint_ = (record + 1) % kMaxProcesses;
    return record;
  }
  return std::nullopt;
}

bool Ledger::slot_is_free(const Budget& budget, uint32_t slot) const {
  if (slot < budget.slots.size() && budget.slots[slot] >= 0) return false;
  for (uint32_t g = 0; budget.keeps_words && g < budget.record->gpus; ++g) {
    if (uint64_t* w = word(budget, slot, g); w != nullptr && __atomic_load_n(w, __ATOMIC_RELAXED) != 0) return false;
  }
  return true;
}

Result<void> Ledger::adopt_process(Budget& budget, uint32_t slot, int32_t pid, uint64_t start, const std::string& name,
                                   const uint64_t* claimed) {
  std::optional<uint32_t> record = free_record();
  bool taken = slot < budget.slots.size() && budget.slots[slot] >= 0;
  if (slot >= lease::kMaxSlots || taken || !record || budget.table == nullptr) {
    return fail(ErrorCode::kBadReplay, fmt::format("Slot {} of budget {} cannot be taken again.", slot, budget.id()));
  }
  ProcessRecord p{};
  p.budget = budget.index;
  p.slot = slot;
  p.pid = pid;
  p.start = start;
  copy_text(p.name, name);
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    uint64_t limit = budget.record->gpu[g].limit;
    uint64_t room = limit - std::min(limit, granted(budget, g));
    uint64_t* w = word(budget, slot, g);
    lease::Word seen = lease::unpack(__atomic_load_n(w, __ATOMIC_ACQUIRE));
    if (claimed[g] > room || seen.available > claimed[g]) {
      return fail(ErrorCode::kBadReplay,
                  fmt::format("Process {} claims more than budget {} has left.", pid, budget.id()));
    }
    p.gpu[g].granted = claimed[g];
  }
  image_.process[*record] = p;
  step();
  store_release(image_.process_state[*record], static_cast<uint32_t>(ProcessState::kLive));
  if (budget.slots.size() <= slot) budget.slots.resize(slot + 1, -1);
  budget.slots[slot] = static_cast<int32_t>(*record);
  publish(budget);
  return {};
}

ProcessRecord* Ledger::process(Budget& budget, uint32_t slot) {
  if (slot >= budget.slots.size() || budget.slots[slot] < 0) return nullptr;
  return &image_.process[budget.slots[slot]];
}

ProcessState Ledger::state(const Budget& budget, uint32_t slot) const {
  if (slot >= budget.slots.size() || budget.slots[slot] < 0) return ProcessState::kFree;
  return static_cast<ProcessState>(image_.process_state[budget.slots[slot]]);
}

void Ledger::set_state(Budget& budget, uint32_t slot, ProcessState state) {
  if (process(budget, slot) == nullptr) return;
  store_release(image_.process_state[budget.slots[slot]], static_cast<uint32_t>(state));
}

void Ledger::close_process(Budget& budget, uint32_t slot) {
  ProcessRecord* p = process(budget, slot);
  if (p == nullptr) return;
  auto record = static_cast<uint32_t>(budget.slots[slot]);
  set_state(budget, slot, ProcessState::kClosing);
  step();
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    if (uint64_t* w = word(budget, slot, g)) {
      uint64_t seen = __atomic_load_n(w, __ATOMIC_RELAXED);
      __atomic_store_n(w, lease::pack({lease::unpack(seen).seq + 1, 0}), __ATOMIC_SEQ_CST);
    }
    step();
  }
  store_release(image_.process_state[record], 0);
  step();
  budget.slots[slot] = -1;
  while (!budget.slots.empty() && budget.slots.back() < 0) budget.slots.pop_back();
  publish(budget);
}

uint32_t Ledger::live_slots(const Budget& budget) const {
  return static_cast<uint32_t>(
      std::count_if(budget.slots.begin(), budget.slots.end(), [](int32_t r) { return r >= 0; }));
}

void Ledger::publish(Budget& budget) {
  lease::GrantPage* page = budget.page;
  if (page == nullptr) return;
  const BudgetRecord& record = *budget.record;
  page->magic = lease::kGrantMagic;
  page->abi = lease::kAbiVersion;
  page->budget_id = record.id;
  page->gpus = record.gpus;
  // Never lower while mapped: a client that sums the words reads zeroes at most.
  auto used = static_cast<uint32_t>(budget.slots.size());
  __atomic_store_n(&page->slots_used, std::max(used, __atomic_load_n(&page->slots_used, __ATOMIC_RELAXED)),
                   __ATOMIC_RELEASE);
  __atomic_store_n(&page->refused, record.refused, __ATOMIC_RELAXED);
  uint32_t* pids = lease::slot_pids(page);
  for (uint32_t slot = 0; slot < page->slots_used; ++slot) {
    ProcessRecord* p = process(budget, slot);
    __atomic_store_n(&pids[slot], p == nullptr ? 0 : static_cast<uint32_t>(p->pid), __ATOMIC_RELAXED);
  }
  for (uint32_t g = 0; g < record.gpus; ++g) {
    memcpy(page->gpu[g].uuid, record.gpu[g].uuid, 16);
    page->gpu[g].limit_units = record.gpu[g].limit;
    publish_gpu(budget, g);
  }
}

void Ledger::publish_gpu(Budget& budget, uint32_t gpu) {
  if (budget.page == nullptr) return;
  __atomic_store_n(&budget.page->gpu[gpu].granted_units, granted(budget, gpu), __ATOMIC_RELEASE);
  __atomic_store_n(&budget.page->gpu[gpu].hidden_units, budget.record->gpu[gpu].hidden, __ATOMIC_RELEASE);
}

}  // namespace kvram::node
