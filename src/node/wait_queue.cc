#include "node/wait_queue.h"

#include <algorithm>

namespace kvram::node {

void WaitQueue::remove(uint64_t id) {
  std::erase_if(waiting_, [id](const Waiter& w) { return w.id == id; });
}

size_t WaitQueue::position(uint64_t id) const {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].id == id) return i + 1;
  }
  return 0;
}

void WaitQueue::promise(std::vector<placement::GpuState>& gpus, size_t count) const {
  for (size_t i = 0; i < std::min(count, waiting_.size()); ++i) {
    for (placement::GpuState& gpu : gpus) {
      gpu.promised = gpu.promised || placement::could_serve(gpu, waiting_[i].request);
    }
  }
}

std::optional<WaitQueue::Admission> WaitQueue::next(const std::vector<placement::GpuState>& gpus,
                                                    const placement::Policy& policy) const {
  std::vector<placement::GpuState> left = gpus;
  for (const Waiter& waiter : waiting_) {
    placement::Decision decision = policy.place(left, waiter.request);
    if (auto* parts = std::get_if<model::Assignment>(&decision)) return Admission{waiter.id, std::move(*parts)};
    for (placement::GpuState& gpu : left) {
      gpu.promised = gpu.promised || placement::could_serve(gpu, waiter.request);
    }
  }
  return std::nullopt;
}

}  // namespace kvram::node
