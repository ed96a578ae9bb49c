// Threads that set the limits of one context at the same time: what is charged in the end is what one of them set.
#include <cstdio>
#include <thread>
#include <vector>

#include "driver.h"
#include "options.h"
#include "rng.h"

namespace chaos {

namespace {

constexpr size_t kDefault = 8U << 20;

void set_limits(uint64_t seed, int times) {
  Rng rng(seed);
  for (int i = 0; i < times; ++i) {
    granted(cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kDefault + rng.below(32U << 20)), "cuCtxSetLimit");
  }
}

template <typename Body>
void side_by_side(int n, Body body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < n; ++t) threads.emplace_back(body, t);
  for (std::thread& t : threads) t.join();
}

}  // namespace

int run_limits(const Options& options) {
  load_driver(options.library, false);
  CUdevice device = 0;
  CUcontext context = nullptr;
  must(cu.cuInit(0), "cuInit");
  must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kDefault), "cuCtxSetLimit");
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  must(cu.cuMemGetInfo(&before, &total), "cuMemGetInfo");
  side_by_side(options.threads, [&options, context](int t) {
    must(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    set_limits(options.seed + static_cast<uint64_t>(t), options.ops);
  });
  must(cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kDefault), "cuCtxSetLimit");
  // Contexts that come and go: a handle may be another thread's the moment the driver has destroyed it.
  side_by_side(options.threads, [&options, device](int t) {
    for (int i = 0; i < options.ops; ++i) {
      CUctxCreateParams params{};
      CUcontext own = nullptr;
      if (!granted(cu.cuCtxCreate(&own, &params, 0, device), "cuCtxCreate")) continue;
      set_limits(options.seed * 7 + static_cast<uint64_t>(t * options.ops + i), 2);
      CUdeviceptr block = 0;
      granted(cu.cuMemAlloc(&block, 4096), "cuMemAlloc");  // goes with the context
      must(cu.cuCtxDestroy(own), "cuCtxDestroy");
    }
  });
  must(cu.cuMemGetInfo(&after, &total), "cuMemGetInfo");
  std::printf("free %zu before, %zu after\n", before, after);
  std::fflush(stdout);
  return before == after ? 0 : 1;
}

}  // namespace chaos
