// NVML and faults on demand, through the libraries as programs load them and vram-sim as a person types it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "libraries.h"

namespace kvram::test {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;

nvmlDevice_t device(unsigned index) {
  nvmlDevice_t out = nullptr;
  EXPECT_EQ(SIM(nvmlDeviceGetHandleByIndex_v2)(index, &out), NVML_SUCCESS);
  return out;
}

std::vector<nvmlProcessInfo_t> processes(unsigned index) {
  std::vector<nvmlProcessInfo_t> out(64);
  unsigned count = 64;
  EXPECT_EQ(SIM(nvmlDeviceGetComputeRunningProcesses_v3)(device(index), &count, out.data()), NVML_SUCCESS);
  out.resize(count);
  return out;
}

// Exit status of `vram-sim ...`; what it prints is dropped.
int vram_sim(const std::string& words) {
  std::string command = std::string(std::getenv("KUBE_VRAM_PREFIX")) + "/bin/vram-sim " + words + " >/dev/null 2>&1";
  int status = std::system(command.c_str());  // NOLINT(cert-env33-c): the words are this file's own
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class Monitor : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(SIM(nvmlInit_v2)(), NVML_SUCCESS); }
  void TearDown() override {
    EXPECT_EQ(vram_sim("clear"), 0);
    EXPECT_EQ(SIM(nvmlShutdown)(), NVML_SUCCESS);
  }
};

TEST_F(Monitor, CountsItsInitialisations) {
  ASSERT_EQ(SIM(nvmlInitWithFlags)(0), NVML_SUCCESS);
  ASSERT_EQ(SIM(nvmlShutdown)(), NVML_SUCCESS);
  unsigned count = 0;
  EXPECT_EQ(SIM(nvmlDeviceGetCount_v2)(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 3U);
  ASSERT_EQ(SIM(nvmlShutdown)(), NVML_SUCCESS);
  EXPECT_EQ(SIM(nvmlDeviceGetCount_v2)(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(SIM(nvmlShutdown)(), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(SIM(nvmlInit)(), NVML_SUCCESS);
}

TEST_F(Monitor, FindsDevicesInEveryWay) {
  for (unsigned i = 0; i < 3; ++i) {
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    nvmlPciInfo_t pci{};
    ASSERT_EQ(SIM(nvmlDeviceGetUUID)(device(i), uuid, sizeof uuid), NVML_SUCCESS);
    ASSERT_EQ(SIM(nvmlDeviceGetPciInfo_v3)(device(i), &pci), NVML_SUCCESS);
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(SIM(nvmlDeviceGetHandleByUUID)(uuid, &found), NVML_SUCCESS);
    EXPECT_EQ(found, device(i));
    EXPECT_EQ(SIM(nvmlDeviceGetHandleByPciBusId_v2)(pci.busId, &found), NVML_SUCCESS);
    EXPECT_EQ(found, device(i));
    EXPECT_EQ(SIM(nvmlDeviceGetHandleByPciBusId_v2)(pci.busIdLegacy, &found), NVML_SUCCESS);
    EXPECT_EQ(found, device(i));
    EXPECT_EQ(SIM(nvmlDeviceGetUUID)(device(i), uuid, 10), NVML_ERROR_INSUFFICIENT_SIZE);
  }
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(SIM(nvmlDeviceGetHandleByUUID)("GPU-none", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(SIM(nvmlDeviceGetHandleByIndex_v2)(3, &found), NVML_ERROR_INVALID_ARGUMENT);
  char name[96] = "";
  EXPECT_EQ(SIM(nvmlDeviceGetName)(device(2), name, sizeof name), NVML_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA H100 80GB HBM3");
  int major = 0;
  int minor = 0;
  EXPECT_EQ(SIM(nvmlDeviceGetCudaComputeCapability)(device(2), &major, &minor), NVML_SUCCESS);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(SIM(nvmlDeviceGetName)(reinterpret_cast<nvmlDevice_t>(name), name, sizeof name),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(Monitor, TheTwoFormsOfMemoryAgree) {
  Child holder("hold");
  ASSERT_TRUE(holder.wait_ready());
  nvmlMemory_t first{};
  nvmlMemory_v2_t second{};
  ASSERT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &first), NVML_SUCCESS);
  second.version = nvmlMemory_v2;
  ASSERT_EQ(SIM(nvmlDeviceGetMemoryInfo_v2)(device(0), &second), NVML_SUCCESS);
  EXPECT_EQ(first.total, 23028 * kMiB);
  EXPECT_EQ(second.total, first.total);
  EXPECT_EQ(first.used, second.used + second.reserved);
  EXPECT_EQ(first.free, second.free);
  EXPECT_EQ(second.total, second.reserved + second.used + second.free);
  EXPECT_EQ(processes(0).at(0).usedGpuMemory, second.used);
  EXPECT_GT(second.used, 100 * kMiB) << "the block and a context";
  second.version = 7;
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo_v2)(device(0), &second), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

TEST_F(Monitor, AProcessIsListedWhileItHasAContext) {
  EXPECT_TRUE(processes(0).empty());
  Child holder("hold");
  ASSERT_TRUE(holder.wait_ready());
  std::vector<nvmlProcessInfo_t> list = processes(0);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].pid, static_cast<unsigned>(holder.pid()));
  EXPECT_EQ(list[0].gpuInstanceId, 0xFFFFFFFFU);
  EXPECT_TRUE(processes(1).empty());
  unsigned count = 0;
  EXPECT_EQ(SIM(nvmlDeviceGetComputeRunningProcesses_v3)(device(0), &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 1U);
  nvmlProcessInfo_v1_t old{};
  EXPECT_EQ(SIM(nvmlDeviceGetComputeRunningProcesses)(device(0), &count, &old), NVML_SUCCESS);
  EXPECT_EQ(old.pid, list[0].pid);
  EXPECT_EQ(old.usedGpuMemory, list[0].usedGpuMemory);
  nvmlProcessDetail_v1_t detail{};
  nvmlProcessDetailList_t details{nvmlProcessDetailList_v1, NVML_PROCESS_MODE_COMPUTE, 1, &detail};
  EXPECT_EQ(SIM(nvmlDeviceGetRunningProcessDetailList)(device(0), &details), NVML_SUCCESS);
  EXPECT_EQ(detail.pid, list[0].pid);
  count = 5;
  EXPECT_EQ(SIM(nvmlDeviceGetGraphicsRunningProcesses_v3)(device(0), &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0U);
  holder.kill();
  EXPECT_TRUE(processes(0).empty());
}

TEST_F(Monitor, UtilisationNamesTheBusyProcess) {
  Child busy("busy");
  ASSERT_TRUE(busy.wait_ready());
  usleep(600000);
  nvmlUtilization_t rates{};
  EXPECT_EQ(SIM(nvmlDeviceGetUtilizationRates)(device(0), &rates), NVML_SUCCESS);
  EXPECT_GE(rates.gpu, 90U);
  nvmlProcessUtilizationSample_t samples[8] = {};
  unsigned count = 8;
  ASSERT_EQ(SIM(nvmlDeviceGetProcessUtilization)(device(0), samples, &count, 0), NVML_SUCCESS);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(samples[0].pid, static_cast<unsigned>(busy.pid()));
  EXPECT_GE(samples[0].smUtil, 90U);
  EXPECT_EQ(SIM(nvmlDeviceGetProcessUtilization)(device(1), samples, &count, 0), NVML_ERROR_NOT_FOUND);
}

TEST_F(Monitor, WhatIsNotModelledSaysSoAndIsCounted) {
  unsigned current = 0;
  EXPECT_EQ(SIM(nvmlDeviceGetMigMode)(device(0), &current, &current), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_STREQ(SIM(nvmlErrorString)(NVML_ERROR_NOT_SUPPORTED), "Not Supported");
  EXPECT_STREQ(SIM(nvmlErrorString)(NVML_ERROR_GPU_IS_LOST), "GPU is lost");
  EXPECT_STREQ(SIM(nvmlErrorString)(static_cast<nvmlReturn_t>(12345)), "Unknown Error");
}

TEST_F(Monitor, EventsDeliverXids) {
  nvmlEventSet_t set = nullptr;
  ASSERT_EQ(SIM(nvmlEventSetCreate)(&set), NVML_SUCCESS);
  unsigned long long types = 0;
  EXPECT_EQ(SIM(nvmlDeviceGetSupportedEventTypes)(device(1), &types), NVML_SUCCESS);
  ASSERT_EQ(SIM(nvmlDeviceRegisterEvents)(device(1), types, set), NVML_SUCCESS);
  nvmlEventData_t data{};
  uint64_t start = now_us();
  EXPECT_EQ(SIM(nvmlEventSetWait_v2)(set, &data, 30), NVML_ERROR_TIMEOUT);
  EXPECT_GE(now_us() - start, 30000U);
  ASSERT_EQ(vram_sim("fault xid 0 13"), 0);
  ASSERT_EQ(vram_sim("fault xid 1 79"), 0);
  ASSERT_EQ(SIM(nvmlEventSetWait_v2)(set, &data, 1000), NVML_SUCCESS);
  EXPECT_EQ(data.device, device(1)) << "device 0 is not registered";
  EXPECT_EQ(data.eventType, static_cast<unsigned long long>(nvmlEventTypeXidCriticalError));
  EXPECT_EQ(data.eventData, 79U);
  EXPECT_EQ(SIM(nvmlEventSetWait_v2)(set, &data, 0), NVML_ERROR_TIMEOUT);
  EXPECT_EQ(SIM(nvmlEventSetFree)(set), NVML_SUCCESS);
  EXPECT_EQ(SIM(nvmlEventSetWait_v2)(set, &data, 0), NVML_ERROR_INVALID_ARGUMENT);
  std::ifstream log(std::string(std::getenv("KUBE_VRAM_SIM_DIR")) + "/xid.log");
  std::string text((std::istreambuf_iterator<char>(log)), {});
  EXPECT_NE(text.find("Xid (PCI:0000:02:00): 79"), std::string::npos) << text;
}

TEST_F(Monitor, ALostGpuIsLostForEveryCallButNotItsNeighbour) {
  nvmlDevice_t lost = device(1);
  ASSERT_EQ(vram_sim("fault gpu-lost 1"), 0);
  nvmlMemory_t memory{};
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(lost, &memory), NVML_ERROR_GPU_IS_LOST);
  nvmlDevice_t again = nullptr;
  EXPECT_EQ(SIM(nvmlDeviceGetHandleByIndex_v2)(1, &again), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &memory), NVML_SUCCESS);
  ASSERT_EQ(vram_sim("clear"), 0);
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(lost, &memory), NVML_SUCCESS);
}

TEST_F(Monitor, CallsFailAndAreSlowOnDemand) {
  nvmlMemory_t memory{};
  ASSERT_EQ(vram_sim("fault nvml-error nvmlDeviceGetMemoryInfo 999 1"), 0);
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &memory), NVML_ERROR_UNKNOWN);
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &memory), NVML_SUCCESS);
  ASSERT_EQ(vram_sim("fault slow nvmlDeviceGetMemoryInfo 50ms"), 0);
  uint64_t start = now_us();
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &memory), NVML_SUCCESS);
  EXPECT_GE(now_us() - start, 50000U);
  EXPECT_EQ(vram_sim("fault slow nvmlDeviceGetMemoryInfo soon"), 64);
  EXPECT_EQ(vram_sim("fault melt 0"), 64);
}

TEST_F(Monitor, HiddenMemoryIsSeenByNvmlAlone) {
  Child holder("hold");
  ASSERT_TRUE(holder.wait_ready());
  uint64_t before = processes(0).at(0).usedGpuMemory;
  ASSERT_EQ(vram_sim("hidden " + std::to_string(holder.pid()) + " 0 512Mi"), 0);
  EXPECT_EQ(processes(0).at(0).usedGpuMemory - before, 512 * kMiB);
  EXPECT_EQ(vram_sim("hidden " + std::to_string(holder.pid()) + " 0 900Gi"), 1);
  EXPECT_EQ(vram_sim("hidden 1 0 1Gi"), 1);
  holder.kill();
  EXPECT_TRUE(processes(0).empty());
}

TEST_F(Monitor, MemoryCanBeRefusedWhileItIsShownAsFree) {
  ASSERT_EQ(vram_sim("fault phys-oom 0 22Gi"), 0);
  EXPECT_EQ(vram_sim("hold 2Gi --for 0.01"), 1);
  nvmlMemory_t memory{};
  EXPECT_EQ(SIM(nvmlDeviceGetMemoryInfo)(device(0), &memory), NVML_SUCCESS);
  EXPECT_GT(memory.free, 20 * 1024 * kMiB);
  ASSERT_EQ(vram_sim("clear"), 0);
  EXPECT_EQ(vram_sim("hold 2Gi --for 0.01"), 0);
}

TEST_F(Monitor, ADriverOnALostGpuFails) {
  Child holder("lose");
  ASSERT_TRUE(holder.wait_ready());
  ASSERT_EQ(vram_sim("fault gpu-lost 0"), 0);
  EXPECT_TRUE(holder.wait_ready()) << "cuMemAlloc fails with CUDA_ERROR_UNKNOWN and the program goes on";
}

bool open_context() {
  CUcontext context = nullptr;
  return SIM(cuInit)(0) == CUDA_SUCCESS && SIM(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS &&
         SIM(cuCtxSetCurrent)(context) == CUDA_SUCCESS;
}

int run_hold() {
  CUdeviceptr at = 0;
  if (!open_context() || SIM(cuMemAlloc_v2)(&at, 100 * kMiB) != CUDA_SUCCESS) return 1;
  say_ready();
  for (;;) pause();
}

int run_lose() {
  CUdeviceptr at = 0;
  if (!open_context() || SIM(cuMemAlloc_v2)(&at, kMiB) != CUDA_SUCCESS) return 1;
  say_ready();
  CUresult r = CUDA_SUCCESS;
  while (r == CUDA_SUCCESS) {
    r = SIM(cuMemAlloc_v2)(&at, kMiB);
    if (r == CUDA_SUCCESS) SIM(cuMemFree_v2)(at);
    usleep(1000);
  }
  if (r == CUDA_ERROR_UNKNOWN) say_ready();
  for (;;) pause();
}

int run_busy() {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  std::string text = ptx({600000000});
  if (!open_context() || SIM(cuModuleLoadData)(&module, text.c_str()) != CUDA_SUCCESS) return 1;
  SIM(cuModuleGetFunction)(&function, module, "k600000000");
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  if (SIM(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) != CUDA_SUCCESS) return 1;
  say_ready();
  for (;;) pause();
}

}  // namespace
}  // namespace kvram::test

int main(int argc, char** argv) {
  std::string mode = argc == 2 ? argv[1] : "";
  if (mode == "--child=hold") return kvram::test::run_hold();
  if (mode == "--child=busy") return kvram::test::run_busy();
  if (mode == "--child=lose") return kvram::test::run_lose();
  testing::InitGoogleTest(&argc, argv);
  kvram::test::SimFolder folder("2xA10,1xH100-80GB");
  return RUN_ALL_TESTS();
}
