// How the daemon comes up: folder, lock, ledger, journals, socket, and what an earlier daemon left.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "base/log.h"
#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/paths.h"
#include "node/process.h"

namespace kvram::node {
namespace {

namespace json = boost::json;

constexpr size_t kBudgetJournalBytes = 4u << 20;
constexpr size_t kOomJournalBytes = 2u << 20;
constexpr size_t kSpareFds = 128;  // for files that are no connection

size_t raise_fd_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

std::optional<NewBudget> budget_from(const json::object& o, const std::string& boot) {
  if (json_text(o, "boot") != boot) return std::nullopt;
  NewBudget budget;
  budget.id = json_number(o, "budget");
  budget.uid = static_cast<uint32_t>(json_number(o, "uid"));
  budget.gid = static_cast<uint32_t>(json_number(o, "gid"));
  budget.root_pid = static_cast<int32_t>(json_number(o, "root_pid"));
  budget.root_start = json_number(o, "root_start");
  budget.created = static_cast<double>(json_number(o, "created"));
  budget.strict = json_number(o, "strict") != 0;
  budget.card = json_number(o, "card") != 0;
  budget.command = json_text(o, "command");
  const json::value* gpus = o.if_contains("gpus");
  if (gpus == nullptr || !gpus->is_array()) return std::nullopt;
  for (const json::value& entry : gpus->get_array()) {
    model::Part part;
    const json::object* gpu = entry.if_object();
    if (gpu == nullptr || !model::parse_uuid(json_text(*gpu, "uuid"), part.uuid)) return std::nullopt;
    part.limit = Bytes(static_cast<int64_t>(json_number(*gpu, "limit")));
    budget.parts.push_back(part);
  }
  if (budget.id == 0 || budget.parts.empty() || budget.parts.size() > lease::kMaxGpus) return std::nullopt;
  return budget;
}

}  // namespace

double monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}
double unix_seconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::string budget_line(const BudgetRecord& record, const std::string& boot) {
  json::array gpus;
  for (uint32_t g = 0; g < record.gpus; ++g) {
    model::GpuUuid uuid;
    std::copy(std::begin(record.gpu[g].uuid), std::end(record.gpu[g].uuid), uuid.begin());
    gpus.push_back({{"uuid", model::uuid_text(uuid)}, {"limit", lease::to_bytes(record.gpu[g].limit)}});
  }
  return json::serialize(json::object{{"budget", record.id},
                                      {"boot", boot},
                                      {"uid", record.uid},
                                      {"gid", record.gid},
                                      {"root_pid", record.root_pid},
                                      {"root_start", record.root_start},
                                      {"created", static_cast<uint64_t>(record.created)},
                                      {"strict", record.strict},
                                      {"card", record.card},
                                      {"command", record.command},
                                      {"gpus", std::move(gpus)}});
}

Daemon::Daemon(const DaemonOptions& options) : options_(options) {}

Daemon::~Daemon() {
  std::vector<uint64_t> open;
  for (const auto& [id, c] : connections_) open.push_back(id);
  stopping_ = true;
  for (uint64_t id : open) close_connection(id);
  for (auto& [id, process] : watched_) close(process.pidfd);
  for (auto& [id, extra] : extras_) {
    if (extra.lease_fd >= 0) close(extra.lease_fd);
    if (extra.namespace_fd >= 0) close(extra.namespace_fd);
  }
  if (listener_ >= 0) unlink(socket_path(options_.run_dir).c_str());
  for (int fd : {epoll_, listener_, timer_, signals_, spare_fd_, lock_}) {
    if (fd >= 0) close(fd);
  }
}

Result<std::unique_ptr<Daemon>> Daemon::open(const DaemonOptions& options, std::unique_ptr<gpu::Source> source,
                                             const DriverFiles& files) {
  std::unique_ptr<Daemon> d(new Daemon(options));
  d->source_ = std::move(source);
  d->files_ = files;
  d->started_at_ = d->idle_since_ = monotonic_seconds();
  size_t fds = raise_fd_limit();
  d->max_connections_ = fds > 2 * kSpareFds ? std::min<size_t>(fds - kSpareFds, 12288) : fds / 2;
  bool system = geteuid() == 0;
  if (auto made = make_private_dir(options.run_dir, system ? 0755 : 0700); !made) return std::unexpected(made.error());
  if (auto made = make_private_dir(options.run_dir + "/pages", 0700); !made) return std::unexpected(made.error());
  if (auto locked = d->lock_folder(); !locked) return std::unexpected(locked.error());
  Result<ImageFile> image = ImageFile::open(options.run_dir, boot_id());
  if (!image) return std::unexpected(image.error());
  d->image_ = std::make_unique<ImageFile>(std::move(*image));
  if (!d->image_->warning().empty()) d->start_warnings_.push_back(d->image_->warning());
  d->ledger_ = std::make_unique<Ledger>(d->image_->image());
  Result<GuardFolder> guard = prepare_guard_folder(options.run_dir, lib_dir() + "/guard", files);
  if (!guard && guard.error().code != ErrorCode::kGuardMissing) return std::unexpected(guard.error());
  if (guard) {
    d->guard_ = std::move(*guard);
  } else {
    d->guard_fault_ = guard.error().message;  // reports still work
    d->start_warnings_.push_back(guard.error().message);
  }
  if (auto ready = d->open_loop(); !ready) return std::unexpected(ready.error());
  d->open_state();
  for (auto& [id, budget] : d->ledger_->budgets()) d->resume_budget(budget);
  d->measure();
  d->observe_all();
  d->reap();
  if (auto listening = d->open_socket(); !listening) return std::unexpected(listening.error());
  d->write_journals();
  for (const std::string& warning : d->start_warnings_) log::warning(warning);
  return d;
}

Result<void> Daemon::lock_folder() {
  std::string path = options_.run_dir + "/lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return fail(ErrorCode::kRunFolder, fmt::format("{} cannot be made: {}.", path, strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = "";
    ssize_t length = pread(lock_, pid, sizeof pid - 1, 0);
    std::string holder(pid, length > 0 ? static_cast<size_t>(length) : 0);
    close(lock_);
    lock_ = -1;
    return fail(
        ErrorCode::kSecondDaemon,
        fmt::format("Another vram-node (pid {}) serves {} already; two would grant the same memory twice. Use it, or "
                    "stop it with `vram daemon stop`.",
                    holder, options_.run_dir));
  }
  std::string self = std::to_string(getpid());
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, self.data(), self.size(), 0) < 0) {
    log::warning("Pid was not written to the lock", {{"path", path}});
  }
  return {};
}

Result<void> Daemon::open_socket() {
  std::string path = socket_path(options_.run_dir);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string fresh = path + ".new";
  if (fresh.size() >= sizeof address.sun_path) {
    return fail(
        ErrorCode::kRunFolder,
        fmt::format("The name of the socket, {}, is longer than the {} bytes that the system allows. Choose a run "
                    "folder with a shorter name.",
                    path, sizeof address.sun_path - 5));
  }
  memcpy(address.sun_path, fresh.c_str(), fresh.size() + 1);
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int on = 1;
  unlink(fresh.c_str());
  bool ready = listener_ >= 0 && setsockopt(listener_, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
               bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
               chmod(fresh.c_str(), geteuid() == 0 ? 0666 : 0600) == 0 && listen(listener_, 4096) == 0;
  // By rename, so that a stale socket is replaced without a moment in which there is none.
  if (!ready || rename(fresh.c_str(), path.c_str()) != 0) {
    return fail(ErrorCode::kRunFolder, fmt::format("The socket {} cannot be made: {}.", path, strerror(errno)));
  }
  return watch_fd(epoll_, listener_, event_token(EventKind::kListener, 0), EPOLLIN);
}

Result<void> Daemon::open_loop() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit is an error like a full disk
  signal(SIGHUP, SIG_IGN);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (epoll_ < 0 || timer_ < 0 || signals_ < 0) {
    return fail(ErrorCode::kInternal, fmt::format("The event loop cannot be made: {}.", strerror(errno)));
  }
  if (auto added = watch_fd(epoll_, timer_, event_token(EventKind::kTimer, 0), EPOLLIN); !added) return added;
  return watch_fd(epoll_, signals_, event_token(EventKind::kSignal, 0), EPOLLIN);
}

void Daemon::open_state() {
  // A folder that cannot be made shows as trouble of the journals.
  if (auto made = make_private_dir(options_.state_dir, 0700); !made) log::warning(made.error().message);
  budget_journal_ = std::make_unique<Journal>(options_.state_dir, "budgets.journal", kBudgetJournalBytes);
  oom_journal_ = std::make_unique<Journal>(options_.state_dir, "ooms.journal", kOomJournalBytes);
  restore_budgets(budget_journal_->load());
  uint64_t next_oom = 1;
  std::set<uint64_t> overcome;
  std::vector<Oom> ooms;
  for (const std::string& line : oom_journal_->load()) {
    boost::system::error_code bad;
    json::value value = json::parse(line, bad);
    if (const json::object* o = bad ? nullptr : value.if_object()) {
      if (uint64_t id = json_number(*o, "overcome"); id != 0) overcome.insert(id);
      if (o->if_contains("counted") != nullptr) ooms_.set_counted(json_number(*o, "counted"));
    }
    if (auto oom = oom_from_json(line)) ooms.push_back(std::move(*oom));
  }
  for (Oom& oom : ooms) {
    next_oom = std::max(next_oom, oom.id + 1);
    uint64_t id = oom.id;
    int32_t pid = oom.pid;
    ooms_.add(std::move(oom));
    if (overcome.contains(id)) ooms_.overcome(id, pid);
  }
  ledger_->raise_ids(1, next_oom);
  for (const Journal* journal : {budget_journal_.get(), oom_journal_.get()}) {
    if (!journal->kept_aside().empty()) start_warnings_.push_back(journal->kept_aside());
  }
}

void Daemon::restore_budgets(const std::vector<std::string>& lines) {
  std::string boot = boot_id();
  std::map<uint64_t, NewBudget> live;
  uint64_t next = 1;
  for (const std::string& line : lines) {
    boost::system::error_code bad;
    json::value value = json::parse(line, bad);
    const json::object* o = bad ? nullptr : value.if_object();
    if (o == nullptr) continue;
    next = std::max({next, json_number(*o, "budget") + 1, json_number(*o, "end") + 1});
    live.erase(json_number(*o, "end"));
    if (auto budget = budget_from(*o, boot)) live[budget->id] = std::move(*budget);
  }
  // The ledger in the run folder knows better wherever it was not lost.
  for (auto& [id, budget] : live) {
    auto facts = process_facts(budget.root_pid);
    if (!image_->fresh() || !facts || facts->start != budget.root_start) continue;
    if (auto made = ledger_->create(budget); made) {
      restored_.insert(id);
      log::warning("Budget was restored from the journal", {{"budget", std::to_string(id)}});
    }
  }
  ledger_->raise_ids(next, 1);
}

void Daemon::resume_budget(Budget& budget) {
  BudgetRecord& record = *budget.record;
  BudgetExtra& extra = extras_[record.id];
  extra.started = true;
  auto root = process_facts(record.root_pid);
  extra.root_dead = !root || root->start != record.root_start || root->state == 'Z' || root->state == 'X';
  if (!extra.root_dead) watch(record.root_pid, record.root_start);
  std::vector<int32_t> alive;
  for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
    ProcessRecord* p = ledger_->process(budget, slot);
    if (p == nullptr) continue;
    auto facts = process_facts(p->pid);
    bool dead = !facts || facts->start != p->start || facts->state == 'Z' || facts->state == 'X';
    ledger_->set_state(budget, slot, dead ? ProcessState::kDead : ProcessState::kDetached);
    if (dead) continue;
    watch(p->pid, p->start);
    alive.push_back(p->pid);
  }
  // The lease table lives as long as one process holds it: take it from there, before any of them asks for more.
  for (int32_t pid : alive) {
    if (budget.table != nullptr || record.lease_inode == 0) break;
    int fd = find_memfd(pid, record.lease_inode);
    if (fd >= 0 && !adopt_lease(budget, fd)) close(fd);
  }
  if (record.namespace_inode != 0) {
    if (!extra.root_dead) alive.push_back(record.root_pid);
    for (int32_t pid : alive) {
      if (extra.namespace_fd < 0) pin_namespace(budget, extra, pid);
    }
  }
  changing_ = true;
}

}  // namespace kvram::node
