// Grants, recalls and true-up: the part of the ledger that shares words with running programs.
#include <fmt/format.h>

#include <algorithm>

#include "node/ledger.h"

namespace kvram::node {
namespace {

// A crash is a SIGKILL of this process: stores become visible in program order, so only the compiler has to be held
// back. Release order does that and costs nothing on x86.
void store(uint64_t& at, uint64_t value) { __atomic_store_n(&at, value, __ATOMIC_RELEASE); }

}  // namespace

uint64_t* Ledger::word(const Budget& budget, uint32_t slot, uint32_t gpu) const {
  return budget.table == nullptr ? nullptr : lease::word_at(budget.table, budget.record->gpus, slot, gpu);
}

void Ledger::begin_intent(Intent& intent, IntentKind kind, uint64_t seq, uint64_t before, uint64_t after) {
  store(intent.kind, static_cast<uint64_t>(IntentKind::kNone));
  step();
  store(intent.seq, seq);
  store(intent.before, before);
  store(intent.after, after);
  step();
  store(intent.kind, static_cast<uint64_t>(kind));
  step();
}

void Ledger::end_intent(Intent& intent) { store(intent.kind, static_cast<uint64_t>(IntentKind::kNone)); }

void Ledger::settle(Budget& budget, uint32_t slot, uint32_t gpu) {
  ProcessRecord* p = process(budget, slot);
  ProcessGpu& g = p->gpu[gpu];
  auto kind = static_cast<IntentKind>(g.intent.kind);
  if (kind == IntentKind::kGrant || kind == IntentKind::kRecall) {
    uint64_t seen = __atomic_load_n(word(budget, slot, gpu), __ATOMIC_ACQUIRE);
    bool happened = lease::unpack(seen).seq == g.intent.seq;
    store(g.granted, happened ? g.intent.after : g.intent.before);
    step();
    end_intent(g.intent);
  }
}

// Precondition: `units` fit under the limit.
void Ledger::grant(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t units) {
  ProcessGpu& g = process(budget, slot)->gpu[gpu];
  uint64_t* w = word(budget, slot, gpu);
  uint64_t seen = __atomic_load_n(w, __ATOMIC_ACQUIRE);
  uint64_t seq = (lease::unpack(seen).seq + 1) & lease::kSeqMask;
  begin_intent(g.intent, IntentKind::kGrant, seq, g.granted, g.granted + units);
  store(g.granted, g.granted + units);
  step();
  publish_gpu(budget, gpu);  // before the word: a reader sees less free for a moment, never more
  step();
  uint64_t next = 0;
  do {
    next = lease::pack({seq, std::min(lease::unpack(seen).available + units, lease::kAvailableMask)});
  } while (!__atomic_compare_exchange_n(w, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
  step();
  end_intent(g.intent);
  step();
}

uint64_t Ledger::recall(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t most) {
  ProcessRecord* p = process(budget, slot);
  uint64_t* w = word(budget, slot, gpu);
  if (p == nullptr || w == nullptr) return 0;
  ProcessGpu& g = p->gpu[gpu];
  uint64_t seen = __atomic_load_n(w, __ATOMIC_ACQUIRE);
  while (true) {
    // A word that claims more than was granted is a program's own doing; it gets no more back than it had.
    uint64_t units = std::min({most, lease::unpack(seen).available, g.granted});
    if (units == 0) return 0;
    uint64_t seq = (lease::unpack(seen).seq + 1) & lease::kSeqMask;
    begin_intent(g.intent, IntentKind::kRecall, seq, g.granted, g.granted - units);
    uint64_t next = lease::pack({seq, lease::unpack(seen).available - units});
    if (!__atomic_compare_exchange_n(w, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) continue;
    step();
    store(g.granted, g.granted - units);
    step();
    end_intent(g.intent);
    step();
    publish_gpu(budget, gpu);
    return units;
  }
}

uint64_t Ledger::recall_any(Budget& budget, uint32_t except, uint32_t gpu, uint64_t want) {
  uint64_t got = 0;
  for (uint32_t slot = 0; slot < budget.slots.size() && got < want; ++slot) {
    if (slot != except && budget.slots[slot] >= 0) got += recall(budget, slot, gpu, want - got);
  }
  return got;
}

RefillStatus Ledger::refill(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t need) {
  if (process(budget, slot) == nullptr || budget.table == nullptr || gpu >= budget.record->gpus) {
    return RefillStatus::kInvalid;
  }
  if (budget.distrusted || need > budget.record->gpu[gpu].limit) return RefillStatus::kRefused;
  uint64_t have = available(budget, slot, gpu);
  if (have >= need) return RefillStatus::kGranted;
  uint64_t lack = need - have;
  uint64_t room = ungranted(budget, gpu);
  if (room < lack) {
    recall_any(budget, slot, gpu, lack - room);
    room = ungranted(budget, gpu);
  }
  if (room < lack) return RefillStatus::kRefused;
  // More than asked, so that the next allocations need no message; it can be recalled at any time, so it costs nobody
  // anything.
  uint64_t extra = (room - lack) / std::max(1u, live_slots(budget));
  grant(budget, slot, gpu, lack + extra);
  if (auto broken = check(budget)) budget.distrusted = true;
  return RefillStatus::kGranted;
}

bool Ledger::release_shared(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t units, uint64_t seq,
                            uint64_t resident) {
  ProcessRecord* p = process(budget, slot);
  if (p == nullptr || budget.table == nullptr || gpu >= budget.record->gpus) return false;
  if (seq <= p->release_seq) return true;  // sent again after a restart: done before
  ProcessGpu& g = p->gpu[gpu];
  units = std::min(units, charged_of(budget, slot, gpu));
  observe(budget, gpu, resident, true, units);
  begin_intent(g.intent, IntentKind::kRelease, seq, g.granted, g.granted - units);
  store(g.granted, g.granted - units);
  step();
  store(p->release_seq, seq);
  step();
  end_intent(g.intent);
  step();
  publish_gpu(budget, gpu);
  return true;
}

void Ledger::before_measurement() {
  for (auto& [id, budget] : budgets_) {
    for (uint32_t g = 0; g < budget.record->gpus; ++g) budget.watch[g].charged_before = charged(budget, g);
  }
}

void Ledger::observe(Budget& budget, uint32_t gpu, uint64_t resident, bool urgent, uint64_t leaving) {
  BudgetGpu& g = budget.record->gpu[gpu];
  GpuWatch& watch = budget.watch[gpu];
  uint64_t known = std::max(charged(budget, gpu), watch.charged_before);
  known -= std::min(known, leaving);
  uint64_t excess = resident > known ? resident - known : 0;
  // One measurement can fall between a charge given back and the moment it was taken; two in a row cannot, unless the
  // memory is there.
  uint64_t hidden = urgent ? std::max(g.hidden, excess) : std::min(excess, watch.excess_before);
  watch.excess_before = excess;
  watch.resident = resident;
  watch.over_count = resident > g.limit ? watch.over_count + 1 : 0;
  g.peak = std::max({g.peak, resident, known + hidden});
  if (hidden != g.hidden) set_hidden(budget, gpu, hidden);
}

void Ledger::set_hidden(Budget& budget, uint32_t gpu, uint64_t hidden) {
  BudgetGpu& g = budget.record->gpu[gpu];
  if (hidden > g.hidden) {
    uint64_t room = ungranted(budget, gpu);
    if (uint64_t more = hidden - g.hidden; more > room) recall_any(budget, lease::kMaxSlots, gpu, more - room);
  }
  store(g.hidden, hidden);
  step();
  publish_gpu(budget, gpu);
}

uint64_t Ledger::available(const Budget& budget, uint32_t slot, uint32_t gpu) const {
  uint64_t* w = word(budget, slot, gpu);
  return w == nullptr ? 0 : lease::unpack(__atomic_load_n(w, __ATOMIC_ACQUIRE)).available;
}

uint64_t Ledger::granted(const Budget& budget, uint32_t gpu) const {
  uint64_t sum = 0;
  for (int32_t record : budget.slots) {
    if (record >= 0) sum += image_.process[record].gpu[gpu].granted;
  }
  return sum;
}

uint64_t Ledger::charged_of(const Budget& budget, uint32_t slot, uint32_t gpu) const {
  if (slot >= budget.slots.size() || budget.slots[slot] < 0) return 0;
  uint64_t grant = image_.process[budget.slots[slot]].gpu[gpu].granted;
  return grant - std::min(grant, available(budget, slot, gpu));
}

uint64_t Ledger::charged(const Budget& budget, uint32_t gpu) const {
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) sum += charged_of(budget, slot, gpu);
  return sum;
}

uint64_t Ledger::ungranted(const Budget& budget, uint32_t gpu) const {
  const BudgetGpu& g = budget.record->gpu[gpu];
  uint64_t taken = granted(budget, gpu) + g.hidden;
  return g.limit > taken ? g.limit - taken : 0;
}

uint64_t Ledger::free_in(const Budget& budget, uint32_t gpu) const {
  const BudgetGpu& g = budget.record->gpu[gpu];
  uint64_t taken = charged(budget, gpu) + g.hidden;
  return g.limit > taken ? g.limit - taken : 0;
}

std::optional<std::string> Ledger::check(const Budget& budget) const {
  for (uint32_t gpu = 0; gpu < budget.record->gpus; ++gpu) {
    uint64_t sum = granted(budget, gpu);
    if (sum > budget.record->gpu[gpu].limit) {
      return fmt::format("budget {} was granted {} bytes of GPU part {}, more than its limit of {}", budget.id(),
                         lease::to_bytes(sum), gpu, lease::to_bytes(budget.record->gpu[gpu].limit));
    }
  }
  return std::nullopt;
}

}  // namespace kvram::node
