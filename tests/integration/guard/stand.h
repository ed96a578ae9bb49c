// A program's view of the guard in front of the simulated driver, in the test's own process: every call by name, what
// the ledger has charged, and what the simulated GPU really holds.
#pragma once
#include "simgpu/libraries.h"

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "guard/fake_node_testing.h"

namespace kvram::test {

constexpr uint64_t kMiB = 1ULL << 20;

class Stand {
 public:
  // One per process: the guard cannot be unloaded. Costs as data/gpus.json has them for the GPU of `spec`.
  static Stand& get();
  guard::FakeNode& node() { return *node_; }
  // The guard's function; remembers that it was asked for.
  void* call(const char* name);
  const std::set<std::string>& called() const { return called_; }
  uint64_t charged() { return node_->charged(); }
  uint64_t resident();  // bytes of this process on the two simulated GPUs; the budget has the program's first
  // What is charged and the limit set to leave `room` bytes.
  void leave_room(uint64_t room) { node_->set_limit(charged() + room); }
  void unlimited() { node_->set_limit(20ULL << 30); }
  CUcontext primary() const { return primary_; }
  void retain_primary();
  const std::filesystem::path& folder() const { return folder_; }

 private:
  Stand();
  ~Stand();
  std::filesystem::path folder_;
  std::unique_ptr<SimFolder> sim_;
  std::unique_ptr<guard::FakeNode> node_;
  void* library_ = nullptr;
  std::set<std::string> called_;
  CUcontext primary_ = nullptr;
};

#define CU(name) (reinterpret_cast<decltype(&::name)>(::kvram::test::Stand::get().call(#name)))

}  // namespace kvram::test
