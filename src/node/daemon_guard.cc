// Programs under a budget: who they are, the pages they share with the ledger, refills and post-mortems.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/process.h"

namespace kvram::node {
namespace {

constexpr int kLeaseSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

lease::Header reply_header(const lease::Header& to, lease::MessageType type, size_t size) {
  lease::Header header{};
  header.magic = lease::kWireMagic;
  header.version = lease::kWireVersion;
  header.type = static_cast<uint16_t>(type);
  header.length = static_cast<uint32_t>(size);
  header.seq = to.seq;
  return header;
}

std::string page_path(const std::string& run_dir, uint64_t budget) {
  return fmt::format("{}/pages/{}", run_dir, budget);
}

int make_lease(uint32_t gpus) {
  int fd = memfd_create("kube-vram-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(lease::table_bytes(gpus))) == 0 && fcntl(fd, F_ADD_SEALS, kLeaseSeals) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

// Of this size and unable to change it: a table that a program could shrink would end the daemon with SIGBUS.
bool is_lease(int fd, uint32_t gpus, uint64_t inode) {
  struct stat facts{};
  int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kLeaseSeals) == kLeaseSeals && fstat(fd, &facts) == 0 &&
         facts.st_size == static_cast<off_t>(lease::table_bytes(gpus)) && (inode == 0 || facts.st_ino == inode);
}

}  // namespace

bool Daemon::refuse_hello(Connection& c, const lease::Hello& hello, const Error& error) {
  lease::Refuse refuse{};
  refuse.header = reply_header(hello.header, lease::MessageType::kRefuse, sizeof refuse);
  refuse.code = static_cast<uint32_t>(error.code);
  size_t length = std::min(error.message.size(), sizeof refuse.sentence - 1);
  memcpy(refuse.sentence, error.message.data(), length);
  send_packet(c, &refuse, sizeof refuse);
  return false;
}

bool Daemon::on_hello(Connection& c, const lease::Hello& hello, const std::vector<int>& fds) {
  if (hello.abi != lease::kAbiVersion) {
    return refuse_hello(
        c, hello,
        {ErrorCode::kProtocol, fmt::format("The guard speaks version {} and the daemon {}: they come from "
                                           "different installations. Restart the daemon.",
                                           hello.abi, lease::kAbiVersion)});
  }
  Budget* budget = know_peer(c) ? budget_of(c.pid, c.start) : nullptr;
  if (budget == nullptr) {
    return refuse_hello(
        c, hello,
        {ErrorCode::kNotInBudget,
         fmt::format("Process {} is in no budget: it was not started by `vram run`, nor was a process above "
                     "it that still lives.",
                     c.pid)});
  }
  BudgetExtra& extra = extras_[budget->id()];
  if (budget->record->namespace_inode == 0 && budget->record->mode == static_cast<uint32_t>(BudgetMode::kNamespace)) {
    pin_namespace(*budget, extra, c.pid);  // a program that has begun lets us look, one before its exec may not
  }
  budget->record->unknown_symbols = std::max(budget->record->unknown_symbols, hello.unknown_symbols);
  if (hello.replay != 0) {
    if (auto checked = check_replay(*budget, c, hello, fds); !checked) return refuse_hello(c, hello, checked.error());
    ledger_->set_state(*budget, hello.slot, ProcessState::kLive);
    welcome(c, hello, *budget, hello.slot);
    return true;
  }
  if (auto pages = ensure_pages(*budget); !pages) return refuse_hello(c, hello, pages.error());
  if (hello.observer != 0) {
    welcome(c, hello, *budget, lease::kMaxSlots);
    return true;
  }
  retire_old_slots(*budget, c);
  auto facts = process_facts(c.pid);
  Result<uint32_t> slot = ledger_->add_process(*budget, c.pid, c.start, facts ? facts->name : "?");
  if (!slot) return refuse_hello(c, hello, slot.error());
  watch(c.pid, c.start);
  welcome(c, hello, *budget, *slot);
  return true;
}

void Daemon::welcome(Connection& c, const lease::Hello& hello, Budget& budget, uint32_t slot) {
  c.kind = slot == lease::kMaxSlots ? ConnectionKind::kObserver : ConnectionKind::kGuard;
  c.budget = budget.id();
  c.slot = slot;
  lease::Welcome message{};
  message.header = reply_header(hello.header, lease::MessageType::kWelcome, sizeof message);
  message.budget_id = budget.id();
  message.slot = slot == lease::kMaxSlots ? 0 : slot;  // an observer has none
  message.gpus = budget.record->gpus;
  message.simulated = options_.sim.empty() ? 0 : 1;
  int page = ::open(page_path(options_.run_dir, budget.id()).c_str(), O_RDONLY | O_CLOEXEC);
  int fds[2] = {extras_[budget.id()].lease_fd, page};
  if (page >= 0) {
    send_packet(c, &message, sizeof message, fds, 2);
    close(page);
  }
}

// What the program had before an exec goes once the driver shows that it is gone; most often it is by now.
void Daemon::retire_old_slots(Budget& budget, const Connection& c) {
  bool any = false;
  for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
    ProcessRecord* p = ledger_->process(budget, slot);
    if (p == nullptr || p->pid != c.pid || p->start != c.start) continue;
    if (ledger_->state(budget, slot) != ProcessState::kDetached) continue;
    ledger_->set_state(budget, slot, ProcessState::kStale);
    any = true;
  }
  if (!any) return;
  measure();
  observe_all();
  reap();
  changing_ = true;
}

Result<void> Daemon::ensure_pages(Budget& budget) {
  if (budget.table != nullptr) return {};
  for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
    ProcessState state = ledger_->state(budget, slot);
    if (state == ProcessState::kFree || state == ProcessState::kDead) continue;
    return fail(
        ErrorCode::kBadReplay,
        fmt::format("The daemon was restarted, and process {} of budget {} has not shown its lease again. Until it "
                    "does or ends, no new process can join.",
                    ledger_->process(budget, slot)->pid, budget.id()));
  }
  int fd = make_lease(budget.record->gpus);
  if (fd < 0) {
    return fail(ErrorCode::kInternal, fmt::format("The lease table cannot be made: {}.", strerror(errno)));
  }
  struct stat facts{};
  fstat(fd, &facts);
  budget.record->lease_inode = facts.st_ino;
  if (auto mapped = map_pages(budget, fd); !mapped) {
    close(fd);
    return mapped;
  }
  return {};
}

Result<void> Daemon::map_pages(Budget& budget, int lease_fd) {
  auto failed = [&](const char* what) {
    return fail(ErrorCode::kRunFolder, fmt::format("The {} of budget {} cannot be made: {}. Is the run folder {} full?",
                                                   what, budget.id(), strerror(errno), options_.run_dir));
  };
  std::string path = page_path(options_.run_dir, budget.id());
  int page_fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (page_fd < 0) return failed("grant page");
  if (int error = posix_fallocate(page_fd, 0, lease::kGrantBytes); error != 0) {
    close(page_fd);
    errno = error;
    return failed("grant page");
  }
  void* page = mmap(nullptr, lease::kGrantBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
  close(page_fd);
  size_t size = lease::table_bytes(budget.record->gpus);
  void* table = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, lease_fd, 0);
  if (page == MAP_FAILED || table == MAP_FAILED) {
    if (page != MAP_FAILED) munmap(page, lease::kGrantBytes);
    if (table != MAP_FAILED) munmap(table, size);
    return failed("shared memory");
  }
  extras_[budget.id()].lease_fd = lease_fd;
  auto* grant_page = static_cast<lease::GrantPage*>(page);
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    int index = gpu_index(budget.record->gpu[g].uuid);
    if (index < 0) continue;
    const model::Gpu& gpu = source_->inventory().gpus[static_cast<size_t>(index)];
    grant_page->gpu[g].physical_total_bytes = static_cast<uint64_t>(gpu.total.count());
    grant_page->gpu[g].cost = cost_model(gpu.name, !options_.sim.empty());
    uint64_t free = 0;
    if (static_cast<size_t>(index) < measured_.size()) {
      free = static_cast<uint64_t>(measured_[static_cast<size_t>(index)].free.count());
    }
    __atomic_store_n(&grant_page->gpu[g].physical_free_bytes, free, __ATOMIC_RELAXED);
  }
  ledger_->attach(budget, static_cast<uint64_t*>(table), grant_page);
  return {};
}

bool Daemon::adopt_lease(Budget& budget, int fd) {
  if (!is_lease(fd, budget.record->gpus, budget.record->lease_inode)) return false;
  return map_pages(budget, fd).has_value();
}

Result<void> Daemon::check_replay(Budget& budget, Connection& c, const lease::Hello& hello,
                                  const std::vector<int>& fds) {
  auto no = [&](const char* why) {
    return fail(ErrorCode::kBadReplay,
                fmt::format("Process {} came back to budget {} with a lease that is not its own: {}.", c.pid,
                            budget.id(), why));
  };
  if (hello.budget_id != budget.id()) return no("it names another budget than the one it is in");
  ProcessRecord* p = ledger_->process(budget, hello.slot);
  if (p == nullptr && restored_.contains(budget.id())) return adopt_lost(budget, c, hello, fds);
  if (p == nullptr) return no("the ledger knows no such slot");
  if (p->pid != c.pid || p->start != c.start) return no("the slot belongs to another process");
  for (const auto& [id, other] : connections_) {
    if (other.get() != &c && other->kind == ConnectionKind::kGuard && other->budget == budget.id() &&
        other->slot == hello.slot) {
      return no("the slot is in use by another connection of the process");
    }
  }
  if (fds.size() != 1 || !is_lease(fds[0], budget.record->gpus, budget.record->lease_inode)) {
    return no("the memory that it shows is not the budget's lease table");
  }
  if (budget.table != nullptr) return {};
  int own = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
  if (own < 0 || !adopt_lease(budget, own)) {
    if (own >= 0) close(own);
    return no("the lease table cannot be mapped");
  }
  return {};
}

// The ledger's records were lost with the run folder: what the program says it was granted counts, below the limit and
// never less than what its own word shows. Memory beyond it that the driver shows becomes hidden, so a lie gains
// nothing.
Result<void> Daemon::adopt_lost(Budget& budget, Connection& c, const lease::Hello& hello, const std::vector<int>& fds) {
  if (fds.size() != 1 || !is_lease(fds[0], budget.record->gpus, budget.record->lease_inode)) {
    return fail(ErrorCode::kBadReplay,
                fmt::format("Process {} shows memory that is no lease table of budget {}.", c.pid, budget.id()));
  }
  if (budget.table == nullptr) {
    struct stat facts{};
    fstat(fds[0], &facts);
    int own = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
    budget.keeps_words = true;
    budget.record->lease_inode = facts.st_ino;
    if (own < 0 || !adopt_lease(budget, own)) {
      if (own >= 0) close(own);
      budget.record->lease_inode = 0;
      return fail(ErrorCode::kBadReplay, fmt::format("The lease table of budget {} cannot be mapped.", budget.id()));
    }
  }
  auto facts = process_facts(c.pid);
  std::string name = facts ? facts->name : "?";
  auto adopted = ledger_->adopt_process(budget, hello.slot, c.pid, c.start, name, hello.granted_units);
  if (adopted) watch(c.pid, c.start);
  return adopted;
}

bool Daemon::on_refill(Connection& c, const lease::Refill& refill) {
  Budget* budget = ledger_->find(c.budget);
  lease::RefillReply reply{};
  reply.header = reply_header(refill.header, lease::MessageType::kRefillReply, sizeof reply);
  if (budget == nullptr || ledger_->state(*budget, c.slot) != ProcessState::kLive) return false;
  RefillStatus status = ledger_->refill(*budget, c.slot, refill.gpu, refill.need_units);
  reply.status = static_cast<uint32_t>(lease::RefillStatus::kGranted);
  if (status == RefillStatus::kInvalid) reply.status = static_cast<uint32_t>(lease::RefillStatus::kInvalid);
  if (status == RefillStatus::kRefused) {
    reply.status = static_cast<uint32_t>(lease::RefillStatus::kRefused);
    reply.oom_id = record_oom(*budget, c.slot, refill.gpu, refill.asked_bytes, refill.call, false);
  }
  if (status != RefillStatus::kInvalid) {
    reply.granted_units = ledger_->process(*budget, c.slot)->gpu[refill.gpu].granted;
  }
  if (budget->distrusted) log::error("Budget broke an invariant", {{"budget", std::to_string(budget->id())}});
  send_packet(c, &reply, sizeof reply);
  return true;
}

bool Daemon::on_physical_oom(Connection& c, const lease::PhysicalOom& message) {
  Budget* budget = ledger_->find(c.budget);
  if (budget == nullptr || message.gpu >= budget->record->gpus) return false;
  measure_if_older(0.02);
  record_oom(*budget, c.slot, message.gpu, message.asked_bytes, message.call, true);
  return true;
}

bool Daemon::on_release_shared(Connection& c, const lease::ReleaseShared& release) {
  Budget* budget = ledger_->find(c.budget);
  if (budget == nullptr || release.gpu >= budget->record->gpus) return false;
  ledger_->before_measurement();
  measure();
  uint64_t resident = resident_of(*budget, release.gpu);
  bool done = ledger_->release_shared(*budget, c.slot, release.gpu, release.units, release.header.seq, resident);
  lease::RefillReply reply{};
  reply.header = reply_header(release.header, lease::MessageType::kRefillReply, sizeof reply);
  reply.status = static_cast<uint32_t>(done ? lease::RefillStatus::kGranted : lease::RefillStatus::kInvalid);
  ProcessRecord* p = ledger_->process(*budget, c.slot);
  reply.granted_units = p == nullptr ? 0 : p->gpu[release.gpu].granted;
  send_packet(c, &reply, sizeof reply);
  changing_ = true;
  return true;
}

bool Daemon::on_overcome(Connection& c, const lease::Overcome& message) {
  Budget* budget = ledger_->find(c.budget);
  const Oom* oom = ooms_.find(message.oom_id);
  if (budget == nullptr) return false;
  if (oom == nullptr || oom->budget != budget->id() || !ooms_.overcome(message.oom_id, c.pid)) return true;
  ++budget->record->overcome;
  oom_journal_->append(fmt::format("{{\"overcome\":{}}}", message.oom_id));
  return true;
}

uint64_t Daemon::record_oom(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t asked, const char* call,
                            bool physical) {
  ProcessRecord* process = ledger_->process(budget, slot);
  BudgetRecord& record = *budget.record;
  if (process == nullptr) return 0;
  Oom oom;
  oom.id = ledger_->take_oom_id();
  oom.time = unix_seconds();
  oom.budget = record.id;
  oom.uid = record.uid;
  oom.command = record.command;
  oom.pid = process->pid;
  oom.process = std::string(process->name, strnlen(process->name, sizeof process->name));
  oom.call = std::string(call, strnlen(call, lease::kMaxCallName));
  std::erase_if(oom.call, [](char ch) { return !isalnum(static_cast<unsigned char>(ch)) && ch != '_'; });
  oom.asked = asked;
  oom.gpu = gpu_index(record.gpu[gpu].uuid);
  oom.limit = lease::to_bytes(record.gpu[gpu].limit);
  oom.charged = lease::to_bytes(ledger_->charged(budget, gpu));
  oom.hidden = lease::to_bytes(record.gpu[gpu].hidden);
  oom.free_in_budget = oom.would_fit = lease::to_bytes(ledger_->free_in(budget, gpu));
  oom.physical = physical;
  for (uint32_t s = 0; s < budget.slots.size(); ++s) {
    ProcessRecord* p = ledger_->process(budget, s);
    if (p == nullptr) continue;
    uint64_t charged = lease::to_bytes(ledger_->charged_of(budget, s, gpu));
    uint64_t resident = lease::to_bytes(resident_of(budget, gpu, p->pid));
    if (charged != 0 || resident != 0 || s == slot) oom.processes.push_back({p->pid, p->name, charged, resident});
  }
  if (oom.gpu >= 0 && static_cast<size_t>(oom.gpu) < measured_.size()) {
    auto index = static_cast<size_t>(oom.gpu);
    const model::Gpu& info = source_->inventory().gpus[index];
    oom.gpu_total = static_cast<uint64_t>(info.total.count());
    oom.gpu_reserved = static_cast<uint64_t>(info.reserved.count());
    oom.gpu_free = static_cast<uint64_t>(measured_[index].free.count());
    oom.gpu_foreign = index < foreign_.size() ? static_cast<uint64_t>(foreign_[index].count()) : 0;
    if (physical) oom.would_fit = std::min(oom.would_fit, oom.gpu_free);
    for (auto& [id, other] : ledger_->budgets()) {
      for (uint32_t g = 0; g < other.record->gpus && oom.neighbours.size() < 64; ++g) {
        if (memcmp(other.record->gpu[g].uuid, record.gpu[gpu].uuid, 16) != 0) continue;
        oom.neighbours.push_back({id, lease::to_bytes(other.record->gpu[g].limit),
                                  lease::to_bytes(ledger_->charged(other, g) + other.record->gpu[g].hidden)});
      }
    }
  }
  ++record.refused;
  if (budget.page != nullptr) __atomic_store_n(&budget.page->refused, record.refused, __ATOMIC_RELAXED);
  uint64_t id = oom.id;
  oom_journal_->append(oom_json(oom, true));
  ooms_.add(std::move(oom));
  return id;
}

}  // namespace kvram::node
