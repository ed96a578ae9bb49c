#include <algorithm>

#include "placement/policy.h"

namespace kvram::placement {
namespace {

constexpr int kMaxGpusOfRequest = 16;

int count_of(const model::Request& request) { return request.cards > 0 ? request.cards : request.gpus; }

bool is_sound(const model::Request& request) {
  int count = count_of(request);
  if (count < 1 || count > kMaxGpusOfRequest) return false;
  return request.cards > 0 ? request.memory == Bytes(0) : request.memory > Bytes(0);
}

bool fits(const GpuState& gpu, const model::Request& request) {
  if (request.cards > 0) return is_untouched(gpu);
  return free_of(gpu) >= model::part_of(request);
}

Refusal explain(const std::vector<GpuState>& gpus, const model::Request& request) {
  Refusal refusal;
  refusal.asked_gpus = count_of(request);
  refusal.part = request.cards > 0 ? Bytes(0) : model::part_of(request);
  int healthy = 0;
  int could = 0;
  int fit_now = 0;
  for (const GpuState& gpu : gpus) {
    if (gpu.healthy) ++healthy;
    if (could_serve(gpu, request)) ++could;
    if (fits(gpu, request)) ++fit_now;
    if (Bytes free = free_of(gpu); refusal.largest_index < 0 || free > refusal.largest_free) {
      refusal.largest_free = free;
      refusal.largest_index = gpu.index;
    }
  }
  refusal.fitting_gpus = fit_now;
  if (!is_sound(request)) {
    refusal.why = Why::kBadRequest;
  } else if (refusal.asked_gpus > healthy) {
    refusal.why = Why::kTooManyGpus;
  } else if (could < refusal.asked_gpus) {
    refusal.why = Why::kTooLarge;
  } else {
    refusal.why = fit_now >= refusal.asked_gpus ? Why::kWaitsAhead : Why::kNoRoom;
  }
  return refusal;
}

class BestFit final : public Policy {
 public:
  std::string_view name() const override { return "best-fit"; }
  Decision place(const std::vector<GpuState>& gpus, const model::Request& request) const override {
    std::vector<const GpuState*> candidates;
    for (const GpuState& gpu : gpus) {
      if (is_sound(request) && !gpu.promised && fits(gpu, request)) candidates.push_back(&gpu);
    }
    auto count = static_cast<size_t>(count_of(request));
    if (!is_sound(request) || candidates.size() < count) return explain(gpus, request);
    std::sort(candidates.begin(), candidates.end(), [](const GpuState* a, const GpuState* b) {
      return free_of(*a) != free_of(*b) ? free_of(*a) < free_of(*b) : a->index < b->index;
    });
    model::Assignment parts;
    for (size_t i = 0; i < count; ++i) {
      Bytes limit = request.cards > 0 ? capacity_of(*candidates[i]) : model::part_of(request);
      parts.push_back({candidates[i]->uuid, limit});
    }
    return parts;
  }
};

}  // namespace

Bytes capacity_of(const GpuState& gpu) { return std::max(Bytes(0), gpu.total - gpu.reserved); }

Bytes free_of(const GpuState& gpu) {
  if (!gpu.healthy || gpu.whole) return Bytes(0);
  return std::max(Bytes(0), gpu.total - gpu.reserved - gpu.foreign - gpu.assigned);
}

bool is_untouched(const GpuState& gpu) {
  return gpu.healthy && !gpu.whole && gpu.budgets == 0 && gpu.foreign == Bytes(0) && gpu.assigned == Bytes(0);
}

bool could_serve(const GpuState& gpu, const model::Request& request) {
  if (!gpu.healthy) return false;
  return request.cards > 0 || capacity_of(gpu) >= model::part_of(request);
}

const Policy& best_fit() {
  static const BestFit policy;
  return policy;
}

}  // namespace kvram::placement
