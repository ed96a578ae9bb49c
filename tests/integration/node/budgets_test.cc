// Budgets from grant to end, with programs that live, die and exec.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "fixture.h"

namespace kvram::test {
namespace {

using lease::RefillStatus;
constexpr auto kGranted = static_cast<uint32_t>(RefillStatus::kGranted);
constexpr auto kRefused = static_cast<uint32_t>(RefillStatus::kRefused);

json::object gpu0(TestNode& node) { return node.ask(R"({"op":"list"})")["gpus"].as_array()[0].as_object(); }
json::object part0(json::object budget) { return budget["gpus"].as_array()[0].as_object(); }

TEST(Budgets, GrantedListedSpentRefusedAndExplained) {
  TestNode node;
  ASSERT_TRUE(node.start()) << node.said();
  uint64_t id = start_budget(node, 6 * kGi);
  EXPECT_EQ(number(gpu0(node), "assigned"), 6 * kGi);
  EXPECT_EQ(number(gpu0(node), "free"), 24 * kGi - 512 * kMi - 6 * kGi);
  Guarded program;
  ASSERT_TRUE(program.connect(node.run_dir));
  ASSERT_EQ(program.hello(), 0);
  EXPECT_EQ(program.welcome.budget_id, id);
  EXPECT_EQ(program.welcome.simulated, 1u);
  EXPECT_EQ(program.refill(0, 4 * kGi).status, kGranted);
  ASSERT_TRUE(program.spend(0, 4 * kGi));
  lease::RefillReply refused = program.refill(0, 2 * kGi + 512, "cuMemAlloc_v2");
  EXPECT_EQ(refused.status, kRefused);
  ASSERT_NE(refused.oom_id, 0u);
  EXPECT_EQ(program.refill(0, 2 * kGi).status, kGranted) << "to the last byte";
  EXPECT_EQ(program.page->gpu[0].limit_units, lease::to_units(6 * kGi));
  json::object detail = node.ask("{\"op\":\"oom\",\"id\":" + std::to_string(refused.oom_id) + "}")["oom"].as_object();
  EXPECT_EQ(number(detail, "asked"), 2 * kGi + 512);
  EXPECT_EQ(number(detail, "charged"), 4 * kGi);
  EXPECT_EQ(number(detail, "limit"), 6 * kGi);
  EXPECT_EQ(number(detail, "would_fit"), 2 * kGi);
  EXPECT_EQ(detail["call"], "cuMemAlloc_v2");
  EXPECT_EQ(detail["kind"], "limit");
  EXPECT_EQ(number(part0(node.budget(id)), "charged"), 4 * kGi);
  EXPECT_EQ(number(node.budget(id), "refused"), 1u);
  program.overcome(refused.oom_id);
  EXPECT_TRUE(TestNode::eventually([&] { return number(node.budget(id), "overcome") == 1; }));
  json::object ooms = node.ask(R"({"op":"oom"})");
  EXPECT_TRUE(ooms["ooms"].as_array().empty()) << "overcome: counted, not listed";
  EXPECT_EQ(number(ooms["counted"].as_object(), "overcome"), 1u);
}

TEST(Budgets, ARequestThatIsNeverStartedGivesItsRoomBack) {
  TestNode node;
  ASSERT_TRUE(node.start());
  {
    node::Client client = node.client();
    ASSERT_EQ(run(client, "\"memory\":6442450944")["event"], "granted");
    EXPECT_EQ(number(gpu0(node), "assigned"), 6 * kGi);
  }
  EXPECT_TRUE(TestNode::eventually([&] { return number(gpu0(node), "assigned") == 0; }));
}

TEST(Budgets, RefusalsSayWhatIsFreeAndWhoHoldsTheRest) {
  TestNode node;
  node.figures("gpu 25769803776 536870912 NVIDIA Test 24GB\nprocess 0 1 2147483648\n");
  ASSERT_TRUE(node.start());
  start_budget(node, 6 * kGi);
  auto refuse = [&](const std::string& rest) {
    node::Client client = node.client();
    json::object event = run(client, rest);
    EXPECT_EQ(event["event"], "refused") << json::serialize(event);
    return event;
  };
  json::object event = refuse("\"memory\":17179869184");
  std::string text(event["error"].as_object()["message"].as_string());
  EXPECT_EQ(event["error"].as_object()["code"], "VRAM-2001");
  EXPECT_NE(text.find("16Gi on one GPU was asked, but the largest free part is 15.5Gi (GPU 0)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("budget 1 (./a) 6Gi"), std::string::npos) << text;
  EXPECT_NE(text.find("foreign 2Gi (pid 1 "), std::string::npos) << text;
  json::object gpu = event["detail"].as_object()["gpus"].as_array()[0].as_object();
  EXPECT_EQ(number(gpu, "free"), 24 * kGi - 512 * kMi - 8 * kGi);
  auto code = [&](const std::string& rest) { return refuse(rest)["error"].as_object()["code"]; };
  EXPECT_EQ(code("\"memory\":0"), "VRAM-1002");
  EXPECT_EQ(code("\"memory\":1048576"), "VRAM-1011") << "below a context";
  EXPECT_EQ(code("\"memory\":1e30"), "VRAM-1013");
  EXPECT_EQ(code("\"memory\":32212254720"), "VRAM-1013");
  EXPECT_EQ(code("\"memory\":6442450944,\"gpu\":2"), "VRAM-1012");
  EXPECT_EQ(code("\"memory\":6442450944,\"gpu\":0"), "VRAM-1003");
  EXPECT_EQ(code("\"memory\":6442450944,\"card\":1"), "VRAM-1014");
  EXPECT_EQ(code("\"card\":1"), "VRAM-2001") << "a whole card has no neighbours";
}

TEST(Budgets, WaitInOrderOfArrival) {
  TestNode node;
  ASSERT_TRUE(node.start());
  auto first = std::make_unique<Child>([&](int in, int out) {
    node::Client c = node.client();
    json::object granted = run(c, "\"memory\":17179869184");
    char byte = granted["event"] == "granted" ? 'g' : 'r';
    if (write(out, &byte, 1) != 1) return 1;
    return static_cast<int>(read(in, &byte, 1));
  });
  ASSERT_EQ(first->hear(), 'g');
  auto waiter = [&](uint64_t memory, double seconds) {
    return std::make_unique<Child>([&node, memory, seconds](int in, int out) {
      node::Client c = node.client();
      json::object e = run(c, "\"memory\":" + std::to_string(memory) + ",\"wait_s\":" + std::to_string(seconds));
      char byte = e["event"] == "granted" ? 'g' : e["error"].as_object()["code"] == "VRAM-2003" ? 't' : 'r';
      if (write(out, &byte, 1) != 1) return 1;
      return static_cast<int>(read(in, &byte, 1));
    });
  };
  auto queued = [&](size_t count) {
    return TestNode::eventually([&] { return node.ask(R"({"op":"list"})")["waiting"].as_array().size() == count; });
  };
  auto large = waiter(20 * kGi, 60);
  ASSERT_TRUE(queued(1));
  auto small = waiter(2 * kGi, 60);
  ASSERT_TRUE(queued(2)) << "2Gi would fit, but the larger request came first";
  auto late = waiter(2 * kGi, 0.3);
  EXPECT_EQ(late->hear(), 't');
  {
    node::Client client = node.client();
    EXPECT_EQ(run(client, "\"memory\":2147483648")["error"].as_object()["code"], "VRAM-2002");
  }
  first->kill9();
  EXPECT_EQ(large->hear(), 'g');
  EXPECT_EQ(small->hear(), 'g');
}

// A child that registers as a program of this process's budget and charges memory, then waits.
std::unique_ptr<Child> program(TestNode& node, uint64_t bytes) {
  return std::make_unique<Child>([&node, bytes](int in, int out) {
    Guarded g;
    char byte = 'x';
    if (g.connect(node.run_dir) && g.hello() == 0 && g.refill(0, bytes).status == kGranted && g.spend(0, bytes))
      byte = 'k';
    if (write(out, &byte, 1) != 1) return 1;
    while (read(in, &byte, 1) == 1) {
      if (byte == 'r') {  // one more refill
        byte = g.refill(0, kMi).status == kGranted ? 'k' : 'x';
        if (write(out, &byte, 1) != 1) return 1;
      }
    }
    return 0;
  });
}

TEST(Budgets, ADeadProgramsChargeGoesOnlyWhenTheDriverNoLongerListsIt) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 6 * kGi);
  auto child = program(node, 2 * kGi);
  ASSERT_EQ(child->hear(), 'k');
  std::string base = "gpu 25769803776 536870912 NVIDIA Test 24GB\n";
  node.figures(base + "ghost 0 " + std::to_string(child->pid) + " 2147483648\n");
  ASSERT_TRUE(TestNode::eventually([&] { return number(part0(node.budget(id)), "resident") == 2 * kGi; }));
  child->kill9();
  usleep(300000);
  EXPECT_EQ(number(part0(node.budget(id)), "charged"), 2 * kGi) << "the driver lists it still";
  node.figures(base);
  EXPECT_TRUE(TestNode::eventually([&] { return number(part0(node.budget(id)), "granted") == 0; }))
      << json::serialize(node.ask(R"({"op":"list"})")) << node.said();
}

TEST(Budgets, OutliveADaemonThatIsKilled) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 6 * kGi);
  Guarded own;
  ASSERT_TRUE(own.connect(node.run_dir));
  ASSERT_EQ(own.hello(), 0);
  ASSERT_EQ(own.refill(0, kGi).status, kGranted);
  ASSERT_TRUE(own.spend(0, kGi));
  auto child = program(node, 2 * kGi);
  ASSERT_EQ(child->hear(), 'k');
  auto doomed = program(node, kGi);
  ASSERT_EQ(doomed->hear(), 'k');
  node.kill9();
  doomed->kill9();  // while nobody watches
  ASSERT_TRUE(node.start()) << node.said();
  EXPECT_TRUE(TestNode::eventually([&] { return number(part0(node.budget(id)), "charged") == 3 * kGi; }))
      << json::serialize(node.budget(id)) << node.said();
  auto joined = program(node, kGi);
  EXPECT_EQ(joined->hear(), 'k') << "a new process joins before the old ones came back";
  ASSERT_TRUE(own.connect(node.run_dir));
  EXPECT_EQ(own.replay(id, own.welcome.slot, own.lease_fd), 0);
  EXPECT_EQ(own.refill(0, 2 * kGi).status, kGranted);
  EXPECT_EQ(own.refill(0, 2 * kGi + 512).status, kRefused) << "4 GiB are charged";
  EXPECT_EQ(number(part0(node.budget(id)), "charged"), 4 * kGi);
}

TEST(Budgets, WhatCountsIsWhoOneIsNotWhatOneSays) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 6 * kGi);
  Guarded own;
  ASSERT_TRUE(own.connect(node.run_dir));
  ASSERT_EQ(own.hello(), 0);
  // Another process of the same budget claims this one's slot; then one that shows memory of its own making.
  Child thief([&](int, int) {
    Guarded g;
    if (!g.connect(node.run_dir)) return 1;
    if (g.replay(id, own.welcome.slot, own.lease_fd) != static_cast<int>(ErrorCode::kBadReplay)) return 2;
    return 0;
  });
  EXPECT_EQ(thief.end(), 0);
  own.disconnect();
  Guarded forged;
  ASSERT_TRUE(forged.connect(node.run_dir));
  EXPECT_EQ(forged.replay(id + 1, own.welcome.slot, own.lease_fd), static_cast<int>(ErrorCode::kBadReplay));
  ASSERT_TRUE(forged.connect(node.run_dir));
  EXPECT_EQ(forged.replay(id, own.welcome.slot, STDERR_FILENO), static_cast<int>(ErrorCode::kBadReplay));
  ASSERT_TRUE(forged.connect(node.run_dir));
  EXPECT_EQ(forged.replay(id, 1000, own.lease_fd), static_cast<int>(ErrorCode::kBadReplay));
  // A process outside: its parent is gone before it connects.
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Child parent([&](int, int) {
    if (fork() != 0) return 0;
    usleep(200000);
    Guarded g;
    int answer = g.connect(node.run_dir) ? g.hello() : -2;
    _exit(write(pipe_fds[1], &answer, sizeof answer) == sizeof answer ? 0 : 1);
  });
  parent.end();
  int answer = 0;
  ASSERT_EQ(read(pipe_fds[0], &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
  EXPECT_EQ(answer, static_cast<int>(ErrorCode::kNotInBudget));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(Budgets, AnExecKeepsTheChargeUntilTheMemoryIsGone) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 6 * kGi);
  Child child([&](int, int out) {
    Guarded g;
    char byte = 'x';
    if (g.connect(node.run_dir) && g.hello() == 0 && g.refill(0, kGi).status == kGranted && g.spend(0, kGi)) byte = 'k';
    if (write(out, &byte, 1) != 1) return 1;
    usleep(300000);
    execl("/bin/sleep", "sleep", "30", nullptr);
    return 1;
  });
  ASSERT_EQ(child.hear(), 'k');
  std::string base = "gpu 25769803776 536870912 NVIDIA Test 24GB\n";
  node.figures(base + "process 0 " + std::to_string(child.pid) + " 1073741824\n");
  usleep(600000);
  EXPECT_EQ(number(part0(node.budget(id)), "charged"), kGi) << "still listed after the exec";
  node.figures(base);
  EXPECT_TRUE(TestNode::eventually([&] { return number(part0(node.budget(id)), "granted") == 0; }))
      << json::serialize(node.ask(R"({"op":"list"})")) << node.said();
}

TEST(Budgets, StrictOnesThatHoldTooMuchAreEnded) {
  TestNode node;
  ASSERT_TRUE(node.start());
  Child child([&](int in, int out) {
    signal(SIGTERM, SIG_DFL);
    node::Client c = node.client();
    json::object granted = run(c, "\"memory\":2147483648,\"strict\":true");
    char byte = 'g';
    auto ok = c.request(
        "{\"op\":\"started\",\"mode\":\"path\",\"budget\":" + std::to_string(number(granted, "budget")) + "}");
    if (!ok || write(out, &byte, 1) != 1) return 1;
    return static_cast<int>(read(in, &byte, 1));
  });
  ASSERT_EQ(child.hear(), 'g');
  node.figures("gpu 25769803776 536870912 NVIDIA Test 24GB\nprocess 0 " + std::to_string(child.pid) + " 2147484672\n");
  int status = child.end();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(Budgets, ADaemonisedChildKeepsItsNamespacesBudget) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a mount namespace";
  TestNode node;
  ASSERT_TRUE(node.start());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Child root([&](int, int out) {
    if (unshare(CLONE_NEWNS) != 0) return 3;
    node::Client c = node.client();
    json::object granted = run(c, "\"memory\":2147483648");
    auto ok = c.request(
        "{\"op\":\"started\",\"mode\":\"namespace\",\"budget\":" + std::to_string(number(granted, "budget")) + "}");
    char byte = 'g';
    if (!ok || write(out, &byte, 1) != 1) return 1;
    if (fork() == 0) {
      setsid();
      if (fork() != 0) _exit(0);
      usleep(300000);  // the root process is gone by now
      Guarded g;
      int answer = g.connect(node.run_dir) ? g.hello() : -2;
      if (write(pipe_fds[1], &answer, sizeof answer) != sizeof answer) _exit(1);
      usleep(700000);
      _exit(0);
    }
    wait(nullptr);
    return 0;
  });
  ASSERT_EQ(root.hear(), 'g');
  EXPECT_EQ(root.end(), 0);
  int answer = -1;
  ASSERT_EQ(read(pipe_fds[0], &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
  EXPECT_EQ(answer, 0);
  EXPECT_EQ(node.ask(R"({"op":"list"})")["budgets"].as_array().size(), 1u);
  EXPECT_TRUE(TestNode::eventually([&] { return node.ask(R"({"op":"list"})")["budgets"].as_array().empty(); }));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(Budgets, AThousandOfThemAreListedQuicklyAndTakeLittleMemory) {
  TestNode node;
  node.figures("gpu 8796093022208 536870912 NVIDIA Test 8TB\n");
  ASSERT_TRUE(node.start());
  for (int i = 0; i < 1000; ++i) start_budget(node, kGi);
  ASSERT_EQ(node.ask(R"({"op":"list"})")["budgets"].as_array().size(), 1000u);
  node::Client client = node.client();
  double best = 1;
  for (int i = 0; i < 10; ++i) {
    auto before = std::chrono::steady_clock::now();
    auto reply = client.request(R"({"op":"list"})");
    ASSERT_TRUE(reply.has_value());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  uint64_t rss = number(node.ask(R"({"op":"status"})"), "rss_bytes");
  RecordProperty("list_us", static_cast<int>(best * 1e6));
  RecordProperty("rss_kib", static_cast<int>(rss >> 10));
#if !defined(__SANITIZE_ADDRESS__) && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
  EXPECT_LT(best, 0.05) << "seconds for one list";
  EXPECT_LT(rss, 20u << 20);
#endif
}

}  // namespace
}  // namespace kvram::test
