// A real vram-node over a management library with made-up figures, in folders of its own, and what talks to it.
#pragma once
#include <sys/types.h>

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <vector>

#include "lease/wire.h"
#include "node/client.h"

namespace kvram::test {

namespace json = boost::json;

constexpr uint64_t kGi = 1ULL << 30;
constexpr uint64_t kMi = 1ULL << 20;

// Folders, figures and the daemon's process. Ends the daemon and removes the folders when it goes.
class TestNode {
 public:
  TestNode();
  ~TestNode();
  TestNode(const TestNode&) = delete;
  TestNode& operator=(const TestNode&) = delete;

  // Replaces the figures file (see fake_nvml.cc).
  void figures(const std::string& text);
  // Starts the daemon and waits until it answers; false when it ended first (its words are in said()). `before` runs in
  // its process before exec.
  bool start(const std::vector<std::string>& options = {}, const std::function<void()>& before = nullptr);
  int run_to_end(const std::vector<std::string>& options = {});  // a start that is expected to fail: its exit status
  void kill9();
  int terminate();  // SIGTERM; exit status
  pid_t pid() const { return pid_; }

  node::Client client();
  json::object ask(const std::string& request);  // fails the test unless the reply is an object
  Error error_of(const std::string& request);    // fails the test unless the reply is an error
  json::object budget(uint64_t id);              // its entry of `list`; empty when there is none
  // Waits up to 5 s for the condition; whether it came true.
  static bool eventually(const std::function<bool()>& condition);

  std::string said();  // the daemon's log
  std::string folder;
  std::string run_dir;    // with /sim
  std::string state_dir;  // with /sim

 private:
  pid_t spawn(const std::vector<std::string>& options, const std::function<void()>& before);
  pid_t pid_ = -1;
};

// The guard's end of the protocol, without a guard.
class Guarded {
 public:
  ~Guarded();
  Guarded() = default;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  bool connect(const std::string& run_dir);
  // 0: welcome. Else the code of the refusal; -1: the connection ended.
  int hello(bool observer = false);
  int replay(uint64_t budget, uint32_t slot, int lease_fd, uint64_t granted = 0);
  lease::RefillReply refill(uint32_t gpu, uint64_t bytes, const char* call = "cuMemAlloc_v2");
  lease::RefillReply release_shared(uint32_t gpu, uint64_t bytes);
  bool spend(uint32_t gpu, uint64_t bytes);
  void give_back(uint32_t gpu, uint64_t bytes);
  void overcome(uint64_t oom);
  void physical_oom(uint32_t gpu, uint64_t bytes);
  bool send(const void* data, size_t size, int pass_fd = -1);
  bool ended(int timeout_ms = 2000);  // the daemon closed the connection
  void disconnect();

  int fd = -1;
  int lease_fd = -1;
  lease::Welcome welcome{};
  const lease::GrantPage* page = nullptr;
  uint64_t* table = nullptr;

 private:
  int exchange(const lease::Hello& hello, int pass_fd);
  uint64_t seq_ = 0;
};

template <typename Message>
Message message(lease::MessageType type, uint64_t seq) {
  Message m{};
  m.header.magic = lease::kWireMagic;
  m.header.version = lease::kWireVersion;
  m.header.type = static_cast<uint16_t>(type);
  m.header.length = sizeof m;
  m.header.seq = seq;
  return m;
}

// A child process that does what it is told: `body` runs in it with one pipe in and one out.
class Child {
 public:
  explicit Child(const std::function<int(int in, int out)>& body);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  char hear();  // a byte from the child; 0 when it ended
  void tell(char byte) const;
  int end();  // waits; the wait status
  void kill9();
  pid_t pid = -1;

 private:
  int to_ = -1;
  int from_ = -1;
};

// {"op":"run",...} by this process on `client`; the granted event, or the refused one.
json::object run(node::Client& client, const std::string& rest);
uint64_t start_budget(TestNode& node, uint64_t memory, int gpus = 1);  // granted and started by this process; its id
uint64_t number(const json::object& object, const char* key);

}  // namespace kvram::test
