#include "simgpu/gpu_clock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace kvram::simgpu {
namespace {

constexpr uint64_t kMs = 1000000;

// One folder for the whole program: the mapping is made once per process.
class Folder : public testing::Environment {
 public:
  void SetUp() override {
    std::string name = "/dev/shm/kvram-clock-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
    setenv("KUBE_VRAM_SIM_DIR", path_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

 private:
  std::string path_;
};
const auto* const g_folder = testing::AddGlobalTestEnvironment(new Folder);

// A process that keeps GPU `gpu` busy with `ns` of work and says so through the pipe before it waits to be killed.
pid_t start_busy(uint32_t gpu, uint64_t ns) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  pid_t child = fork();
  if (child == 0) {
    clock_append(gpu, 0, ns);
    char byte = 1;
    if (write(ends[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  close(ends[1]);
  return child;
}
void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}
void sleep_ms(long ms) {
  timespec rest{ms / 1000, ms % 1000 * 1000000};
  nanosleep(&rest, nullptr);
}

TEST(GpuClock, WorkTakesItsTimeAndStreamsOverlap) {
  uint64_t start = real_now_ns();
  Tag first = clock_append(0, 0, 20 * kMs);
  Tag second = clock_append(0, first, 10 * kMs);
  Tag beside = clock_append(0, 0, 15 * kMs);
  EXPECT_EQ(second - first, 10 * kMs);
  EXPECT_LT(beside, first);
  EXPECT_FALSE(clock_reached(0, second));
  ASSERT_TRUE(clock_wait(0, second));
  uint64_t took = real_now_ns() - start;
  EXPECT_GE(took, 30 * kMs);
  uint64_t first_at = clock_reached_at(0, first);
  uint64_t second_at = clock_reached_at(0, second);
  EXPECT_NEAR(static_cast<double>(second_at - first_at), 10.0 * kMs, 0.1 * kMs);
  EXPECT_NEAR(static_cast<double>(first_at - clock_reached_at(0, beside)), static_cast<double>(first - beside),
              0.1 * kMs);
}

TEST(GpuClock, WorkOnAnIdleGpuStartsNow) {
  sleep_ms(20);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(1, 0, 5 * kMs);
  uint64_t appended = real_now_ns();
  ASSERT_TRUE(clock_wait(1, tag));
  uint64_t at = clock_reached_at(1, tag);
  EXPECT_GE(at, start + 5 * kMs);
  EXPECT_LE(at, appended + 5 * kMs);
}

TEST(GpuClock, TwoBusyProcessesTakeTurns) {
  pid_t other = start_busy(2, 1000000 * kMs);
  EXPECT_EQ(clock_active(2), 1U);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(2, 0, 30 * kMs);
  uint64_t appended = real_now_ns();
  EXPECT_EQ(clock_active(2), 2U);
  ASSERT_TRUE(clock_wait(2, tag));
  uint64_t at = clock_reached_at(2, tag);
  EXPECT_GE(at, start + 60 * kMs - kMs / 10);
  EXPECT_LE(at, appended + 60 * kMs + kMs / 10);
  end(other);
}

TEST(GpuClock, AKilledProcessGivesUpItsTurn) {
  pid_t other = start_busy(3, 1000000 * kMs);
  end(other);
  sleep_ms(50);
  EXPECT_EQ(clock_active(3), 0U);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(3, 0, 20 * kMs);
  uint64_t appended = real_now_ns();
  ASSERT_TRUE(clock_wait(3, tag));
  EXPECT_GE(clock_reached_at(3, tag), start + 20 * kMs);
  EXPECT_LE(clock_reached_at(3, tag), appended + 20 * kMs);
}

TEST(GpuClock, UtilisationFollowsTheLoad) {
  EXPECT_EQ(clock_utilisation(4).gpu_percent, 0U);
  clock_append(4, 0, 100000 * kMs);
  Tag shorter = clock_append(7, 0, 100 * kMs);
  sleep_ms(600);
  EXPECT_GE(clock_utilisation(4).gpu_percent, 95U);
  EXPECT_GE(clock_process_share(4, static_cast<uint32_t>(getpid())).percent, 95U);
  ASSERT_TRUE(clock_wait(7, shorter));
  sleep_ms(600);
  EXPECT_EQ(clock_utilisation(7).gpu_percent, 0U);
  EXPECT_EQ(clock_utilisation(7).busy_ns, 100 * kMs);
}

// Many processes: a division that drops its rest at each look would lose some six per cent.
TEST(GpuClock, FrequentLooksDoNotSlowIt) {
  std::vector<pid_t> others;
  constexpr int kProcesses = 40;
  for (int i = 0; i < kProcesses; ++i) others.push_back(start_busy(5, 1000000 * kMs));
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    uint64_t start = real_now_ns();
    Tag before = clock_now(5);
    while (real_now_ns() < start + 20 * kMs) clock_now(5);
    Tag after = clock_now(5);
    double passed = static_cast<double>(real_now_ns() - start);
    best = std::max(best, static_cast<double>(after - before) * kProcesses / passed);
  }
  EXPECT_GT(best, 0.99);
  EXPECT_LT(best, 1.01);
  for (pid_t other : others) end(other);
}

TEST(GpuClock, AppendCostsLittle) {
  constexpr int kCalls = 100000;
  uint64_t start = real_now_ns();
  Tag tag = 0;
  for (int i = 0; i < kCalls; ++i) tag = clock_append(6, tag, 1);
  double each = static_cast<double>(real_now_ns() - start) / kCalls;
  RecordProperty("append_ns", std::to_string(each));
  EXPECT_LT(each, 20000);  // about 50 on an idle machine
}

}  // namespace
}  // namespace kvram::simgpu
