// The sentences of refusals: what was found, why that is a problem, what would work. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "placement/policy.h"

namespace kvram::node {

// Who holds memory of a GPU that a new budget cannot get.
struct Holder {
  uint64_t budget = 0;  // 0: foreign
  int32_t pid = 0;      // foreign; 0: memory of no process that the driver lists
  std::string who;      // command of the budget or name of the process; empty: another user's
  Bytes bytes;
};
struct GpuHolders {
  int index = 0;
  Bytes free;
  std::vector<Holder> holders;
};

// The error of a request that placement refused. `holders` in the order of the GPUs, `context` what a context takes.
Error refusal_error(const model::Request& request, const placement::Refusal& refusal,
                    const std::vector<GpuHolders>& holders, size_t waiting);
// What a waiting request waits for: the same figures, and how many are ahead.
std::string waiting_reason(const model::Request& request, const placement::Refusal& refusal,
                           const std::vector<GpuHolders>& holders, size_t ahead);
// "budget 1 (./a) 6Gi, foreign 2Gi (pid 123 hold)"; at most `most` entries, then "and N more".
std::string holders_text(const std::vector<Holder>& holders, size_t most);
// At most `most` bytes of valid UTF-8 on one line: what is none becomes '?', control characters become spaces.
std::string clean_text(std::string_view text, size_t most);
std::string asked_text(const model::Request& request);

}  // namespace kvram::node
