#pragma once
#include <cstdint>

namespace chaos {

struct Options {
  uint64_t seed = 1;
  int ops = 200;      // of each thread
  int processes = 0;  // 0: this process itself
  int threads = 1;    // of each process
  int gpus = 1;       // how many of the visible GPUs
  bool wait = false;  // at each stage, until a line comes on standard input
  int herd = 0;       // processes that live until they are killed
  int steady = 1;     // of the herd: never killed, must end well
  int kills = 0;      // then the herd ends
  int patience_ms =
      60000;  // for a context; one that a chaos process started must not wait for long: its parent holds the memory
  int life_ms = 300;  // longest life of one of the herd
  int sharing = 1;    // 0: processes do not offer each other memory
  const char* mode = "run";
  const char* library = "libcuda.so.1";
};

// One process: retains the primary contexts, runs its threads, gives everything back. `stage` is called with 0
// half-way, with all quiet and what it holds still held, 1 when it has done its operations and holds its contexts and
// what siblings offered, 2 with everything given back. Returns the exit status.
// Before its first operation, with its contexts open: siblings that begin at once could take all before a slow one has
// any.
constexpr int kOpened = -1;
class Stages {
 public:
  virtual ~Stages() = default;
  virtual void reach(int stage) = 0;
  // True when a process without a number of operations should come to its end.
  virtual bool stop() { return false; }
};
class Bazaar;
int run_process(const Options& options, int number, Bazaar* bazaar, Stages* stages);

int run_herd(const Options& options);
int run_exact_rest(const Options& options);
int run_limits(const Options& options);

}  // namespace chaos
