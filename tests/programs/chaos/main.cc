// A program that takes and gives back GPU memory in every way, in a random order that its seed decides.
//   chaos --seed=7 --ops=200                        one process
//   chaos --processes=3 --threads=2 --gpus=2        siblings that share memory with each other
//   chaos --wait ...                                stops with "held" half-way, "idle" and "freed"; goes on at a line
//   on standard input chaos --mode=herd --herd=6 --steady=1 --kills=100 --life-ms=300      processes that are killed at
//   random moments chaos --mode=exact-rest --processes=3           an unspent lease must not cost a sibling its memory
//   chaos --mode=limits --threads=4                threads set one context's limits at the same time
// Exit status: 0 well, 1 a wrong refusal, 2 usage, 3 a call went wrong, 4 a process was lost.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "bazaar.h"
#include "driver.h"
#include "options.h"
#include "team.h"

namespace chaos {
namespace {

constexpr const char* kStageNames[] = {"held", "idle", "freed"};

void wait_for_line(const Options& options) {
  if (!options.wait) return;
  char c = 0;
  while (read(0, &c, 1) == 1 && c != '\n') {
  }
}

void announce(const Options& options, int stage) {
  if (!options.wait) return;
  std::printf("%s\n", kStageNames[stage]);
  std::fflush(stdout);
  wait_for_line(options);
}

class Alone : public Stages {
 public:
  explicit Alone(const Options& options) : options_(options) {}
  void reach(int stage) override {
    if (stage != kOpened) announce(options_, stage);
  }

 private:
  const Options& options_;
};

class InStep : public Stages {
 public:
  explicit InStep(Steps& steps) : steps_(steps) {}
  void reach(int) override { steps_.reach(); }

 private:
  Steps& steps_;
};

int lost(std::vector<pid_t>& children, pid_t who, int status) {
  std::fprintf(stderr, "chaos: process %d ended early with status %#x\n", who, static_cast<unsigned>(status));
  for (pid_t& pid : children) {
    if (pid == who) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return 4;
}

int run_team(const Options& options) {
  Bazaar bazaar(options.processes, options.sharing != 0);
  Steps steps;
  std::vector<pid_t> children;
  for (int i = 0; i < options.processes; ++i) {
    pid_t pid = fork();
    if (pid == 0) {
      bazaar.settle(i);
      InStep stages(steps);
      _exit(run_process(options, i, &bazaar, &stages));
    }
    children.push_back(pid);
  }
  for (int stage = kOpened; stage < 3; ++stage) {
    while (!steps.arrived(options.processes, 50)) {
      int status = 0;
      pid_t who = waitpid(-1, &status, WNOHANG);
      if (who > 0) return lost(children, who, status);
    }
    if (stage != kOpened) announce(options, stage);
    steps.release();
  }
  int worst = 0;
  for (pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) worst = 4;
  }
  return worst;
}

bool number(std::string_view arg, std::string_view name, long long* out) {
  if (!arg.starts_with(name) || arg.size() <= name.size() || arg[name.size()] != '=') return false;
  *out = std::atoll(arg.data() + name.size() + 1);
  return true;
}

bool parse_one(const char* arg, Options* o) {
  long long n = 0;
  const std::string_view a = arg;
  if (number(a, "--seed", &n)) return o->seed = static_cast<uint64_t>(n), true;
  if (a == "--wait") return o->wait = true;
  if (a.starts_with("--mode=")) return o->mode = arg + 7, true;
  if (a.starts_with("--library=")) return o->library = arg + 10, true;
  struct Flag {
    const char* name;
    int Options::* field;
  };
  constexpr Flag kFlags[] = {{"--ops", &Options::ops},         {"--processes", &Options::processes},
                             {"--threads", &Options::threads}, {"--gpus", &Options::gpus},
                             {"--herd", &Options::herd},       {"--steady", &Options::steady},
                             {"--kills", &Options::kills},     {"--patience-ms", &Options::patience_ms},
                             {"--life-ms", &Options::life_ms}, {"--sharing", &Options::sharing}};
  for (const Flag& f : kFlags) {
    if (number(a, f.name, &n)) return o->*f.field = static_cast<int>(n), true;
  }
  return false;
}

int run(const Options& options) {
  const std::string_view mode = options.mode;
  if (mode == "herd") return run_herd(options);
  if (mode == "exact-rest") return run_exact_rest(options);
  if (mode == "limits") return run_limits(options);
  if (mode != "run") return 2;
  if (options.processes > 0) return run_team(options);
  Bazaar bazaar(1);
  Alone stages(options);
  return run_process(options, 0, &bazaar, &stages);
}

}  // namespace
}  // namespace chaos

int main(int argc, char** argv) {
  chaos::Options options;
  for (int i = 1; i < argc; ++i) {
    if (!chaos::parse_one(argv[i], &options)) {
      std::fprintf(stderr, "chaos: '%s' is no option\n", argv[i]);
      return 2;
    }
  }
  return chaos::run(options);
}
