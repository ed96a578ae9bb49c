// The node ledger's process: sockets, /proc and NVML around the pure Ledger. One thread, one epoll loop.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gpu/source.h"
#include "lease/wire.h"
#include "node/guard_folder.h"
#include "node/image_file.h"
#include "node/journal.h"
#include "node/ledger.h"
#include "node/oom_log.h"
#include "node/sentences.h"
#include "node/wait_queue.h"

namespace kvram::node {

struct DaemonOptions {
  std::string run_dir;    // complete, /sim included
  std::string state_dir;  // likewise
  std::string sim;        // the simulated machine; empty: the real driver
  bool strict_watch = false;
  bool leave_when_idle = false;  // --auto
};

enum class ConnectionKind { kSilent, kControl, kGuard, kObserver };

struct Connection {
  uint64_t id = 0;
  int fd = -1;
  int32_t pid = 0;  // of the connector, as the kernel says
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t start = 0;  // of the connector, once it had to be known
  ConnectionKind kind = ConnectionKind::kSilent;
  uint64_t budget = 0;  // guard: its budget; control: granted and not yet started
  uint32_t slot = 0;
  uint64_t waiter = 0;  // in the queue
  uint64_t run_seq = 0;
  double last = 0;  // monotonic seconds of the last message
  double told = 0;  // of the last `waiting` event
  std::string last_event;
  std::deque<std::string> out;
  size_t out_bytes = 0;
};

// What the daemon knows of a budget beside the ledger's records.
struct BudgetExtra {
  int lease_fd = -1;
  int namespace_fd = -1;  // pins the inode of its mount namespace
  bool root_dead = false;
  bool started = false;
  double term_sent = 0;  // monotonic seconds; 0: not
  bool kill_sent = false;
};

struct WatchedProcess {
  int32_t pid = 0;
  uint64_t start = 0;
  int pidfd = -1;
};

class Daemon {
 public:
  static Result<std::unique_ptr<Daemon>> open(const DaemonOptions& options, std::unique_ptr<gpu::Source> source,
                                              const DriverFiles& files);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  // Until it is told to stop. The exit status.
  int run();
  // One turn of the loop: waits at most `timeout_ms` (-1: for ever) for something to do and does it. False when it
  // cannot go on. For tests; run() calls it.
  bool step(int timeout_ms);
  // The first broken invariant of any budget, or nothing.
  std::optional<std::string> check() const;

 private:
  explicit Daemon(const DaemonOptions& options);

  // daemon_start.cc
  Result<void> open_socket();
  Result<void> lock_folder();
  void open_state();
  void restore_budgets(const std::vector<std::string>& lines);
  void resume_budget(Budget& budget);
  Result<void> open_loop();

  // daemon_loop.cc
  bool handle_event(uint64_t token, uint32_t events);
  void accept_all();
  void add_connection(int fd);
  bool make_room_for(uint32_t uid);
  void close_connection(uint64_t id);
  void read_connection(uint64_t id);
  bool handle_packet(Connection& c, std::string_view packet, int32_t sender, const std::vector<int>& fds);
  void flush(Connection& c);
  void send_packet(Connection& c, const void* data, size_t size, const int* fds = nullptr, size_t fd_count = 0);
  void send_json(Connection& c, uint64_t seq, std::string_view json);
  void send_error(Connection& c, uint64_t seq, const Error& error);
  void expire_connections();
  bool know_peer(Connection& c);
  void arm_timer();

  // daemon_guard.cc: false ends the connection
  bool on_hello(Connection& c, const lease::Hello& hello, const std::vector<int>& fds);
  bool on_refill(Connection& c, const lease::Refill& refill);
  bool on_physical_oom(Connection& c, const lease::PhysicalOom& message);
  bool on_release_shared(Connection& c, const lease::ReleaseShared& release);
  bool on_overcome(Connection& c, const lease::Overcome& message);
  bool refuse_hello(Connection& c, const lease::Hello& hello, const Error& error);
  void welcome(Connection& c, const lease::Hello& hello, Budget& budget, uint32_t slot);
  Result<void> ensure_pages(Budget& budget);
  Result<void> check_replay(Budget& budget, Connection& c, const lease::Hello& hello, const std::vector<int>& fds);
  bool adopt_lease(Budget& budget, int fd);
  Result<void> adopt_lost(Budget& budget, Connection& c, const lease::Hello& hello, const std::vector<int>& fds);
  Result<void> map_pages(Budget& budget, int lease_fd);
  void retire_old_slots(Budget& budget, const Connection& c);
  uint64_t record_oom(Budget& budget, uint32_t slot, uint32_t gpu, uint64_t asked, const char* call, bool physical);

  // daemon_watch.cc
  void watch(int32_t pid, uint64_t start);
  void on_death(uint64_t watch_id);
  void measure();
  void measure_if_older(double seconds);
  void observe_all();
  void reap();
  bool slot_is_gone(Budget& budget, uint32_t slot);
  void release_slot(Budget& budget, uint32_t slot);
  void end_finished_budgets();
  void end_budget(uint64_t id);
  void enforce_strict();
  void tick();
  void write_journals();
  Budget* budget_of(int32_t pid, uint64_t start);
  uint64_t budget_of_listed(int32_t pid);
  std::vector<int32_t> members_of(const Budget& budget);
  std::vector<int32_t> signal_members(const Budget& budget, int signal);
  int gpu_index(const uint8_t (&uuid)[16]) const;
  uint64_t resident_of(const Budget& budget, uint32_t gpu, int32_t pid = 0) const;  // units

  // daemon_run.cc
  std::vector<placement::GpuState> gpu_states() const;
  Connection* connection_of_waiter(uint64_t waiter);
  void expire_waiting();
  std::vector<GpuHolders> holders(uint32_t asker) const;
  void on_run(Connection& c, uint64_t seq, const std::string& text);
  void on_started(Connection& c, uint64_t seq, const std::string& text);
  void grant(Connection& c, const model::Request& request, const std::string& command, bool strict,
             const model::Assignment& parts);
  void send_refused(Connection& c, const Error& error);
  void serve_waiting();
  void tell_waiting(Connection& c, const Waiter& waiter, bool always);
  void pin_namespace(Budget& budget, BudgetExtra& extra, int32_t pid);
  std::optional<Error> below_reserve(const model::Request& request) const;
  std::vector<placement::GpuState> usable_states(const model::Request& request) const;
  std::string guard_json(uint64_t budget) const;

  // daemon_reports.cc
  void on_control(Connection& c, uint64_t seq, std::string_view text);
  std::string list_json(uint32_t asker);
  std::string oom_list_json(uint32_t asker);
  std::string status_json();
  Result<std::string> oom_detail_json(const std::string& text, uint32_t asker);
  Result<std::string> kill_json(const std::string& text, uint32_t asker);
  bool may_see(uint32_t asker, uint32_t owner) const { return asker == 0 || asker == owner; }
  std::vector<std::string> warnings() const;

  DaemonOptions options_;
  DriverFiles files_;
  GuardFolder guard_;
  std::string guard_fault_;
  std::unique_ptr<gpu::Source> source_;
  std::unique_ptr<ImageFile> image_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<Journal> budget_journal_;
  std::unique_ptr<Journal> oom_journal_;
  WaitQueue queue_;
  OomLog ooms_;

  int epoll_ = -1;
  int listener_ = -1;
  int lock_ = -1;
  int timer_ = -1;
  int signals_ = -1;
  int spare_fd_ = -1;
  bool stopping_ = false;

  uint64_t next_id_ = 1;
  size_t max_connections_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<uint32_t, size_t> idle_by_uid_;  // connections that hold no slot and do not wait
  std::unordered_map<uint64_t, BudgetExtra> extras_;
  std::unordered_set<uint64_t> restored_;  // budgets from the journal: their processes' records were lost
  std::unordered_map<uint64_t, WatchedProcess> watched_;  // by watch id
  std::unordered_map<int32_t, uint64_t> watch_of_pid_;
  struct PendingRun {
    bool strict = false;
    std::string command;
  };
  std::unordered_map<uint64_t, PendingRun> pending_;  // by waiter

  std::vector<gpu::Measurement> measured_;
  double measured_at_ = 0;
  double measure_cost_ = 0;
  std::optional<Error> driver_fault_;
  std::vector<Bytes> foreign_;                                         // per GPU of the inventory
  std::unordered_map<int32_t, std::pair<uint64_t, uint64_t>> listed_;  // pid -> {start, budget or 0}
  bool changing_ = false;                                              // look again soon
  double look_at_ = 0;                                                 // monotonic seconds of the next tick
  double idle_since_ = 0;
  double started_at_ = 0;
  double journals_at_ = 0;
  double rewrite_tried_at_ = 0;
  std::vector<std::string> start_warnings_;
};

double monotonic_seconds();
double unix_seconds();
std::string error_json(const Error& error);
// What implicit memory costs on a GPU of this name, until it is learned from measurements.
lease::CostModel cost_model(const std::string& gpu_name, bool simulated);

}  // namespace kvram::node
