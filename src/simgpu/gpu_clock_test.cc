#include "simgpu/gpu_clock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

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
  EXPECT_NEAR(static_cast<double>(clock_reached_at(0, beside)), static_cast<double>(first_at - 5 * kMs), 0.2 * kMs);
}

TEST(GpuClock, WorkOnAnIdleGpuStartsNow) {
  sleep_ms(20);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(1, 0, 5 * kMs);
  ASSERT_TRUE(clock_wait(1, tag));
  uint64_t at = clock_reached_at(1, tag);
  EXPECT_GE(at, start + 5 * kMs);
  EXPECT_LT(at, start + 7 * kMs);
}

TEST(GpuClock, TwoBusyProcessesTakeTurns) {
  pid_t other = start_busy(2, 1000000 * kMs);
  EXPECT_EQ(clock_active(2), 1U);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(2, 0, 30 * kMs);
  EXPECT_EQ(clock_active(2), 2U);
  ASSERT_TRUE(clock_wait(2, tag));
  double took = static_cast<double>(clock_reached_at(2, tag) - start);
  EXPECT_NEAR(took, 60.0 * kMs, 2.0 * kMs);
  end(other);
}

TEST(GpuClock, AKilledProcessGivesUpItsTurn) {
  pid_t other = start_busy(3, 1000000 * kMs);
  end(other);
  sleep_ms(50);
  EXPECT_EQ(clock_active(3), 0U);
  uint64_t start = real_now_ns();
  Tag tag = clock_append(3, 0, 20 * kMs);
  ASSERT_TRUE(clock_wait(3, tag));
  EXPECT_NEAR(static_cast<double>(clock_reached_at(3, tag) - start), 20.0 * kMs, 2.0 * kMs);
}

TEST(GpuClock, UtilisationFollowsTheLoad) {
  EXPECT_EQ(clock_utilisation(4).gpu_percent, 0U);
  Tag tag = clock_append(4, 0, 600 * kMs);
  sleep_ms(550);
  EXPECT_GE(clock_utilisation(4).gpu_percent, 95U);
  EXPECT_GE(clock_process_share(4, static_cast<uint32_t>(getpid())).percent, 95U);
  ASSERT_TRUE(clock_wait(4, tag));
  sleep_ms(1000);
  EXPECT_EQ(clock_utilisation(4).gpu_percent, 0U);
  EXPECT_GE(clock_utilisation(4).busy_ns, 599 * kMs);
}

TEST(GpuClock, FrequentLooksDoNotSlowIt) {
  pid_t other = start_busy(5, 1000000 * kMs);
  Tag before = clock_now(5);
  uint64_t start = real_now_ns();
  while (real_now_ns() < start + 30 * kMs) clock_now(5);
  double served = static_cast<double>(clock_now(5) - before);
  double passed = static_cast<double>(real_now_ns() - start);
  EXPECT_NEAR(served / passed, 1.0, 0.02);
  end(other);
}

TEST(GpuClock, AppendCostsLittle) {
  constexpr int kCalls = 100000;
  uint64_t start = real_now_ns();
  Tag tag = 0;
  for (int i = 0; i < kCalls; ++i) tag = clock_append(6, tag, 1);
  double each = static_cast<double>(real_now_ns() - start) / kCalls;
  RecordProperty("append_ns", std::to_string(each));
  EXPECT_LT(each, 5000);  // about 150 on an idle machine
}

}  // namespace
}  // namespace kvram::simgpu
