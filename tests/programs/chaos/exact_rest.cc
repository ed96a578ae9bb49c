// One process leaves the largest unspent lease that it can; another then asks for exactly what is left, in one piece.
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <vector>

#include "driver.h"
#include "options.h"
#include "team.h"

namespace chaos {

namespace {

CUdevice open_first(const char* library, CUcontext* context) {
  load_driver(library, false);
  CUdevice device = 0;
  must(cu.cuInit(0), "cuInit");
  must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cu.cuDevicePrimaryCtxRetain(context, device), "cuDevicePrimaryCtxRetain");
  must(cu.cuCtxSetCurrent(*context), "cuCtxSetCurrent");
  return device;
}

// Takes all in small pieces, gives all back, and keeps its context (and its lease).
int leave_lease(const Options& options, int number, Steps& steps) {
  name_self(options.seed, number);
  CUcontext context = nullptr;
  open_first(options.library, &context);
  steps.reach();  // all have a context
  std::vector<CUdeviceptr> blocks;
  for (CUdeviceptr p = 0; granted(cu.cuMemAlloc(&p, 8U << 20), "cuMemAlloc");) blocks.push_back(p);
  for (CUdeviceptr p : blocks) must(cu.cuMemFree(p), "cuMemFree");
  steps.reach();  // all unspent
  steps.reach();  // the other one has asked
  return 0;
}

int ask_rest(const Options& options, Steps& steps) {
  name_self(options.seed, 0);
  CUcontext context = nullptr;
  open_first(options.library, &context);
  steps.reach();
  steps.reach();
  size_t rest = 0;
  size_t total = 0;
  must(cu.cuMemGetInfo(&rest, &total), "cuMemGetInfo");
  CUdeviceptr p = 0;
  CUdeviceptr more = 0;
  const bool first = granted(cu.cuMemAlloc(&p, rest), "cuMemAlloc");
  const bool second = granted(cu.cuMemAlloc(&more, 1), "cuMemAlloc");
  std::printf("rest %zu of %zu: %s; one byte more: %s\n", rest, total, first ? "granted" : "refused",
              second ? "granted" : "refused");
  std::fflush(stdout);
  steps.reach();
  return first && !second ? 0 : 1;
}

}  // namespace

int run_exact_rest(const Options& options) {
  const int n = options.processes > 1 ? options.processes : 2;
  Steps steps;
  std::vector<pid_t> children;
  for (int i = 0; i < n; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(i == 0 ? ask_rest(options, steps) : leave_lease(options, i, steps));
    children.push_back(pid);
  }
  for (int stage = 0; stage < 3; ++stage) {
    if (!steps.arrived(n, 20000)) {
      std::fprintf(stderr, "chaos: a process did not reach stage %d\n", stage);
      return 3;
    }
    steps.release();
  }
  int worst = 0;
  for (pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) worst = 1;
  }
  return worst;
}

}  // namespace chaos
