// Modules, streams, events, launches and time slices of the simulated driver, through the library as programs load it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "libraries.h"

namespace kvram::test {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;

CUfunction kernel(CUmodule module, const std::string& name) {
  CUfunction function = nullptr;
  EXPECT_EQ(SIM(cuModuleGetFunction)(&function, module, name.c_str()), CUDA_SUCCESS);
  return function;
}

CUresult launch(CUfunction function, CUstream stream) {
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  return SIM(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
}

uint64_t used_of_this_process() {
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(SIM(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  std::vector<nvmlProcessInfo_t> infos(64);
  unsigned count = 64;
  EXPECT_EQ(SIM(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, infos.data()), NVML_SUCCESS);
  for (unsigned i = 0; i < count; ++i) {
    if (infos[i].pid == static_cast<unsigned>(getpid())) return infos[i].usedGpuMemory;
  }
  return 0;
}

class Launching : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(SIM(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(SIM(nvmlInit_v2)(), NVML_SUCCESS);
    ASSERT_EQ(SIM(cuDevicePrimaryCtxRetain)(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    text_ = ptx({10, 1000, 5000, 20000, 400000});
    ASSERT_EQ(SIM(cuModuleLoadData)(&module_, text_.c_str()), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(SIM(cuModuleUnload)(module_), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
    EXPECT_EQ(SIM(nvmlShutdown)(), NVML_SUCCESS);
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream out = nullptr;
    EXPECT_EQ(SIM(cuStreamCreate)(&out, flags), CUDA_SUCCESS);
    return out;
  }
  CUevent event() {
    CUevent out = nullptr;
    EXPECT_EQ(SIM(cuEventCreate)(&out, 0), CUDA_SUCCESS);
    return out;
  }
  float between(CUevent a, CUevent b) {
    float milliseconds = -1;
    EXPECT_EQ(SIM(cuEventElapsedTime)(&milliseconds, a, b), CUDA_SUCCESS);
    return milliseconds;
  }

  // The GPU's time for the launches, by events: the least of some attempts, for a test that is not always let run.
  float shortest_ms(const std::vector<CUfunction>& list, CUstream s) {
    CUevent start = event();
    CUevent end = event();
    float least = 1e9F;
    for (int attempt = 0; attempt < 3; ++attempt) {
      EXPECT_EQ(SIM(cuEventRecord)(start, s), CUDA_SUCCESS);
      for (CUfunction function : list) EXPECT_EQ(launch(function, s), CUDA_SUCCESS);
      EXPECT_EQ(SIM(cuEventRecord)(end, s), CUDA_SUCCESS);
      EXPECT_EQ(SIM(cuEventSynchronize)(end), CUDA_SUCCESS);
      least = std::min(least, between(start, end));
    }
    return least;
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  std::string text_;
};

TEST_F(Launching, EventsMeasureAKernel) {
  CUstream s = stream();
  CUevent start = event();
  CUevent end = event();
  EXPECT_EQ(SIM(cuEventRecord)(start, s), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel(module_, "k5000"), s), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel(module_, "k1000"), s), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuEventRecord)(end, s), CUDA_SUCCESS);
  float milliseconds = 0;
  EXPECT_EQ(SIM(cuEventElapsedTime)(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(SIM(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(SIM(cuEventQuery)(end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(SIM(cuEventSynchronize)(end), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamQuery)(s), CUDA_SUCCESS);
  EXPECT_GE(between(start, end), 5.999F);
  EXPECT_NEAR(shortest_ms({kernel(module_, "k5000"), kernel(module_, "k1000")}, s), 6.0, 0.2);
  EXPECT_EQ(SIM(cuStreamDestroy_v2)(s), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamQuery)(s), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Launching, StreamsOverlapAndWaitForEvents) {
  CUstream a = stream();
  CUstream b = stream();
  CUfunction f = kernel(module_, "k20000");
  CUevent before = event();
  CUevent after = event();
  EXPECT_EQ(SIM(cuEventRecord)(before, a), CUDA_SUCCESS);
  EXPECT_EQ(launch(f, a), CUDA_SUCCESS);
  EXPECT_EQ(launch(f, b), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuEventRecord)(after, b), CUDA_SUCCESS);
  uint64_t start = now_us();
  EXPECT_EQ(SIM(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_GE(between(before, after), 19.999F);
  EXPECT_LT(between(before, after), 39.0F);

  CUevent done = event();
  start = now_us();
  EXPECT_EQ(launch(f, a), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuEventRecord)(done, a), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamWaitEvent)(b, done, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch(f, b), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamSynchronize)(b), CUDA_SUCCESS);
  EXPECT_GE(now_us() - start, 40000U);
}

TEST_F(Launching, TheLegacyStreamWaitsForBlockingStreamsOnly) {
  CUstream blocking = stream(CU_STREAM_DEFAULT);
  CUstream apart = stream(CU_STREAM_NON_BLOCKING);
  CUfunction f = kernel(module_, "k20000");
  EXPECT_EQ(launch(f, blocking), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel(module_, "k10"), nullptr), CUDA_SUCCESS);
  uint64_t start = now_us();
  EXPECT_EQ(SIM(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
  EXPECT_GE(now_us() - start, 15000U);

  EXPECT_EQ(launch(kernel(module_, "k400000"), apart), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel(module_, "k10"), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamQuery)(apart), CUDA_ERROR_NOT_READY);

  // A thread's own default stream is a blocking stream of its own.
  EXPECT_EQ(SIM(cuLaunchKernel_ptsz)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  EXPECT_EQ(SIM(cuLaunchKernel_ptsz)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamQuery_ptsz)(nullptr), CUDA_ERROR_NOT_READY);
  std::thread other([&] {
    SIM(cuCtxSetCurrent)(context_);
    EXPECT_EQ(SIM(cuStreamQuery_ptsz)(nullptr), CUDA_SUCCESS);
  });
  other.join();
  EXPECT_EQ(SIM(cuStreamSynchronize_ptsz)(nullptr), CUDA_SUCCESS);
}

TEST_F(Launching, HostFunctionsRunInOrder) {
  struct Seen {
    std::atomic<uint64_t> at{0};
    static void note(void* self) { static_cast<Seen*>(self)->at = now_us(); }
  } seen;
  CUstream s = stream();
  uint64_t start = now_us();
  EXPECT_EQ(launch(kernel(module_, "k5000"), s), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuLaunchHostFunc)(s, Seen::note, &seen), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel(module_, "k5000"), s), CUDA_SUCCESS);
  CUevent end = event();
  EXPECT_EQ(SIM(cuEventRecord)(end, s), CUDA_SUCCESS);
  EXPECT_EQ(seen.at, 0U);
  EXPECT_EQ(SIM(cuEventSynchronize)(end), CUDA_SUCCESS);
  EXPECT_GE(seen.at - start, 5000U);
  EXPECT_GE(now_us() - start, 10000U);
  EXPECT_GE(now_us() - seen.at, 5000U);
}

TEST_F(Launching, StreamsWriteAndWaitForValues) {
  CUdeviceptr flag = 0;
  ASSERT_EQ(SIM(cuMemAlloc_v2)(&flag, 8), CUDA_SUCCESS);
  ASSERT_EQ(SIM(cuMemsetD32_v2)(flag, 0, 2), CUDA_SUCCESS);
  CUstream waiting = stream();
  CUstream writing = stream();
  EXPECT_EQ(SIM(cuStreamWaitValue32_v2)(waiting, flag, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemsetD32Async)(flag + 4, 77, 1, waiting), CUDA_SUCCESS);
  usleep(5000);
  EXPECT_EQ(SIM(cuStreamQuery)(waiting), CUDA_ERROR_NOT_READY);
  uint32_t value = 1;
  EXPECT_EQ(SIM(cuMemcpyDtoHAsync_v2)(&value, flag + 4, 4, writing), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamSynchronize)(writing), CUDA_SUCCESS);
  EXPECT_EQ(value, 0U) << "what is behind the wait has not happened";
  EXPECT_EQ(SIM(cuStreamWriteValue32_v2)(writing, flag, 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamSynchronize)(waiting), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemcpyDtoH_v2)(&value, flag + 4, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 77U);
  EXPECT_EQ(SIM(cuStreamWaitValue32_v2)(waiting, flag + 1, 5, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SIM(cuMemFree_v2)(flag), CUDA_SUCCESS);
}

TEST_F(Launching, GlobalsOfModulesAreMemory) {
  CUdeviceptr table = 0;
  size_t bytes = 0;
  ASSERT_EQ(SIM(cuModuleGetGlobal_v2)(&table, &bytes, module_, "table"), CUDA_SUCCESS);
  std::vector<unsigned char> pattern(bytes, 0x5a);
  EXPECT_EQ(SIM(cuMemcpyHtoD_v2)(table, pattern.data(), bytes), CUDA_SUCCESS);
  std::vector<unsigned char> back(bytes);
  EXPECT_EQ(SIM(cuMemcpyDtoH_v2)(back.data(), table, bytes), CUDA_SUCCESS);
  EXPECT_EQ(back, pattern);
  EXPECT_EQ(SIM(cuModuleGetGlobal_v2)(&table, &bytes, module_, "absent"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(Launching, ModulesCostTheirImageInPages) {
  uint64_t before = used_of_this_process();
  std::string large = ptx({10}) + std::string(3 * kMiB, ' ');
  CUmodule module = nullptr;
  ASSERT_EQ(SIM(cuModuleLoadData)(&module, large.c_str()), CUDA_SUCCESS);
  EXPECT_EQ(used_of_this_process() - before, 4 * kMiB);  // 3 MiB and a little, in pages of 2 MiB
  CUdeviceptr table = 0;
  size_t bytes = 0;
  EXPECT_EQ(SIM(cuModuleGetGlobal_v2)(&table, &bytes, module, "table"), CUDA_SUCCESS);
  EXPECT_NE(table, 0U);
  EXPECT_EQ(bytes, 4096U);
  EXPECT_EQ(SIM(cuModuleUnload)(module), CUDA_SUCCESS);
  EXPECT_EQ(used_of_this_process(), before);
  EXPECT_EQ(SIM(cuModuleUnload)(module), CUDA_ERROR_INVALID_HANDLE);

  CUlibrary library = nullptr;
  ASSERT_EQ(SIM(cuLibraryLoadData)(&library, large.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(used_of_this_process() - before, 4 * kMiB);
  CUkernel handle = nullptr;
  ASSERT_EQ(SIM(cuLibraryGetKernel)(&handle, library, "k10"), CUDA_SUCCESS);
  EXPECT_EQ(launch(reinterpret_cast<CUfunction>(handle), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuLibraryUnload)(library), CUDA_SUCCESS);
  EXPECT_EQ(used_of_this_process(), before);
}

TEST_F(Launching, BadImagesAreRefused) {
  CUmodule module = nullptr;
  EXPECT_EQ(SIM(cuModuleLoadData)(&module, "this is no program"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(SIM(cuModuleLoadData)(&module, ".version 8.0\n.target sm_80\n.entry k() {"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(SIM(cuModuleLoadData)(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SIM(cuModuleLoad)(&module, "/nonexistent/a.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
  CUfunction function = nullptr;
  EXPECT_EQ(SIM(cuModuleGetFunction)(&function, module_, "absent"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(SIM(cuModuleGetFunction)(&function, reinterpret_cast<CUmodule>(&module), "k10"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Launching, ACubinFromAFileGivesItsKernels) {
  // A minimal 64-bit ELF file: the table of section names and one kernel's section.
  std::string names("\0.shstrtab\0.text.from_cubin\0", 27);
  std::string file(64, '\0');
  std::memcpy(file.data(), "\177ELF\2\1\1", 7);
  auto put = [&](std::string& to, size_t at, uint64_t value, size_t bytes) { std::memcpy(&to[at], &value, bytes); };
  size_t names_at = file.size();
  file += names;
  size_t table_at = (file.size() + 7) / 8 * 8;
  file.resize(table_at + 3 * 64, '\0');
  put(file, 40, table_at, 8);
  put(file, 58, 64, 2);
  put(file, 60, 3, 2);
  put(file, 62, 1, 2);
  put(file, table_at + 64, 1, 4);
  put(file, table_at + 64 + 24, names_at, 8);
  put(file, table_at + 64 + 32, names.size(), 8);
  put(file, table_at + 128, 11, 4);
  std::string path = std::string(std::getenv("KUBE_VRAM_SIM_DIR")) + "/a.cubin";
  std::ofstream(path, std::ios::binary) << file;
  CUmodule module = nullptr;
  ASSERT_EQ(SIM(cuModuleLoad)(&module, path.c_str()), CUDA_SUCCESS);
  CUfunction function = kernel(module, "from_cubin");
  EXPECT_EQ(launch(function, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuModuleUnload)(module), CUDA_SUCCESS);
  std::ofstream(path, std::ios::binary) << file.substr(0, 80);
  EXPECT_EQ(SIM(cuModuleLoad)(&module, path.c_str()), CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(Launching, EntryPointsAreFoundByVersionAndStream) {
  auto find = [](const char* name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
    void* out = reinterpret_cast<void*>(1);
    SIM(cuGetProcAddress_v2)(name, &out, version, flags, status);
    return out;
  };
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_EQ(find("cuMemAlloc", 13000, 0, &status), symbol("cuMemAlloc_v2"));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(find("cuMemAlloc", 3010, 0, &status), symbol("cuMemAlloc"));
  EXPECT_EQ(find("cuCtxCreate", 11040, 0, &status), symbol("cuCtxCreate_v3"));
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(find("cuStreamSynchronize", 13000, kPerThread, &status), symbol("cuStreamSynchronize_ptsz"));
  EXPECT_EQ(find("cuStreamSynchronize", 13000, 0, &status), symbol("cuStreamSynchronize"));
  EXPECT_EQ(find("cuMemcpyHtoD", 13000, kPerThread, &status), symbol("cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(find("cuInit", 13000, kPerThread, &status), symbol("cuInit")) << "has no variant";
  EXPECT_EQ(find("cuMemAllocAsync", 11000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(find("cuNothing", 13000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const char* text = nullptr;
  EXPECT_EQ(SIM(cuGetErrorName)(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(SIM(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(SIM(cuGetErrorName)(static_cast<CUresult>(54321), &text), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Launching, LaunchesAreChecked) {
  CUfunction f = kernel(module_, "k10");
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  auto try_launch = [&](unsigned grid, unsigned block, unsigned shared, void** params) {
    return SIM(cuLaunchKernel)(f, grid, 1, 1, block, 1, 1, shared, nullptr, params, nullptr);
  };
  EXPECT_EQ(try_launch(0, 32, 0, arguments), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_launch(1, 1025, 0, arguments), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_launch(1, 32, 64 * 1024, arguments), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_launch(1, 32, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SIM(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 96 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(try_launch(1, 32, 64 * 1024, arguments), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuLaunchKernel)(reinterpret_cast<CUfunction>(&f), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  size_t offset = 0;
  size_t bytes = 0;
  EXPECT_EQ(SIM(cuFuncGetParamInfo)(f, 1, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(bytes, 4U);
  int blocks = 0;
  EXPECT_EQ(SIM(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 256, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 6);  // 1536 threads of an A10's multiprocessor
}

TEST_F(Launching, ALaunchCostsLittle) {
  CUfunction f = kernel(module_, "k10");
  CUstream s = stream();
  auto call = SIM(cuLaunchKernel);
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  constexpr uint64_t kCalls = 20000;
  uint64_t start = now_us();
  for (uint64_t i = 0; i < kCalls; ++i) call(f, 1, 1, 1, 32, 1, 1, 0, s, arguments, nullptr);
  double each = static_cast<double>(now_us() - start) * 1000 / kCalls;
  RecordProperty("launch_ns", std::to_string(each));
  EXPECT_LT(each, 10000);  // well under 1000 on an idle machine
  EXPECT_EQ(SIM(cuStreamDestroy_v2)(s), CUDA_SUCCESS);
}

TEST_F(Launching, ThreadsUseStreamsEventsAndHostFunctionsTogether) {
  uint64_t before = used_of_this_process();
  std::atomic<int> host_calls = 0;
  auto work = [&](unsigned seed) {
    SIM(cuCtxSetCurrent)(context_);
    CUfunction f = kernel(module_, "k10");
    for (int round = 0; round < 20; ++round) {
      CUstream s = stream(round % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
      CUevent e = event();
      EXPECT_EQ(launch(f, (seed + static_cast<unsigned>(round)) % 3 == 0 ? nullptr : s), CUDA_SUCCESS);
      CUhostFn count = [](void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); };
      EXPECT_EQ(SIM(cuLaunchHostFunc)(s, count, &host_calls), CUDA_SUCCESS);
      EXPECT_EQ(SIM(cuEventRecord)(e, s), CUDA_SUCCESS);
      EXPECT_EQ(SIM(cuStreamWaitEvent)(nullptr, e, 0), CUDA_SUCCESS);
      EXPECT_EQ(launch(f, s), CUDA_SUCCESS);
      if (round % 4 != 3) {
        EXPECT_EQ(SIM(cuStreamSynchronize)(s), CUDA_SUCCESS);
      }
      EXPECT_EQ(SIM(cuEventDestroy_v2)(e), CUDA_SUCCESS);
      EXPECT_EQ(SIM(cuStreamDestroy_v2)(s), CUDA_SUCCESS);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(SIM(cuCtxSynchronize)(), CUDA_SUCCESS);
  // What a destroyed stream had queued still runs.
  for (int i = 0; i < 5000 && host_calls < 80; ++i) usleep(1000);
  EXPECT_EQ(host_calls, 80);
  EXPECT_EQ(used_of_this_process(), before);
}

TEST_F(Launching, TwoBusyProcessesShareTheGpu) {
  Child other("busy");
  ASSERT_TRUE(other.wait_ready());
  CUstream s = stream();
  EXPECT_NEAR(shortest_ms({kernel(module_, "k20000")}, s), 40.0, 2.0);
  other.kill();
  usleep(60000);
  EXPECT_NEAR(shortest_ms({kernel(module_, "k20000")}, s), 20.0, 1.0);
}

// A process with one endless kernel.
int run_busy() {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  std::string text = ptx({600000000});
  if (SIM(cuInit)(0) != CUDA_SUCCESS || SIM(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS) return 1;
  SIM(cuCtxSetCurrent)(context);
  if (SIM(cuModuleLoadData)(&module, text.c_str()) != CUDA_SUCCESS) return 1;
  SIM(cuModuleGetFunction)(&function, module, "k600000000");
  if (launch(function, nullptr) != CUDA_SUCCESS) return 1;
  say_ready();
  for (;;) pause();
}

}  // namespace
}  // namespace kvram::test

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--child=busy") return kvram::test::run_busy();
  testing::InitGoogleTest(&argc, argv);
  kvram::test::SimFolder folder("2xA10");
  return RUN_ALL_TESTS();
}
