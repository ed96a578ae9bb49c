#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "simgpu/sim_tool.h"

namespace kvram::simgpu {
namespace {

// <prefix>/lib/kube-vram/sim/libcuda.so.1 beside this program.
std::string driver_path() {
  const char* set = std::getenv("KUBE_VRAM_PREFIX");
  std::error_code error;
  std::filesystem::path prefix =
      set != nullptr && *set != '\0'
          ? std::filesystem::path(set)
          : std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  return (prefix / "lib/kube-vram/sim/libcuda.so.1").string();
}

template <typename F>
F* find(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

int failed(const char* what, int code) {
  std::fprintf(stderr, "vram-sim: the simulated driver refused %s: error %d\n", what, code);
  return 1;
}

// Until SIGINT or SIGTERM, or until the time is over.
void wait_for_end(double seconds) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  if (seconds <= 0) {
    int seen = 0;
    sigwait(&ends, &seen);
    return;
  }
  timespec limit{static_cast<time_t>(seconds),
                 static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  sigtimedwait(&ends, nullptr, &limit);
}

}  // namespace

int hold_memory(uint64_t bytes, int gpu, double seconds) {
  std::string path = driver_path();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "vram-sim: the simulated driver cannot be opened: %s\n", dlerror());
    return 1;
  }
  auto* init = find<CUresult(unsigned)>(library, "cuInit");
  auto* retain = find<CUresult(CUcontext*, CUdevice)>(library, "cuDevicePrimaryCtxRetain");
  auto* set_current = find<CUresult(CUcontext)>(library, "cuCtxSetCurrent");
  auto* allocate = find<CUresult(CUdeviceptr*, size_t)>(library, "cuMemAlloc_v2");
  if (init == nullptr || retain == nullptr || set_current == nullptr || allocate == nullptr) {
    std::fprintf(stderr, "vram-sim: %s is not the simulated driver\n", path.c_str());
    return 1;
  }
  if (CUresult r = init(0); r != CUDA_SUCCESS) {
    std::fprintf(
        stderr,
        "vram-sim: there is no simulated machine to use (error %d): name its GPUs in KUBE_VRAM_SIM, for example "
        "KUBE_VRAM_SIM=1xA10\n",
        static_cast<int>(r));
    return 1;
  }
  CUcontext context = nullptr;
  if (CUresult r = retain(&context, gpu); r != CUDA_SUCCESS) return failed("a context", r);
  if (CUresult r = set_current(context); r != CUDA_SUCCESS) return failed("a context", r);
  CUdeviceptr at = 0;
  if (CUresult r = allocate(&at, bytes); r != CUDA_SUCCESS) return failed("the memory", r);
  std::printf("total %llu\nholding on GPU %d, pid %d (simulated)\n", static_cast<unsigned long long>(bytes), gpu,
              static_cast<int>(getpid()));
  std::fflush(stdout);
  wait_for_end(seconds);
  return 0;
}

}  // namespace kvram::simgpu
