// Processes that live until they are killed: their parent kills each at a random moment with SIGKILL and starts
// another, so that no process but its own can ever be hit. A few are steady: never killed, and they must end well.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "bazaar.h"
#include "options.h"
#include "rng.h"
#include "worker.h"

namespace chaos {

namespace {

volatile std::sig_atomic_t g_stop = 0;

class UntilStopped : public Stages {
 public:
  void reach(int) override {}
  bool stop() override { return g_stop != 0; }
};

double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

struct Member {
  pid_t pid = -1;
  double dies = 0;  // 0: steady
};

class Herd {
 public:
  explicit Herd(const Options& options)
      : options_(options), rng_(options.seed), bazaar_(options.herd, options.sharing != 0) {}
  int run();

 private:
  void start(int i, bool steady);
  void start_program(uint64_t seed);
  double pick_life();
  bool reap();
  bool asked_to_end() const;
  int finish();

  Options options_;
  Rng rng_;
  Bazaar bazaar_;
  std::vector<Member> members_;
  int killed_ = 0;
  int ended_ = 0;  // that nobody killed
};

// Half in the first moments, when a driver and a lease are being opened.
double Herd::pick_life() {
  const auto most = static_cast<uint64_t>(options_.life_ms) * 1000;
  return static_cast<double>(rng_.one_in(2) ? rng_.below(most / 10) : rng_.below(most)) / 1000;
}

void Herd::start_program(uint64_t seed) {
  std::string seed_arg = "--seed=" + std::to_string(seed >> 1);
  char program[] = "chaos";
  char ops[] = "--ops=1000000";
  char* argv[] = {program, ops, seed_arg.data(), nullptr};
  execv("/proc/self/exe", argv);
  _exit(127);
}

void Herd::start(int i, bool steady) {
  const uint64_t seed = rng_.next();
  const bool program = !steady && rng_.one_in(4);
  const pid_t pid = fork();
  if (pid < 0) fail("fork", std::strerror(errno));
  if (pid == 0) {
    std::signal(SIGTERM, [](int) { g_stop = 1; });
    if (program) start_program(seed);
    bazaar_.settle(i);
    Options own = options_;
    own.seed = seed;
    own.ops = -2;
    own.threads = seed % 4 == 0 ? 2 : 1;
    UntilStopped until;
    _exit(run_process(own, i, &bazaar_, &until));
  }
  members_[static_cast<size_t>(i)] = {pid, steady ? 0 : now_ms() + pick_life()};
}

// True if all is well: no process ended that was not killed.
bool Herd::reap() {
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& m = members_[i];
    int status = 0;
    if (m.dies != 0 && now_ms() >= m.dies) {
      // Not yet waited for, so the number is still this process's.
      kill(m.pid, SIGKILL);
      if (waitpid(m.pid, &status, 0) != m.pid) fail("waitpid", std::strerror(errno));
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        ++killed_;
      } else {
        ++ended_;
        std::printf("ended %d %d\n", m.pid, status);
      }
      bazaar_.drain(static_cast<int>(i));
      start(static_cast<int>(i), false);
    } else if (waitpid(m.pid, &status, WNOHANG) == m.pid) {
      ++ended_;
      std::printf("ended %d %d\n", m.pid, status);
      start(static_cast<int>(i), m.dies == 0);
    }
  }
  return ended_ == 0;
}

bool Herd::asked_to_end() const {
  pollfd p{0, POLLIN, 0};
  return options_.wait && poll(&p, 1, 0) > 0;
}

int Herd::finish() {
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& m = members_[i];
    int status = 0;
    kill(m.pid, m.dies == 0 ? SIGTERM : SIGKILL);
    if (m.dies != 0) {
      waitpid(m.pid, &status, 0);
      bazaar_.drain(static_cast<int>(i));
    }
  }
  for (Member& m : members_) {
    int status = 0;
    if (m.dies != 0) continue;
    while (waitpid(m.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
      ++ended_;
      std::printf("ended %d %d\n", m.pid, status);
    }
  }
  std::printf("killed %d\nended-alone %d\ndone\n", killed_, ended_);
  return ended_ == 0 ? 0 : 3;
}

int Herd::run() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  members_.resize(static_cast<size_t>(options_.herd));
  for (int i = 0; i < options_.herd; ++i) start(i, i < options_.steady);
  int told = 0;
  while (killed_ < options_.kills && reap() && !asked_to_end()) {
    if (killed_ >= told + 20) {
      told = killed_;
      std::printf("killed %d\n", told);
    }
    usleep(300);
  }
  return finish();
}

}  // namespace

int run_herd(const Options& options) { return Herd(options).run(); }

}  // namespace chaos
