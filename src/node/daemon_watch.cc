// The watch: what the driver shows against what was granted, deaths, budgets that end, budgets that hold too much.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/process.h"

namespace kvram::node {
namespace {

constexpr int kMaxAncestors = 64;
constexpr double kTermToKillSeconds = 5;
constexpr double kRewriteRetrySeconds = 5;

int pidfd_signal(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

}  // namespace

void Daemon::watch(int32_t pid, uint64_t start) {
  if (auto it = watch_of_pid_.find(pid); it != watch_of_pid_.end()) {
    if (watched_[it->second].start == start) return;
    on_death(it->second);  // the pid has a new owner, so the one before ended
  }
  int fd = open_pidfd(pid, start);
  if (fd < 0) {
    changing_ = true;  // ended by now: the next look at /proc finds it
    return;
  }
  uint64_t id = next_id_++;
  if (!watch_fd(epoll_, fd, event_token(EventKind::kDeath, id), EPOLLIN)) {
    close(fd);
    return;
  }
  watched_[id] = {pid, start, fd};
  watch_of_pid_[pid] = id;
}

void Daemon::on_death(uint64_t watch_id) {
  auto it = watched_.find(watch_id);
  if (it == watched_.end()) return;
  WatchedProcess process = it->second;
  close(process.pidfd);
  watched_.erase(it);
  watch_of_pid_.erase(process.pid);
  for (auto& [id, budget] : ledger_->budgets()) {
    if (budget.record->root_pid == process.pid && budget.record->root_start == process.start)
      extras_[id].root_dead = true;
    for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
      ProcessRecord* p = ledger_->process(budget, slot);
      if (p != nullptr && p->pid == process.pid && p->start == process.start) {
        ledger_->set_state(budget, slot, ProcessState::kDead);
      }
    }
  }
  changing_ = true;
}

void Daemon::measure() {
  double before = monotonic_seconds();
  ledger_->before_measurement();
  Result<std::vector<gpu::Measurement>> result = source_->measure();
  double now = monotonic_seconds();
  measure_cost_ = now - before;
  measured_at_ = now;
  if (!result) {
    if (!driver_fault_) log::error("Driver stopped answering", {{"reason", result.error().message}});
    driver_fault_ = result.error();
    return;
  }
  driver_fault_.reset();
  measured_ = std::move(*result);
  foreign_.assign(measured_.size(), Bytes(0));
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < measured_.size(); ++i) {
    Bytes own;
    for (const gpu::ProcessMemory& p : measured_[i].processes) {
      seen.insert(p.pid);
      if (budget_of_listed(p.pid) != 0) own += p.resident;
    }
    // Memory of no listed process (other pid namespaces, other users of the driver) is foreign too.
    foreign_[i] = std::max(Bytes(0), measured_[i].used - own);
  }
  std::erase_if(listed_, [&](const auto& entry) { return !seen.contains(entry.first); });
}

void Daemon::measure_if_older(double seconds) {
  if (monotonic_seconds() - measured_at_ > std::max(seconds, measure_cost_ * 5)) measure();
}

uint64_t Daemon::budget_of_listed(int32_t pid) {
  auto facts = process_facts(pid);
  if (!facts) {
    // Dead and still listed: it belongs to the budget that waits for it.
    for (auto& [id, budget] : ledger_->budgets()) {
      for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
        ProcessRecord* p = ledger_->process(budget, slot);
        if (p != nullptr && p->pid == pid) return id;
      }
    }
    auto known = listed_.find(pid);
    return known != listed_.end() && ledger_->find(known->second.second) != nullptr ? known->second.second : 0;
  }
  auto it = listed_.find(pid);
  if (it != listed_.end() && it->second.first == facts->start && ledger_->find(it->second.second) != nullptr) {
    return it->second.second;
  }
  Budget* budget = budget_of(pid, facts->start);
  uint64_t id = budget == nullptr ? 0 : budget->id();
  listed_[pid] = {facts->start, id};
  return id;
}

// By kernel facts alone: its own registration, that of a living ancestor, or its mount namespace.
Budget* Daemon::budget_of(int32_t pid, uint64_t start) {
  std::unordered_map<int32_t, std::pair<uint64_t, Budget*>> known;
  std::unordered_map<uint64_t, Budget*> namespaces;
  for (auto& [id, budget] : ledger_->budgets()) {
    for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
      if (ProcessRecord* p = ledger_->process(budget, slot)) known.try_emplace(p->pid, p->start, &budget);
    }
    known[budget.record->root_pid] = {budget.record->root_start, &budget};
    if (budget.record->namespace_inode != 0) namespaces[budget.record->namespace_inode] = &budget;
  }
  int32_t at = pid;
  for (int i = 0; i < kMaxAncestors && at > 1; ++i) {
    auto facts = process_facts(at);
    if (!facts || (i == 0 && facts->start != start)) break;
    auto it = known.find(at);
    if (it != known.end() && it->second.first == facts->start) return it->second.second;
    at = facts->parent;
  }
  if (namespaces.empty()) return nullptr;
  auto it = namespaces.find(mount_namespace_of(pid));
  return it == namespaces.end() ? nullptr : it->second;
}

int Daemon::gpu_index(const uint8_t (&uuid)[16]) const {
  const auto& gpus = source_->inventory().gpus;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (memcmp(gpus[i].uuid.data(), uuid, 16) == 0) return static_cast<int>(i);
  }
  return -1;
}

uint64_t Daemon::resident_of(const Budget& budget, uint32_t gpu, int32_t pid) const {
  int index = gpu_index(budget.record->gpu[gpu].uuid);
  if (index < 0 || static_cast<size_t>(index) >= measured_.size()) return 0;
  uint64_t units = 0;
  for (const gpu::ProcessMemory& p : measured_[static_cast<size_t>(index)].processes) {
    if (pid != 0 ? p.pid != pid : false) continue;
    if (pid == 0) {
      auto it = listed_.find(p.pid);
      bool registered = it != listed_.end() && it->second.second == budget.id();
      for (size_t s = 0; !registered && s < budget.slots.size(); ++s) {
        if (budget.slots[s] < 0) continue;
        registered = image_->image().process[budget.slots[s]].pid == p.pid;
      }
      if (!registered) continue;
    }
    units += lease::to_units(static_cast<uint64_t>(p.resident.count()));
  }
  return units;
}

void Daemon::observe_all() {
  if (driver_fault_) return;
  for (auto& [id, budget] : ledger_->budgets()) {
    for (uint32_t g = 0; g < budget.record->gpus; ++g) {
      uint64_t before = budget.watch[g].excess_before;
      ledger_->observe(budget, g, resident_of(budget, g));
      changing_ = changing_ || budget.watch[g].excess_before != before;
      int index = gpu_index(budget.record->gpu[g].uuid);
      if (budget.page == nullptr || index < 0 || static_cast<size_t>(index) >= measured_.size()) continue;
      auto free = static_cast<uint64_t>(measured_[static_cast<size_t>(index)].free.count());
      __atomic_store_n(&budget.page->gpu[g].physical_free_bytes, free, __ATOMIC_RELAXED);
    }
  }
}

// Whether the driver shows nothing any more of what a slot held.
bool Daemon::slot_is_gone(Budget& budget, uint32_t slot) {
  ProcessRecord* p = ledger_->process(budget, slot);
  ProcessState state = ledger_->state(budget, slot);
  auto facts = process_facts(p->pid);
  bool same = facts && facts->start == p->start;
  if (state != ProcessState::kDead && !same) state = ProcessState::kDead;
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    uint64_t resident = resident_of(budget, g, p->pid);
    if (resident == 0) continue;
    if (state == ProcessState::kDead) {
      if (facts && !same) continue;  // the pid has a new owner: what is listed is its
      return false;
    }
    if (state == ProcessState::kDetached) return false;
    uint64_t others = 0;  // charged by what the process is now
    for (uint32_t s = 0; s < budget.slots.size(); ++s) {
      ProcessRecord* q = ledger_->process(budget, s);
      if (s != slot && q != nullptr && q->pid == p->pid && ledger_->state(budget, s) == ProcessState::kLive) {
        others += ledger_->charged_of(budget, s, g);
      }
    }
    if (resident > others) return false;
  }
  if (state != ProcessState::kDetached) return true;
  // Not listed, but alive: an exec has dropped the lease, while a program that only lost its connection (a restart of
  // this daemon) has it still and may be about to use it.
  int fd = find_memfd(p->pid, budget.record->lease_inode);
  if (fd >= 0) close(fd);
  return fd < 0 && mount_namespace_of(p->pid) != 0;  // 0: the kernel does not let us look
}

void Daemon::release_slot(Budget& budget, uint32_t slot) {
  // Siblings may keep what it shared with them: that becomes theirs, unannounced, before its charge goes.
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    ledger_->observe(budget, g, resident_of(budget, g), true, ledger_->charged_of(budget, slot, g));
  }
  ledger_->close_process(budget, slot);
}

void Daemon::reap() {
  if (driver_fault_) return;  // nothing is known of what is resident: keep every charge
  for (auto& [id, budget] : ledger_->budgets()) {
    for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
      ProcessState state = ledger_->state(budget, slot);
      if (state == ProcessState::kFree || state == ProcessState::kLive) continue;
      if (slot_is_gone(budget, slot)) {
        release_slot(budget, slot);
      }
      if (state == ProcessState::kDead || state == ProcessState::kStale) changing_ = true;
    }
  }
  end_finished_budgets();
}

void Daemon::end_finished_budgets() {
  std::vector<uint64_t> candidates;
  for (auto& [id, budget] : ledger_->budgets()) {
    BudgetExtra& extra = extras_[id];
    // Before its exec a process in a user namespace of its own does not let an ordinary user look; after it, it does.
    if (!extra.root_dead && budget.record->namespace_inode == 0 &&
        budget.record->mode == static_cast<uint32_t>(BudgetMode::kNamespace)) {
      pin_namespace(budget, extra, budget.record->root_pid);
    }
    if (!extra.root_dead && !watch_of_pid_.contains(budget.record->root_pid)) {
      auto facts = process_facts(budget.record->root_pid);
      extra.root_dead = !facts || facts->start != budget.record->root_start;
    }
    bool used = std::any_of(budget.slots.begin(), budget.slots.end(), [](int32_t r) { return r >= 0; });
    if (extra.root_dead && !used) candidates.push_back(id);
  }
  if (candidates.empty()) return;
  std::unordered_set<uint64_t> in_use;
  bool any_namespace = std::any_of(candidates.begin(), candidates.end(),
                                   [&](uint64_t id) { return ledger_->find(id)->record->namespace_inode != 0; });
  if (any_namespace) {
    for (int32_t pid : all_pids()) in_use.insert(mount_namespace_of(pid));
  }
  for (uint64_t id : candidates) {
    uint64_t inode = ledger_->find(id)->record->namespace_inode;
    bool lives_on = inode != 0 && in_use.contains(inode);
    for (uint32_t g = 0; g < ledger_->find(id)->record->gpus; ++g) {
      lives_on = lives_on || resident_of(*ledger_->find(id), g) != 0;  // a program that slipped past the guard
    }
    if (!lives_on) end_budget(id);
  }
}

void Daemon::end_budget(uint64_t id) {
  Budget* budget = ledger_->find(id);
  if (budget == nullptr) return;
  BudgetExtra extra = extras_[id];
  uint64_t* table = budget->table;
  lease::GrantPage* page = budget->page;
  size_t table_size = lease::table_bytes(budget->record->gpus);
  log::info("Budget ended", {{"budget", std::to_string(id)}});
  ledger_->end(id);
  if (table != nullptr) munmap(table, table_size);
  if (page != nullptr) munmap(page, lease::kGrantBytes);
  if (extra.lease_fd >= 0) close(extra.lease_fd);
  if (extra.namespace_fd >= 0) close(extra.namespace_fd);
  extras_.erase(id);
  unlink(fmt::format("{}/pages/{}", options_.run_dir, id).c_str());
  budget_journal_->append(fmt::format("{{\"end\":{}}}", id));
  changing_ = true;
}

// Every process that the kernel says is in the budget, registered or not.
std::vector<int32_t> Daemon::members_of(const Budget& budget) {
  std::vector<int32_t> members;
  for (int32_t pid : all_pids()) {
    auto facts = process_facts(pid);
    if (facts && facts->state != 'Z' && budget_of(pid, facts->start) == &budget) members.push_back(pid);
  }
  return members;
}

std::vector<int32_t> Daemon::signal_members(const Budget& budget, int signal) {
  std::vector<int32_t> signalled;
  for (int32_t pid : members_of(budget)) {
    auto facts = process_facts(pid);
    int fd = facts ? open_pidfd(pid, facts->start) : -1;
    if (fd < 0) continue;
    if (pidfd_signal(fd, signal) == 0) signalled.push_back(pid);
    close(fd);
  }
  return signalled;
}

void Daemon::enforce_strict() {
  double now = monotonic_seconds();
  for (auto& [id, budget] : ledger_->budgets()) {
    BudgetExtra& extra = extras_[id];
    bool over = false;
    for (uint32_t g = 0; g < budget.record->gpus; ++g) {
      over = over || budget.watch[g].over_count >= 2;
      if (budget.watch[g].over_count == 1) changing_ = true;
    }
    if (!over) {
      if (extra.term_sent == 0) continue;
      extra.term_sent = 0;
      extra.kill_sent = false;
    } else if (budget.record->strict == 0) {
      log::warning("Budget holds more than its limit", {{"budget", std::to_string(id)}});
    } else if (extra.term_sent == 0) {
      extra.term_sent = now;
      log::warning("Budget holds more than its limit and was told to end", {{"budget", std::to_string(id)}});
      signal_members(budget, SIGTERM);
    } else if (now - extra.term_sent > kTermToKillSeconds) {
      if (!extra.kill_sent) log::warning("Budget did not end and was killed", {{"budget", std::to_string(id)}});
      extra.kill_sent = true;
      signal_members(budget, SIGKILL);
    }
  }
}

std::optional<std::string> Daemon::check() const {
  for (const auto& [id, budget] : ledger_->budgets()) {
    if (auto broken = ledger_->check(budget)) return broken;
  }
  return std::nullopt;
}

void Daemon::tick() {
  changing_ = false;
  bool all_quiet = ledger_->budgets().empty() && queue_.waiting().empty();
  if (!all_quiet || monotonic_seconds() - measured_at_ > 5) {
    measure();
    observe_all();
    reap();
    enforce_strict();
    serve_waiting();
    if (auto broken = check()) log::error("Invariant of the ledger is broken", {{"what", *broken}});
  }
  expire_connections();
  if (monotonic_seconds() - journals_at_ > 0.5) write_journals();
}

void Daemon::write_journals() {
  double now = monotonic_seconds();
  bool retry = now - rewrite_tried_at_ > kRewriteRetrySeconds || stopping_;
  journals_at_ = now;
  if (retry) rewrite_tried_at_ = now;
  if (budget_journal_->wants_rewrite() && (!budget_journal_->trouble() || retry)) {
    std::vector<std::string> lines;
    std::string boot = boot_id();
    for (auto& [id, budget] : ledger_->budgets()) lines.push_back(budget_line(*budget.record, boot));
    // The last number given out, so that none is given twice.
    lines.push_back(fmt::format("{{\"end\":{}}}", image_->image().next_budget - 1));
    budget_journal_->rewrite(lines);
  }
  if (oom_journal_->wants_rewrite() && (!oom_journal_->trouble() || retry)) {
    std::vector<std::string> lines = {fmt::format("{{\"counted\":{}}}", ooms_.counted_overcome())};
    for (const Oom& oom : ooms_.all()) lines.push_back(oom_json(oom, true));
    oom_journal_->rewrite(lines);
  }
  budget_journal_->sync();
  oom_journal_->sync();
}

}  // namespace kvram::node
