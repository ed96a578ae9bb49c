// Requests that wait for room, served in order of arrival. Pure.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "placement/policy.h"

namespace kvram::node {

constexpr size_t kMaxWaiting = 1024;

struct Waiter {
  uint64_t id = 0;
  model::Request request;
  double since = 0;                // unix seconds
  std::optional<double> deadline;  // unix seconds; none: waits for ever
  uint32_t uid = 0;
  int32_t pid = 0;
  std::string command;
};

class WaitQueue {
 public:
  bool full() const { return waiting_.size() >= kMaxWaiting; }
  void add(Waiter waiter) { waiting_.push_back(std::move(waiter)); }
  void remove(uint64_t id);
  const std::deque<Waiter>& waiting() const { return waiting_; }
  size_t position(uint64_t id) const;  // from 1; 0: not in the queue

  // Marks the GPUs that the first `count` waiting requests wait for: a later request leaves them alone, so a small one
  // never starves a large one; GPUs that no earlier request could ever use stay open to it.
  void promise(std::vector<placement::GpuState>& gpus, size_t count) const;

  struct Admission {
    uint64_t id = 0;
    model::Assignment parts;
  };
  // The first request, in order, that has room now. It stays in the queue.
  std::optional<Admission> next(const std::vector<placement::GpuState>& gpus, const placement::Policy& policy) const;

 private:
  std::deque<Waiter> waiting_;
};

}  // namespace kvram::node
