#include "cli/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "cli/sim_models.h"
#include "cli/text.h"
#include "node/paths.h"

namespace kvram::cli {
namespace {

constexpr const char* kDefaultGpus = "1xA10";

double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double start_bound() {
  const char* text = getenv("KUBE_VRAM_START_SECONDS");
  double seconds = text == nullptr ? 0 : strtod(text, nullptr);
  return seconds > 0 && seconds <= 600 ? seconds : 10;
}

// What the daemon wrote last, in one line.
std::string last_words(const std::string& log_path) {
  int fd = open(log_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[4096];
  off_t size = lseek(fd, 0, SEEK_END);
  off_t from = size > static_cast<off_t>(sizeof text) ? size - static_cast<off_t>(sizeof text) : 0;
  ssize_t n = pread(fd, text, sizeof text, from);
  close(fd);
  std::string all(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (!all.empty() && (all.back() == '\n' || all.back() == ' ')) all.pop_back();
  size_t line = all.rfind('\n');
  std::string last = line == std::string::npos ? all : all.substr(line + 1);
  size_t skip = last.starts_with("vram-node: ") ? 11 : 0;
  return printable(last.substr(skip));
}

struct Started {
  pid_t pid = -1;
  int pidfd = -1;
  std::string log;
};

// In the grandchild: becomes the daemon. Reports errno and ends if that fails.
[[noreturn]] void become_daemon(const std::string& program, const Machine& machine, int log, int report_fd) {
  int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  if (machine.simulated) {
    setenv("KUBE_VRAM_SIM", machine.gpus.empty() ? kDefaultGpus : machine.gpus.c_str(), 1);
  } else {
    unsetenv("KUBE_VRAM_SIM");
  }
  if (chdir("/") != 0) _exit(70);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const char* arguments[] = {"vram-node", "--local", "--auto", nullptr};
  execv(program.c_str(), const_cast<char* const*>(arguments));
  int failed = -errno;
  [[maybe_unused]] ssize_t n = write(report_fd, &failed, sizeof failed);
  _exit(70);
}

struct Spawned {
  pid_t pid = -1;
  int failed = 0;  // errno
};

// The children send up the daemon's pid and, if it cannot be executed, its errno below zero.
Spawned read_report(int fd) {
  Spawned spawned;
  int number = 0;
  while (true) {
    ssize_t n = read(fd, &number, sizeof number);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof number) return spawned;
    if (number < 0) {
      spawned.failed = -number;
    } else {
      spawned.pid = number;
    }
  }
}

// Forks twice with a session of its own in between, so that no terminal and no job of the shell reaches the daemon.
Spawned spawn(const std::string& program, const Machine& machine, int log) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return {-1, errno};
  pid_t child = fork();
  if (child < 0) {
    Spawned none{-1, errno};
    close(pipes[0]);
    close(pipes[1]);
    return none;
  }
  if (child == 0) {
    setsid();
    pid_t daemon = fork();
    if (daemon == 0) become_daemon(program, machine, log, pipes[1]);
    int word = daemon < 0 ? -errno : daemon;
    [[maybe_unused]] ssize_t n = write(pipes[1], &word, sizeof word);
    _exit(daemon < 0 ? 70 : 0);
  }
  close(pipes[1]);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  Spawned spawned = read_report(pipes[0]);
  close(pipes[0]);
  return spawned;
}

Result<Started> start(const Machine& machine, const std::string& run_dir) {
  if (!machine.gpus.empty()) {
    std::ifstream file(node::prefix() + "/share/kube-vram/gpus.json");
    std::string catalogue(std::istreambuf_iterator<char>(file), {});
    if (Result<void> known = check_gpus(machine.gpus, catalogue); !known) return std::unexpected(known.error());
  }
  std::string program = node::prefix() + "/bin/vram-node";
  if (access(program.c_str(), X_OK) != 0) {
    return fail(ErrorCode::kDaemonStart,
                fmt::format("{} is missing or not executable ({}), so no daemon can be started. "
                            "Is the installation complete?",
                            program, strerror(errno)));
  }
  unsigned mode = geteuid() == 0 ? 0755 : 0700;
  if (machine.simulated) {
    if (Result<void> made = node::make_private_dir(node::run_dir(false), mode); !made)
      return std::unexpected(made.error());
  }
  if (Result<void> made = node::make_private_dir(run_dir, mode); !made) return std::unexpected(made.error());
  Started started;
  started.log = run_dir + "/node.log";
  int log = open(started.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (log < 0) {
    return fail(ErrorCode::kDaemonStart, fmt::format("{} cannot be written: {}.", started.log, strerror(errno)));
  }
  Spawned word = spawn(program, machine, log);
  close(log);
  if (word.pid <= 0 || word.failed != 0) {
    return fail(ErrorCode::kDaemonStart, fmt::format("{} could not be started: {}.", program, strerror(word.failed)));
  }
  started.pid = word.pid;
  started.pidfd = static_cast<int>(syscall(SYS_pidfd_open, started.pid, 0));
  return started;
}

// Tries to connect until it works, the daemon has ended (and no other took its place) or the time is up.
Result<node::Client> wait_ready(const std::string& run_dir, const Started& started) {
  double bound = start_bound();
  double give_up = seconds_now() + bound;
  bool ended = started.pidfd < 0;
  int pause_ms = 1;
  while (true) {
    Result<node::Client> client = node::Client::connect(run_dir);
    if (client || client.error().code != ErrorCode::kNoDaemon) return client;
    if (seconds_now() > give_up) break;
    pollfd watch{started.pidfd, POLLIN, 0};
    int fired = poll(&watch, ended ? 0 : 1, pause_ms);
    if (fired > 0 && !ended) {
      // Another daemon may have been first: it gets a moment to answer.
      ended = true;
      give_up = std::min(give_up, seconds_now() + 1);
    }
    pause_ms = std::min(pause_ms * 2, 20);
  }
  std::string words = last_words(started.log);
  std::string said = words.empty() ? "It said nothing." : "It said: " + words;
  if (ended) {
    return fail(ErrorCode::kDaemonStart,
                fmt::format("vram-node ended before it was ready. {} (All of it: {})", said, started.log));
  }
  return fail(ErrorCode::kDaemonStart, fmt::format("vram-node (pid {}) was not ready within {:g} s. {} (All of it: {})",
                                                   started.pid, bound, said, started.log));
}

Result<void> check_running(node::Client& client, const Machine& machine) {
  if (!machine.simulated || !machine.gpus_asked || machine.gpus.empty()) return {};
  Result<json::object> status = ask(client, {{"op", "status"}});
  if (!status) return std::unexpected(status.error());
  std::string running = text_at(*status, "sim");
  if (running.empty() || same_gpus(running, machine.gpus)) return {};
  return fail(ErrorCode::kSpecMismatch, fmt::format("The running simulation has {}, not {}. Leave the list away to use "
                                                    "it, or end it first: vram daemon stop --sim",
                                                    printable(running), printable(machine.gpus)));
}

}  // namespace

bool same_gpus(const std::string& a, const std::string& b) { return expand_gpus(a) == expand_gpus(b); }

Result<Machine> machine_of(const Invocation& line) {
  Machine machine;
  const char* set = getenv("KUBE_VRAM_SIM");
  std::string named = set == nullptr ? "" : set;
  machine.simulated = line.has("--sim") || !named.empty();
  std::string asked = line.value("--sim").value_or("");
  machine.gpus = asked.empty() ? named : asked;
  machine.gpus_asked = !asked.empty();
  if (!machine.gpus.empty() && !looks_like_gpus(machine.gpus)) {
    return fail(ErrorCode::kBadSimSpec,
                fmt::format("'{}' is no list of simulated GPUs. Write models of the catalogue with counts, as in "
                            "--sim 2xA10,1xH100-80GB, and -- before the command.",
                            printable(machine.gpus)));
  }
  return machine;
}

Result<node::Client> connect(const Machine& machine) {
  return node::Client::connect(node::client_run_dir(machine.simulated));
}

Result<node::Client> connect_or_start(const Machine& machine) {
  Result<node::Client> client = connect(machine);
  if (!client && client.error().code == ErrorCode::kNoDaemon) {
    std::string run_dir = node::run_dir(machine.simulated);
    Result<Started> started = start(machine, run_dir);
    if (!started) return std::unexpected(started.error());
    client = wait_ready(run_dir, *started);
    if (started->pidfd >= 0) close(started->pidfd);
  }
  if (!client) return client;
  if (Result<void> same = check_running(*client, machine); !same) return std::unexpected(same.error());
  return client;
}

Result<json::object> ask(node::Client& client, const json::object& request) {
  Result<std::string> reply = client.request(compact_json(request));
  if (!reply) return std::unexpected(reply.error());
  return parse_object(*reply);
}

}  // namespace kvram::cli
