// For tests: the daemon's end of the guard's protocol in a thread, for one budget of one GPU, as little as it takes.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lease/wire.h"

namespace kvram::guard {

class FakeNode {
 public:
  struct Options {
    std::string socket;
    uint64_t limit = 0;          // bytes
    uint64_t step = 1ULL << 20;  // bytes granted at once, if there is room
    bool refuse_all = false;     // every process belongs to no budget
    lease::CostModel cost{};
  };
  explicit FakeNode(Options options);
  ~FakeNode();
  // Stops listening and hangs up; what the processes hold stays. start() again is a restart of the daemon.
  void stop();
  void start();

  uint64_t charged();  // bytes, over all slots
  // Sets the limit (bytes) and takes back all that was granted and not spent, as the daemon does before it refuses.
  void set_limit(uint64_t bytes);
  uint64_t charged_of(uint32_t slot);
  uint32_t slots();
  void refuse_all(bool refuse) {
    std::lock_guard hold(mutex_);
    options_.refuse_all = refuse;
  }
  // Bytes of the pages themselves, for a test that changes them.
  lease::GrantPage* page() { return page_; }

  struct Seen {
    std::vector<std::string> refused_calls;
    std::vector<uint64_t> overcome;
    std::vector<uint64_t> physical;  // bytes asked
    uint64_t shared = 0;             // units released as shared
    int refills = 0;
    int hellos = 0;
    int replays = 0;
    int observers = 0;
    uint32_t unknown_symbols = 0;
  };
  Seen seen();

 private:
  void serve();
  void handle(int fd, const std::vector<char>& packet, int passed_fd);
  void hello(int fd, const lease::Hello& m, int passed_fd);
  void refill(int fd, const lease::Refill& m);
  void reply_refill(int fd, uint64_t seq, lease::RefillStatus status, uint32_t slot, uint64_t oom);
  uint64_t recall(uint32_t except, uint64_t most);

  Options options_;
  int lease_fd_ = -1;
  int page_fd_ = -1;
  uint64_t* table_ = nullptr;
  lease::GrantPage* page_ = nullptr;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::thread thread_;
  std::mutex mutex_;
  std::map<int, uint32_t> slot_of_fd_;
  std::vector<uint64_t> granted_;
  uint64_t next_oom_ = 1;
  Seen seen_;
};

}  // namespace kvram::guard
