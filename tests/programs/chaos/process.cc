#include <unistd.h>

#include <thread>
#include <vector>

#include "options.h"
#include "worker.h"

namespace chaos {

namespace {

// Siblings may have filled the budget: they give some back soon. False: not within the patience.
bool retain(Gpu* gpu, int patience_ms) {
  for (int i = 0; i < patience_ms; ++i) {
    if (granted(cu.cuDevicePrimaryCtxRetain(&gpu->primary, gpu->device), "cuDevicePrimaryCtxRetain")) return true;
    usleep(1000);
  }
  return false;
}

// Empty: no room for the contexts.
std::vector<Gpu> open_gpus(int wanted, int patience_ms) {
  must(cu.cuInit(0), "cuInit");
  int count = 0;
  must(cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::vector<Gpu> gpus;
  for (int i = 0; i < count && i < wanted; ++i) {
    Gpu gpu{};
    size_t total = 0;
    must(cu.cuDeviceGet(&gpu.device, i), "cuDeviceGet");
    if (!retain(&gpu, patience_ms)) return {};
    must(cu.cuCtxSetCurrent(gpu.primary), "cuCtxSetCurrent");
    must(cu.cuDeviceTotalMem(&total, gpu.device), "cuDeviceTotalMem");
    gpu.total = total;
    gpus.push_back(gpu);
  }
  if (gpus.empty()) fail("cuDeviceGetCount", "no GPU");
  return gpus;
}

void run_threads(std::vector<Worker>& workers, int ops, Stages* stages) {
  std::vector<std::thread> threads;
  auto body = [ops, stages](Worker* w) {
    w->forget_current();
    for (int i = 0; ops < 0 ? !stages->stop() : i < ops; ++i) w->step();
  };
  for (size_t i = 1; i < workers.size(); ++i) threads.emplace_back(body, &workers[i]);
  body(workers.data());
  for (std::thread& t : threads) t.join();
}

}  // namespace

int run_process(const Options& options, int number, Bazaar* bazaar, Stages* stages) {
  name_self(options.seed, number);
  Rng rng(options.seed * 1000003 + static_cast<uint64_t>(number));
  load_driver(options.library, rng.one_in(2));
  std::vector<Gpu> gpus = open_gpus(options.gpus, options.patience_ms);
  if (gpus.empty()) {
    if (options.patience_ms < Options{}.patience_ms) return 0;
    fail("cuDevicePrimaryCtxRetain", "no room for a context in 60 s");
  }
  stages->reach(kOpened);
  Shared shared;
  std::vector<Worker> workers;
  for (int t = 0; t < options.threads; ++t) {
    workers.emplace_back(rng.next(), &gpus, &shared, bazaar, options.threads == 1, options.processes > 0);
  }
  run_threads(workers, options.ops / 2, stages);
  for (Gpu& gpu : gpus) {
    must(cu.cuCtxSetCurrent(gpu.primary), "cuCtxSetCurrent");
    must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  workers[0].forget_current();
  stages->reach(0);
  run_threads(workers, options.ops < 0 ? -1 : options.ops - options.ops / 2, stages);
  // From here on this thread alone: it makes each context current itself.
  for (Worker& w : workers) {
    w.forget_current();
    w.drop_all();
  }
  stages->reach(1);
  workers[0].ignore_offers();
  workers[0].forget_current();
  workers[0].trim();
  must(cu.cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
  for (Gpu& gpu : gpus) must(cu.cuDevicePrimaryCtxRelease(gpu.device), "cuDevicePrimaryCtxRelease");
  stages->reach(2);
  return 0;
}

}  // namespace chaos
