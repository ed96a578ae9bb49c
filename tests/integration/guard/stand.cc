#include "stand.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lease/embed.h"

namespace kvram::test {
namespace fs = std::filesystem;

namespace {
void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "stand: %s\n", what);
  std::abort();
}
}  // namespace

Stand& Stand::get() {
  static Stand stand;
  return stand;
}

Stand::Stand() {
  char pattern[] = "/tmp/kvguard-XXXXXX";
  need(mkdtemp(pattern) != nullptr, "no folder");
  folder_ = pattern;
  sim_ = std::make_unique<SimFolder>("2xA10");
  const fs::path libraries = fs::path(getenv("KUBE_VRAM_PREFIX")) / "lib/kube-vram";
  fs::copy_file(libraries / "guard/libcuda.so.1", folder_ / "libcuda.so.1");
  fs::create_symlink(libraries / "sim/libcuda.so.1", folder_ / lease::kRealCudaName);
  setenv("KUBE_VRAM_SOCKET", (folder_ / "node.sock").c_str(), 1);
  guard::FakeNode::Options o;
  o.socket = (folder_ / "node.sock").string();
  o.limit = 20ULL << 30;
  o.step = 0;  // grants what is asked for, so that nothing lies about unspent
  o.cost = {256 * kMiB, 16 * kMiB, 2 * kMiB, 128 << 10, 64 << 10, 32 * kMiB};
  node_ = std::make_unique<guard::FakeNode>(o);
  need(SIM(cuInit)(0) == CUDA_SUCCESS, "no simulated driver");
  CUuuid uuid{};
  need(SIM(cuDeviceGetUuid)(&uuid, 0) == CUDA_SUCCESS, "no uuid");
  std::memcpy(node_->page()->gpu[0].uuid, uuid.bytes, sizeof uuid.bytes);
  library_ = dlopen((folder_ / "libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  need(library_ != nullptr, "no guard");
  need(reinterpret_cast<decltype(&cuInit)>(call("cuInit"))(0) == CUDA_SUCCESS, "cuInit");
  retain_primary();
}

Stand::~Stand() { fs::remove_all(folder_); }

void Stand::retain_primary() {
  const auto retain = reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(call("cuDevicePrimaryCtxRetain"));
  need(retain(&primary_, 0) == CUDA_SUCCESS, "no primary context");
  need(reinterpret_cast<decltype(&cuCtxSetCurrent)>(call("cuCtxSetCurrent"))(primary_) == CUDA_SUCCESS, "not current");
}

void* Stand::call(const char* name) {
  called_.insert(name);
  void* f = dlsym(library_, name);
  if (f == nullptr) std::fprintf(stderr, "no %s\n", name);
  need(f != nullptr, "a function is missing");
  return f;
}

uint64_t Stand::resident() {
  unsigned count = 0;
  uint64_t bytes = 0;
  need(SIM(nvmlInit_v2)() == NVML_SUCCESS && SIM(nvmlDeviceGetCount_v2)(&count) == NVML_SUCCESS, "no NVML");
  for (unsigned d = 0; d < count; ++d) {
    nvmlDevice_t device = nullptr;
    nvmlProcessInfo_t all[64];
    unsigned n = 64;
    need(SIM(nvmlDeviceGetHandleByIndex_v2)(d, &device) == NVML_SUCCESS &&
             SIM(nvmlDeviceGetComputeRunningProcesses_v3)(device, &n, all) == NVML_SUCCESS,
         "no process list");
    for (unsigned i = 0; i < n; ++i) {
      if (all[i].pid == static_cast<unsigned>(getpid())) bytes += all[i].usedGpuMemory;
    }
  }
  return bytes;
}

}  // namespace kvram::test
