// What the daemon finds when it starts, and what it does when its folders or the driver fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "fixture.h"

namespace kvram::test {
namespace {

namespace fs = std::filesystem;
constexpr auto kGranted = static_cast<uint32_t>(lease::RefillStatus::kGranted);

std::string warnings(TestNode& node) { return json::serialize(node.ask(R"({"op":"status"})")["warnings"]); }

// Files of the folder whose names begin like this.
size_t count_files(const std::string& folder, const std::string& prefix) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    count += entry.path().filename().string().starts_with(prefix) ? 1 : 0;
  }
  return count;
}

TEST(State, TwoDaemonsForOneFolder) {
  TestNode node;
  ASSERT_TRUE(node.start());
  EXPECT_EQ(node.run_to_end(), 75);
  EXPECT_NE(node.said().find("VRAM-4011"), std::string::npos) << node.said();
  EXPECT_EQ(node.run_to_end({"--sim", "2xTest"}), 78) << "another machine: that is not the same daemon";
  EXPECT_NE(node.said().find("VRAM-4012"), std::string::npos) << node.said();
  EXPECT_EQ(number(node.ask(R"({"op":"status"})"), "pid"), static_cast<uint64_t>(node.pid())) << "the first goes on";
}

TEST(State, AStaleSocketIsReplaced) {
  TestNode node;
  ASSERT_TRUE(node.start());
  node.kill9();
  ASSERT_TRUE(fs::exists(node.run_dir + "/node.sock"));
  auto gone = node::Client::connect(node.run_dir);
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, ErrorCode::kNoDaemon);
  ASSERT_TRUE(node.start()) << node.said();
}

TEST(State, AnOrderlyEndLeavesNoSocketAndKeepsBudgets) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 2 * kGi);
  EXPECT_EQ(node.error_of(R"({"op":"stop"})").code, ErrorCode::kBudgetsLive);
  EXPECT_EQ(node.terminate(), 0);
  EXPECT_FALSE(fs::exists(node.run_dir + "/node.sock"));
  ASSERT_TRUE(node.start());
  EXPECT_EQ(number(node.budget(id), "budget"), id);
  node.ask(R"({"op":"stop","force":true})");
  EXPECT_TRUE(TestNode::eventually([&] { return !node::Client::connect(node.run_dir).has_value(); }));
}

TEST(State, NumbersAreNotGivenTwice) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t first = 0;
  {
    node::Client client = node.client();
    first = number(run(client, "\"memory\":2147483648"), "budget");
  }
  EXPECT_TRUE(TestNode::eventually([&] { return node.budget(first).empty(); }));
  node.terminate();
  fs::remove_all(node.run_dir);  // as after the machine starts anew
  ASSERT_TRUE(node.start());
  EXPECT_GT(start_budget(node, 2 * kGi), first);
}

TEST(State, AReadOnlyStateFolderIsAWarning) {
  TestNode node;
  std::ofstream(node.folder + "/s") << "a file where a folder should be";
  ASSERT_TRUE(node.start()) << node.said();
  start_budget(node, 2 * kGi);
  EXPECT_NE(warnings(node).find("cannot be written"), std::string::npos) << warnings(node);
}

TEST(State, AFullStateFolderIsAWarningUntilThereIsSpace) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a small file system";
  TestNode node;
  std::string full = node.folder + "/full";
  fs::create_directories(full);
  if (mount("kvn", full.c_str(), "tmpfs", 0, "size=64k,mode=0755") != 0) GTEST_SKIP() << "no tmpfs can be mounted";
  fs::create_directories(full + "/sim");
  std::ofstream filler(full + "/filler");
  for (int i = 0; i < 64; ++i) filler << std::string(1024, 'x') << std::flush;
  filler.close();
  ASSERT_TRUE(node.start({"--state-dir", full})) << node.said();
  uint64_t id = start_budget(node, 2 * kGi);
  Guarded program;
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.hello(), 0);
  EXPECT_EQ(program.refill(0, 2 * kGi).status, kGranted) << "budgets work all the same";
  EXPECT_NE(program.refill(0, 3 * kGi).oom_id, 0u);
  EXPECT_NE(warnings(node).find("state folder is full"), std::string::npos) << warnings(node);
  fs::remove(full + "/filler");
  EXPECT_TRUE(TestNode::eventually([&] { return warnings(node) == "[]"; }) ||
              TestNode::eventually([&] { return warnings(node) == "[]"; }))
      << warnings(node);
  node.terminate();
  ASSERT_TRUE(node.start({"--state-dir", full}));
  EXPECT_EQ(node.ask(R"({"op":"oom"})")["ooms"].as_array().size(), 1u) << "nothing was lost";
  EXPECT_EQ(number(node.budget(id), "budget"), id);
  node.terminate();
  umount2(full.c_str(), MNT_DETACH);
}

TEST(State, ADamagedJournalIsKeptAsideAndReported) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded program;
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.hello(), 0);
  for (int i = 0; i < 3; ++i) ASSERT_NE(program.refill(0, 3 * kGi).oom_id, 0u);
  node.terminate();
  std::string path = node.state_dir + "/ooms.journal";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(200);  // in the first line
  file << "damage";
  file.close();
  ASSERT_TRUE(node.start()) << node.said();
  EXPECT_EQ(count_files(node.state_dir, "ooms.journal.corrupt-"), 1u);
  EXPECT_NE(warnings(node).find("kept aside"), std::string::npos) << warnings(node);
  EXPECT_EQ(node.ask(R"({"op":"oom"})")["ooms"].as_array().size(), 2u) << "the lines that could be read are in use";
}

TEST(State, ALineThatPowerLossCutOffIsDropped) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded program;
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.hello(), 0);
  for (int i = 0; i < 2; ++i) ASSERT_NE(program.refill(0, 3 * kGi).oom_id, 0u);
  node.terminate();
  std::string path = node.state_dir + "/ooms.journal";
  fs::resize_file(path, fs::file_size(path) - 20);
  ASSERT_TRUE(node.start());
  EXPECT_EQ(node.ask(R"({"op":"oom"})")["ooms"].as_array().size(), 1u);
  EXPECT_EQ(warnings(node), "[]");
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.replay(program.welcome.budget_id, program.welcome.slot, program.lease_fd), 0);
  ASSERT_NE(program.refill(0, 3 * kGi).oom_id, 0u);
  node.terminate();
  ASSERT_TRUE(node.start());
  EXPECT_EQ(node.ask(R"({"op":"oom"})")["ooms"].as_array().size(), 2u) << "what came after the cut is whole";
}

TEST(State, ADamagedLedgerIsKeptAsideAndBudgetsComeBackFromTheJournal) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 2 * kGi);
  node.terminate();
  std::fstream file(node.run_dir + "/ledger", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(0);
  file << "garbage!";
  file.close();
  ASSERT_TRUE(node.start()) << node.said();
  EXPECT_EQ(count_files(node.run_dir, "ledger.corrupt-"), 1u);
  EXPECT_NE(warnings(node).find("kept aside"), std::string::npos);
  json::object budget = node.budget(id);
  ASSERT_FALSE(budget.empty()) << node.said();
  EXPECT_EQ(number(budget["gpus"].as_array()[0].as_object(), "limit"), 2 * kGi);
}

TEST(State, ProgramsWhoseRecordsWereLostAreCountedAgain) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 2 * kGi);
  Guarded program;
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.hello(), 0);
  uint64_t granted = program.refill(0, kGi).granted_units;
  ASSERT_TRUE(program.spend(0, kGi));
  node.kill9();
  fs::remove_all(node.run_dir);
  ASSERT_TRUE(node.start()) << node.said();
  ASSERT_FALSE(node.budget(id).empty()) << "from the journal: " << node.said();
  ASSERT_TRUE(program.connect(node.run_dir));
  EXPECT_EQ(program.replay(id, program.welcome.slot, program.lease_fd, 3 * granted),
            static_cast<int>(ErrorCode::kBadReplay))
      << "more than the limit";
  ASSERT_TRUE(program.connect(node.run_dir));
  EXPECT_EQ(program.replay(id, program.welcome.slot, program.lease_fd, granted), 0);
  EXPECT_EQ(number(node.budget(id)["gpus"].as_array()[0].as_object(), "charged"), kGi);
  EXPECT_EQ(program.refill(0, kGi).status, kGranted);
  EXPECT_NE(program.refill(0, kGi + 512).status, kGranted);
}

TEST(State, AMissingDriverNamesTheSimulatedOne) {
  TestNode node;
  node.figures("");
  EXPECT_EQ(node.run_to_end(), 69);
  EXPECT_NE(node.said().find("--sim"), std::string::npos) << node.said();
  EXPECT_NE(node.said().find("VRAM-3001"), std::string::npos) << node.said();
}

TEST(State, ALostGpuGetsNothingNewAndKeepsItsBudgets) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 2 * kGi);
  node.figures("gpu 25769803776 536870912 NVIDIA Test 24GB\nlost 0\n");
  node::Client client = node.client();
  EXPECT_TRUE(TestNode::eventually([&] { return warnings(node).find("does not answer") != std::string::npos; }));
  json::object event = run(client, "\"memory\":2147483648");
  EXPECT_EQ(event["error"].as_object()["code"], "VRAM-3002");
  EXPECT_EQ(number(node.budget(id), "budget"), id);
  node.figures("gpu 25769803776 536870912 NVIDIA Test 24GB\n");
  EXPECT_TRUE(TestNode::eventually([&] { return warnings(node) == "[]"; })) << warnings(node);
}

TEST(State, GuardFoldersAreReadyAndNamedInTheGrant) {
  TestNode node;
  ASSERT_TRUE(node.start());
  node::Client client = node.client();
  json::object granted = run(client, "\"memory\":2147483648");
  json::object guard = granted["guard"].as_object();
  std::string library(guard["ns_cuda"].as_string());
  std::ifstream file(library, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(bytes.find(node.run_dir + "/node.sock"), std::string::npos) << library << " does not know the socket";
  EXPECT_NE(bytes.find(std::string(guard["stash_cuda"].as_string())), std::string::npos);
  EXPECT_TRUE(fs::exists(std::string(guard["stash_cuda"].as_string()))) << "a mount point";
  EXPECT_TRUE(fs::is_symlink(std::string(guard["path_dir"].as_string()) + "/libcuda.real.so"));
  EXPECT_EQ(granted["env"].as_object()["KUBE_VRAM_SIM"], "1xTest");
  auto inode = [&] {
    struct stat facts{};
    stat(library.c_str(), &facts);
    return facts.st_ino;
  };
  auto before = inode();
  node.terminate();
  ASSERT_TRUE(node.start());
  EXPECT_EQ(inode(), before) << "files that programs use are left alone";
}

}  // namespace
}  // namespace kvram::test
