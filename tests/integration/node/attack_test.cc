// What a hostile program may try at the daemon's socket.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "fixture.h"

namespace kvram::test {
namespace {

constexpr auto kGranted = static_cast<uint32_t>(lease::RefillStatus::kGranted);
constexpr auto kRefused = static_cast<uint32_t>(lease::RefillStatus::kRefused);
constexpr auto kInvalid = static_cast<uint32_t>(lease::RefillStatus::kInvalid);

bool alive(TestNode& node) {
  return number(node.ask(R"({"op":"status"})"), "pid") == static_cast<uint64_t>(node.pid());
}

TEST(Attack, MalformedMessagesEndTheirConnectionAndNothingElse) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded bystander;
  ASSERT_TRUE(bystander.connect(node.run_dir));
  ASSERT_EQ(bystander.hello(), 0);
  auto good = message<lease::Refill>(lease::MessageType::kRefill, 1);
  std::vector<std::string> packets;
  auto add = [&](auto change, size_t size) {
    auto m = good;
    change(m);
    packets.emplace_back(reinterpret_cast<const char*>(&m), size);
  };
  add([](auto&) {}, 3);
  add([](auto& m) { m.header.magic = 1; }, sizeof good);
  add([](auto& m) { m.header.version = 99; }, sizeof good);
  add([](auto& m) { m.header.type = 999; }, sizeof good);
  add([](auto& m) { m.header.length = 0xffffffff; }, sizeof good);
  add([](auto& m) { m.header.length = sizeof(lease::Header); }, sizeof(lease::Header));
  add([](auto&) {}, sizeof good - 1);
  packets.emplace_back(lease::kMaxMessage + 100, 'x');
  packets.emplace_back(1, '\0');
  for (const std::string& packet : packets) {
    Guarded fresh;
    ASSERT_TRUE(fresh.connect(node.run_dir));
    fresh.send(packet.data(), packet.size());
    EXPECT_TRUE(fresh.ended()) << "packet of " << packet.size() << " bytes";
    Guarded member;  // also from one that was let in
    ASSERT_TRUE(member.connect(node.run_dir));
    ASSERT_EQ(member.hello(), 0);
    member.send(packet.data(), packet.size());
    EXPECT_TRUE(member.ended());
  }
  EXPECT_EQ(bystander.refill(0, kGi).status, kGranted);
  EXPECT_TRUE(alive(node));
}

TEST(Attack, RandomBytesFromASeed) {
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t seed = std::random_device()();
  if (const char* chosen = getenv("KV_SEED")) seed = strtoull(chosen, nullptr, 10);
  SCOPED_TRACE(testing::Message() << "KV_SEED=" << seed);
  std::mt19937_64 random(seed);
  start_budget(node, 2 * kGi);
  for (int i = 0; i < 400; ++i) {
    Guarded g;
    ASSERT_TRUE(g.connect(node.run_dir));
    if (random() % 2 == 0) ASSERT_EQ(g.hello(), 0);
    std::string packet(sizeof(lease::Header) + random() % 200, '\0');
    for (char& c : packet) c = static_cast<char>(random());
    lease::Header header{lease::kWireMagic,
                         lease::kWireVersion,
                         static_cast<uint16_t>(random() % 20),
                         static_cast<uint32_t>(packet.size()),
                         0,
                         0,
                         random()};
    memcpy(packet.data(), &header, sizeof header);
    g.send(packet.data(), packet.size());
  }
  EXPECT_TRUE(alive(node)) << node.said();
}

TEST(Attack, ControlRequestsOfEveryShape) {
  TestNode node;
  ASSERT_TRUE(node.start());
  std::string deep(20000, '[');
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"), std::string("{\"op\":7}"), deep,
        std::string("{\"op\":\"none\"}"), std::string("{\"op\":\"kill\"}"),
        std::string("{\"op\":\"kill\",\"budget\":-1}"), std::string("{\"op\":\"oom\",\"id\":{}}"),
        std::string("{\"op\":\"started\",\"budget\":1}"), std::string("{\"op\":\"kill\",\"budget\":1e300}"),
        std::string("\xff\xfe")}) {
    Error error = node.error_of(text);
    EXPECT_NE(error.message, "") << text;
  }
  node::Client client = node.client();
  json::object event = run(client, R"("memory":"lots","gpu":[],"card":{},"wait_s":"x","command":7)");
  EXPECT_EQ(event["event"], "refused");
  event = run(client, R"("memory":-5)");
  EXPECT_EQ(event["event"], "refused");
  EXPECT_TRUE(alive(node));
}

TEST(Attack, RefillsWithForeignNumbers) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded g;
  ASSERT_TRUE(g.connect(node.run_dir));
  ASSERT_EQ(g.hello(), 0);
  EXPECT_EQ(g.refill(1, 512).status, kInvalid) << "a GPU that is not in the budget";
  EXPECT_EQ(g.refill(0xffffffff, 512).status, kInvalid);
  EXPECT_EQ(g.refill(0, UINT64_MAX).status, kRefused);
  EXPECT_EQ(g.refill(0, 2 * kGi + 1).status, kRefused);
  EXPECT_EQ(g.release_shared(0, UINT64_MAX).status, kGranted) << "nothing was charged, so nothing is released";
  g.overcome(123456);
  // A word that claims more than was granted: recalls take what was granted, and no more.
  ASSERT_EQ(g.refill(0, kGi).status, kGranted);
  *lease::word_at(g.table, 1, g.welcome.slot, 0) = ~0ULL;
  Child sibling([&](int, int) {
    Guarded s;
    if (!s.connect(node.run_dir) || s.hello() != 0) return 1;
    if (s.refill(0, 2 * kGi).status != kGranted) return 2;
    return s.refill(0, 2 * kGi + 512).status == kRefused ? 0 : 3;
  });
  EXPECT_EQ(sibling.end(), 0);
  EXPECT_TRUE(alive(node));
}

TEST(Attack, AForkedChildCannotSpeakForItsParent) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded g;
  ASSERT_TRUE(g.connect(node.run_dir));
  ASSERT_EQ(g.hello(), 0);
  Child child([&](int, int) {
    auto m = message<lease::Refill>(lease::MessageType::kRefill, 50);
    m.need_units = 1;
    return g.send(&m, sizeof m) ? 0 : 1;
  });
  EXPECT_EQ(child.end(), 0);
  EXPECT_TRUE(g.ended()) << "what the descriptor says is no longer known to be the parent's";
}

TEST(Attack, TheSharedTableCannotBeShrunkAndTheGrantPageNotBeWritten) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded g;
  ASSERT_TRUE(g.connect(node.run_dir));
  ASSERT_EQ(g.hello(), 0);
  EXPECT_NE(ftruncate(g.lease_fd, 0), 0);
  EXPECT_NE(ftruncate(g.lease_fd, 1 << 30), 0);
  EXPECT_NE(fcntl(g.lease_fd, F_ADD_SEALS, F_SEAL_WRITE), 0) << "a sealed table could not be granted from";
  EXPECT_NE(mprotect(const_cast<lease::GrantPage*>(g.page), lease::kGrantBytes, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(g.refill(0, kGi).status, kGranted);
}

// As another user: what it can see and do.
int as_nobody(const std::function<int()>& body) {
  Child child([&](int, int) {
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) return 90;
    return body();
  });
  int status = child.end();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Attack, AnotherUserSeesTotalsAndEndsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  TestNode node;
  ASSERT_TRUE(node.start());
  uint64_t id = start_budget(node, 2 * kGi);
  EXPECT_EQ(as_nobody([&] {
              node::Client client = node.client();
              auto killed = client.request("{\"op\":\"kill\",\"budget\":" + std::to_string(id) + "}");
              if (killed || killed.error().code != ErrorCode::kNoPermission) return 1;
              auto stopped = client.request(R"({"op":"stop","force":true})");
              if (stopped || stopped.error().code != ErrorCode::kNoPermission) return 2;
              auto list = client.request(R"({"op":"list"})");
              if (!list || list->find("./a") != std::string::npos) return 3;
              if (list->find("2147483648") == std::string::npos) return 4;
              json::object refused = run(client, "\"memory\":24696061952");
              std::string text = json::serialize(refused);
              if (text.find("./a") != std::string::npos) return 5;
              return text.find("another user's budget") == std::string::npos ? 6 : 0;
            }),
            0);
  EXPECT_TRUE(alive(node));
}

TEST(Attack, ASocketOfAnotherUsersDaemon) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  TestNode node;
  ASSERT_TRUE(node.start());
  ASSERT_EQ(chmod((node.run_dir + "/node.sock").c_str(), 0600), 0);  // as a user's own daemon makes it
  EXPECT_EQ(as_nobody([&] {
              auto client = node::Client::connect(node.run_dir);
              return !client && client.error().code == ErrorCode::kDaemonPermission ? 0 : 1;
            }),
            0);
}

TEST(Attack, TenThousandConnections) {
  TestNode node;
  ASSERT_TRUE(node.start());
  start_budget(node, 2 * kGi);
  Guarded bystander;
  ASSERT_TRUE(bystander.connect(node.run_dir));
  ASSERT_EQ(bystander.hello(), 0);
  Child flood([&](int in, int out) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<std::unique_ptr<Guarded>> all;
    for (int i = 0; i < 10000; ++i) {
      auto g = std::make_unique<Guarded>();
      if (!g->connect(node.run_dir)) break;
      all.push_back(std::move(g));
      if (i % 1000 == 999) {
        char byte = '.';
        if (write(out, &byte, 1) != 1) return 1;
      }
    }
    char byte = 'd';
    if (write(out, &byte, 1) != 1) return 1;
    return static_cast<int>(read(in, &byte, 1));
  });
  char heard = 0;
  int thousands = 0;
  while ((heard = flood.hear()) == '.') {
    ++thousands;
    auto before = std::chrono::steady_clock::now();
    EXPECT_TRUE(alive(node)) << "an honest request in the middle of it";
    EXPECT_EQ(bystander.refill(0, kMi).status, kGranted);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    EXPECT_LT(took.count(), 2) << "seconds";
  }
  EXPECT_EQ(heard, 'd');
  EXPECT_GE(thousands, 1) << "the flood did not happen";
  EXPECT_LE(number(node.ask(R"({"op":"status"})"), "connections"), 300u) << "idle connections of one user are bounded";
}

}  // namespace
}  // namespace kvram::test
