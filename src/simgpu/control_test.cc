#include "simgpu/control.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace kvram::simgpu {
namespace {

// The folder is made by the environment of gpu_clock_test.cc.
class Control : public testing::Test {
 protected:
  void SetUp() override { clear_faults(); }
  void TearDown() override { clear_faults(); }
};

int call_with_fault(const char* name) {
  KVSIM_FAULT(name, int);
  return 0;
}

TEST_F(Control, NothingHappensUnasked) {
  EXPECT_FALSE(faults_armed());
  EXPECT_EQ(call_with_fault("cuMemAlloc_v2"), 0);
  EXPECT_FALSE(gpu_lost(0));
  EXPECT_EQ(withheld_bytes(0), 0U);
}

TEST_F(Control, AnErrorFaultAppliesToItsCallAndSoOften) {
  ASSERT_TRUE(add_rule(FaultKind::kError, "cuMemAlloc_v2", 2, 2));
  EXPECT_TRUE(faults_armed());
  EXPECT_EQ(call_with_fault("cuMemFree_v2"), 0);
  EXPECT_EQ(call_with_fault("cuMemAlloc_v2"), 2);
  EXPECT_EQ(call_with_fault("cuMemAlloc_v2"), 2);
  EXPECT_EQ(call_with_fault("cuMemAlloc_v2"), 0);
}

TEST_F(Control, ASlowCallTakesItsTime) {
  ASSERT_TRUE(add_rule(FaultKind::kSlow, "cuInit", 30000000, UINT32_MAX));
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(call_with_fault("cuInit"), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST_F(Control, AHangEndsWhenItIsCleared) {
  ASSERT_TRUE(add_rule(FaultKind::kHang, "cuInit", 0, UINT32_MAX));
  std::atomic<bool> returned = false;
  std::thread caller([&] {
    call_with_fault("cuInit");
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(returned);
  clear_faults();
  caller.join();
  EXPECT_TRUE(returned);
}

TEST_F(Control, XidsAreRecordedAndLogged) {
  uint64_t before = control().xids.load();
  raise_xid(1, 79);
  EXPECT_EQ(control().xids.load(), before + 1);
  const XidEvent& event = control().ring[(before + 1) % kXidRing];
  EXPECT_EQ(event.gpu, 1U);
  EXPECT_EQ(event.xid, 79U);
  std::ifstream log(sim_folder() + "/xid.log");
  std::string line;
  ASSERT_TRUE(std::getline(log, line));
  EXPECT_NE(line.find("NVRM: Xid (PCI:0000:02:00): 79"), std::string::npos) << line;
  EXPECT_NE(line.find("GPU has fallen off the bus."), std::string::npos) << line;
}

TEST_F(Control, LostGpusComeBack) {
  set_lost(3, true);
  EXPECT_TRUE(gpu_lost(3));
  EXPECT_FALSE(gpu_lost(2));
  clear_faults();
  EXPECT_FALSE(gpu_lost(3));
}

TEST_F(Control, UnsupportedCallsAreCountedByName) {
  count_unsupported("cuSomething");
  count_unsupported("cuSomethingElse");
  count_unsupported("cuSomething");
  unsigned found = 0;
  for (const CallCounter& counter : control().calls) {
    if (counter.state.load() == 2 && std::string(counter.name) == "cuSomething") found += counter.count.load();
  }
  EXPECT_EQ(found, 2U);
}

}  // namespace
}  // namespace kvram::simgpu
