// The guard as a program meets it: loaded in front of a driver that does nothing, with the daemon's end of the protocol
// in a thread. Each program is a forked child of the test.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "guard/fake_node_testing.h"
#include "lease/embed.h"

namespace kvram::guard {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1ULL << 20;

// What a program does with the driver; a failed expectation ends the child with the line.
#define NEED(condition)                                                        \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: program: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

struct Program {
  void* library;
  template <typename F>
  F* get(F*, const char* name) const {
    void* f = dlsym(library, name);
    if (f == nullptr) {
      fprintf(stderr, "program: no %s: %s\n", name, dlerror());
      _exit(1);
    }
    return reinterpret_cast<F*>(f);
  }
};
#define CU(name) (p.get(&::name, #name))

class GuardTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/kvguard-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    dir_ = pattern;
    const fs::path prefix = getenv("KUBE_VRAM_PREFIX");
    fs::copy_file(prefix / "lib/kube-vram/guard/libcuda.so.1", dir_ / "libcuda.so.1");
    fs::create_symlink(KV_NULL_DRIVER, dir_ / lease::kRealCudaName);
    setenv("KUBE_VRAM_SOCKET", (dir_ / "node.sock").c_str(), 1);
    unsetenv("KUBE_VRAM_LOG");
  }
  void TearDown() override {
    node_.reset();
    fs::remove_all(dir_);
  }
  FakeNode& node(uint64_t limit, uint64_t step = kMiB) {
    FakeNode::Options o;
    o.socket = (dir_ / "node.sock").string();
    o.limit = limit;
    o.step = step;
    o.cost = cost_;
    node_ = std::make_unique<FakeNode>(o);
    return *node_;
  }
  // Runs `body` in a child with the guard loaded and a current context. Returns its exit status.
  int run(const std::function<void(const Program&)>& body) {
    const pid_t child = fork();
    if (child == 0) {
      const Program p{dlopen((dir_ / "libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL)};
      if (p.library == nullptr) fprintf(stderr, "%s\n", dlerror());
      NEED(p.library != nullptr);
      CUcontext context = nullptr;
      NEED(CU(cuInit)(0) == CUDA_SUCCESS);
      NEED(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS);
      NEED(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
      body(p);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  fs::path dir_;
  lease::CostModel cost_{};
  std::unique_ptr<FakeNode> node_;
};

TEST_F(GuardTest, SpendsUpToTheLimitAndGivesBackExactly) {
  FakeNode& n = node(16 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUdeviceptr a = 0;
              CUdeviceptr b = 0;
              NEED(CU(cuMemAlloc_v2)(&a, 10 * kMiB) == CUDA_SUCCESS);
              NEED(CU(cuMemAlloc_v2)(&b, 6 * kMiB + 1) == CUDA_ERROR_OUT_OF_MEMORY);
              NEED(CU(cuMemAlloc_v2)(&b, 6 * kMiB) == CUDA_SUCCESS);
              size_t free = 1;
              size_t total = 0;
              NEED(CU(cuMemGetInfo_v2)(&free, &total) == CUDA_SUCCESS);
              NEED(free == 0 && total == 16 * kMiB);
              NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
              NEED(CU(cuMemGetInfo_v2)(&free, &total) == CUDA_SUCCESS);
              NEED(free == 10 * kMiB);
              NEED(CU(cuMemFree_v2)(b) == CUDA_SUCCESS);
              size_t whole = 0;
              NEED(CU(cuDeviceTotalMem_v2)(&whole, 0) == CUDA_SUCCESS && whole == 16 * kMiB);
            }),
            0);
  EXPECT_EQ(n.charged(), 0u);
  const auto seen = n.seen();
  ASSERT_EQ(seen.refused_calls.size(), 1u);
  EXPECT_EQ(seen.refused_calls[0], "cuMemAlloc_v2");
  EXPECT_EQ(seen.unknown_symbols, 0u);
}

TEST_F(GuardTest, AnotherProcessUnspentLeaseIsNoReasonToRefuse) {
  FakeNode& n = node(16 * kMiB, 12 * kMiB);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  std::thread holder([&] {
    EXPECT_EQ(run([&](const Program& p) {  // is granted 12 MiB and uses 1
                CUdeviceptr a = 0;
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_SUCCESS);
                char c = 0;
                NEED(read(ready[0], &c, 1) == 1);
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
              }),
              0);
  });
  while (n.charged() < kMiB) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(run([&](const Program& p) {
              CUdeviceptr a = 0;
              NEED(CU(cuMemAlloc_v2)(&a, 15 * kMiB) == CUDA_SUCCESS);
              NEED(write(ready[1], "x", 1) == 1);
              usleep(300000);
            }),
            0);
  holder.join();
  EXPECT_EQ(n.charged(), 16 * kMiB);
}

TEST_F(GuardTest, ARetryThatSucceedsIsReportedAsOvercome) {
  FakeNode& n = node(8 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUdeviceptr a = 0;
              CUdeviceptr b = 0;
              NEED(CU(cuMemAlloc_v2)(&a, 5 * kMiB) == CUDA_SUCCESS);
              NEED(CU(cuMemAlloc_v2)(&b, 5 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
              NEED(CU(cuMemAlloc_v2)(&b, 1 * kMiB) == CUDA_SUCCESS);
              NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
              NEED(CU(cuMemAlloc_v2)(&a, 5 * kMiB) == CUDA_SUCCESS);
              usleep(50000);
            }),
            0);
  EXPECT_EQ(n.seen().overcome, std::vector<uint64_t>{1});
}

TEST_F(GuardTest, KeepsItsLeaseWhileTheDaemonIsAwayAndReplaysAfterwards) {
  FakeNode& n = node(64 * kMiB, 8 * kMiB);
  int up[2];
  int down[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(down), 0);
  std::thread program([&] {
    EXPECT_EQ(run([&](const Program& p) {
                CUdeviceptr a = 0;
                char c = 0;
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_SUCCESS);
                NEED(write(up[1], "a", 1) == 1 && read(down[0], &c, 1) == 1);
                NEED(CU(cuMemAlloc_v2)(&a, 7 * kMiB) == CUDA_SUCCESS);  // leased
                const auto before = std::chrono::steady_clock::now();
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
                const auto took = std::chrono::steady_clock::now() - before;
                NEED(took < std::chrono::milliseconds(1500));
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
                NEED(std::chrono::steady_clock::now() - before - took < std::chrono::milliseconds(100));
                NEED(write(up[1], "b", 1) == 1 && read(down[0], &c, 1) == 1);
                usleep(300000);
                NEED(CU(cuMemAlloc_v2)(&a, 20 * kMiB) == CUDA_SUCCESS);
              }),
              0);
  });
  char c = 0;
  ASSERT_EQ(read(up[0], &c, 1), 1);
  n.stop();
  ASSERT_EQ(write(down[1], "x", 1), 1);
  ASSERT_EQ(read(up[0], &c, 1), 1);
  n.start();
  ASSERT_EQ(write(down[1], "x", 1), 1);
  program.join();
  EXPECT_EQ(n.seen().replays, 1);
  EXPECT_EQ(n.slots(), 1u);
  EXPECT_EQ(n.charged(), 28 * kMiB);
}

TEST_F(GuardTest, WaitsForADaemonThatIsJustRestarting) {
  FakeNode& n = node(64 * kMiB);
  std::thread restart;
  int up[2];
  ASSERT_EQ(pipe(up), 0);
  std::thread program([&] {
    EXPECT_EQ(run([&](const Program& p) {
                CUdeviceptr a = 0;
                NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_SUCCESS);
                NEED(write(up[1], "a", 1) == 1);
                usleep(100000);
                NEED(CU(cuMemAlloc_v2)(&a, 20 * kMiB) == CUDA_SUCCESS);
              }),
              0);
  });
  char c = 0;
  ASSERT_EQ(read(up[0], &c, 1), 1);
  n.stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  n.start();
  program.join();
}

TEST_F(GuardTest, AForkedChildIsAProcessOfItsOwn) {
  FakeNode& n = node(16 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUdeviceptr a = 0;
              CUdeviceptr b = 0;
              NEED(CU(cuMemAlloc_v2)(&a, 4 * kMiB) == CUDA_SUCCESS);
              const pid_t child = fork();
              if (child == 0) {
                NEED(CU(cuMemAlloc_v2)(&b, 4 * kMiB) == CUDA_SUCCESS);
                NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);  // unknown here: passes through, gives nothing back
                NEED(CU(cuMemAlloc_v2)(&b, 9 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
                _exit(0);
              }
              int status = 0;
              waitpid(child, &status, 0);
              NEED(status == 0);
              NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
            }),
            0);
  ASSERT_EQ(n.slots(), 2u);
  EXPECT_EQ(n.charged_of(0), 0u);
  EXPECT_EQ(n.charged_of(1), 4 * kMiB);
}

TEST_F(GuardTest, AProcessOfNoBudgetIsRefusedAndLives) {
  FakeNode& n = node(16 * kMiB);
  n.refuse_all(true);
  const pid_t child = fork();
  if (child == 0) {
    const Program p{dlopen((dir_ / "libcuda.so.1").c_str(), RTLD_NOW)};
    CUcontext context = nullptr;
    NEED(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    NEED(CU(cuCtxSetCurrent)(reinterpret_cast<CUcontext>(0x100)) == CUDA_SUCCESS);
    CUdeviceptr a = 0;
    NEED(CU(cuMemAlloc_v2)(&a, 512) == CUDA_ERROR_OUT_OF_MEMORY);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(GuardTest, SurvivesAProgramThatClosesAllDescriptors) {
  FakeNode& n = node(64 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUdeviceptr a = 0;
              NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_SUCCESS);
              for (int fd = 3; fd < 256; ++fd) close(fd);
              int pair[2];
              for (int i = 0; i < 20; ++i) NEED(pipe(pair) == 0);  // the numbers mean something else now
              NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
              NEED(CU(cuMemAlloc_v2)(&a, kMiB) == CUDA_SUCCESS);
            }),
            0);
  EXPECT_EQ(n.charged(), kMiB);
}

TEST_F(GuardTest, ErrnoAndDescriptorsAreLeftAlone) {
  node(64 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUdeviceptr a = 0;
              errno = 4711;
              NEED(CU(cuMemAlloc_v2)(&a, 20 * kMiB) == CUDA_SUCCESS);
              NEED(CU(cuMemAlloc_v2)(&a, 100 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
              NEED(errno == 4711);
              for (const auto& fd : fs::directory_iterator("/proc/self/fd")) {
                const int number = std::stoi(fd.path().filename());
                std::ifstream info("/proc/self/fdinfo/" + std::to_string(number));
                std::error_code gone;
                const std::string to = fs::read_symlink(fd.path(), gone);
                if (to.find("memfd:") == std::string::npos && to.find("socket:") == std::string::npos) continue;
                NEED((fcntl(number, F_GETFD) & FD_CLOEXEC) != 0);
              }
            }),
            0);
}

TEST_F(GuardTest, EveryLookUpEndsInTheGuard) {
  node(16 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              void* f = nullptr;
              NEED(CU(cuGetProcAddress_v2)("cuMemAlloc", &f, 13000, 0, nullptr) == CUDA_SUCCESS);
              NEED(f == dlsym(p.library, "cuMemAlloc_v2"));
              NEED(CU(cuGetProcAddress_v2)("cuGetProcAddress", &f, 13000, 0, nullptr) == CUDA_SUCCESS);
              NEED(f == dlsym(p.library, "cuGetProcAddress_v2"));
              NEED(CU(cuGetProcAddress_v2)("cuLaunchKernel", &f, 13000, 0, nullptr) == CUDA_SUCCESS);
              Dl_info where{};
              NEED(dladdr(f, &where) != 0 && strstr(where.dli_fname, lease::kRealCudaName) != nullptr);
              NEED(CU(cuGetProcAddress_v2)("cuStreamSynchronize", &f, 13000,
                                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) == CUDA_SUCCESS);
              NEED(f == dlsym(p.library, "cuStreamSynchronize_ptsz"));
            }),
            0);
}

TEST_F(GuardTest, TheSamePrimaryContextIsChargedOnce) {
  cost_.context_bytes = 3 * kMiB;
  FakeNode& n = node(4 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              CUcontext context = nullptr;
              for (int i = 0; i < 5; ++i) NEED(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS);
              size_t free = 0;
              size_t total = 0;
              NEED(CU(cuMemGetInfo_v2)(&free, &total) == CUDA_SUCCESS && free == kMiB);
            }),
            0);
  EXPECT_EQ(n.charged(), 3 * kMiB);
}

TEST_F(GuardTest, ManyThreadsKeepTheBooks) {
  FakeNode& n = node(8 * kMiB);
  EXPECT_EQ(run([](const Program& p) {
              std::vector<std::thread> threads;
              for (int t = 0; t < 4; ++t) {
                threads.emplace_back([&p, t] {
                  CUcontext context = nullptr;
                  NEED(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS);
                  NEED(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
                  for (int i = 0; i < 2000; ++i) {
                    CUdeviceptr a = 0;
                    const CUresult r = CU(cuMemAlloc_v2)(&a, (static_cast<size_t>(i * 7 + t) % 5 + 1) * kMiB / 2);
                    NEED(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
                    if (r == CUDA_SUCCESS) NEED(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
                  }
                });
              }
              for (auto& t : threads) t.join();
            }),
            0);
  EXPECT_EQ(n.charged(), 0u);
}

}  // namespace
}  // namespace kvram::guard
