// Where a budget goes: pure functions from what the GPUs hold to a choice or a refusal with figures. No clock, no IO,
// exact integers.
#pragma once
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "model/gpu.h"

namespace kvram::placement {

// One GPU as placement sees it. Amounts in bytes.
struct GpuState {
  model::GpuUuid uuid{};
  int index = 0;
  Bytes total;
  Bytes reserved;
  Bytes foreign;   // memory of programs outside kube-vram
  Bytes assigned;  // limits of the budgets on it, or what they hold where that is more
  int budgets = 0;
  bool whole = false;     // taken as a whole card
  bool healthy = true;    // an unhealthy GPU gets nothing new
  bool promised = false;  // requests that came earlier wait for it
};

// What a new budget can get: 0 for a GPU that is unhealthy or taken as a whole card.
Bytes free_of(const GpuState& gpu);
// What it could get if nothing else ran there.
Bytes capacity_of(const GpuState& gpu);
// Whether a whole-card request can have it now.
bool is_untouched(const GpuState& gpu);

enum class Why {
  kNoRoom,       // waiting can help
  kWaitsAhead,   // there is room, but earlier requests wait for it
  kTooManyGpus,  // more than there are in working order
  kTooLarge,     // a part is more than enough of the GPUs have in total
  kBadRequest,   // neither memory nor cards, both, or a count out of range
};

struct Refusal {
  Why why = Why::kNoRoom;
  Bytes part;  // asked on each GPU; 0 for whole cards
  int asked_gpus = 0;
  int fitting_gpus = 0;  // GPUs that could have taken a part
  Bytes largest_free;    // over all GPUs
  int largest_index = -1;
};

using Decision = std::variant<model::Assignment, Refusal>;

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // A choice of distinct GPUs of `gpus` that has room for the request, or why there is none.
  virtual Decision place(const std::vector<GpuState>& gpus, const model::Request& request) const = 0;
};

// Best fit: the GPUs on which the least stays free; equal ones by index. Whole cards: the smallest untouched ones.
const Policy& best_fit();

// Whether the GPU could ever serve the request, were it empty: what a waiting request waits for.
bool could_serve(const GpuState& gpu, const model::Request& request);

}  // namespace kvram::placement
