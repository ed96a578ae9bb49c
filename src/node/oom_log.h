// Post-mortems of refused allocations: the last kMaxOoms, newest first in reports.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace kvram::node {

constexpr size_t kMaxOoms = 256;

struct OomProcess {
  int32_t pid = 0;
  std::string name;
  uint64_t charged = 0;  // bytes
  uint64_t resident = 0;
};
struct OomNeighbour {
  uint64_t budget = 0;
  uint64_t limit = 0;  // bytes
  uint64_t charged = 0;
};

// All amounts in bytes.
struct Oom {
  uint64_t id = 0;
  double time = 0;  // unix seconds
  uint64_t budget = 0;
  uint32_t uid = 0;
  std::string command;
  int32_t pid = 0;
  std::string process;
  std::string call;
  uint64_t asked = 0;
  int gpu = 0;  // index
  uint64_t limit = 0;
  uint64_t charged = 0;
  uint64_t hidden = 0;
  uint64_t free_in_budget = 0;
  uint64_t would_fit = 0;
  bool physical = false;  // the driver refused although the ledger had room
  std::vector<OomProcess> processes;
  uint64_t gpu_total = 0;
  uint64_t gpu_reserved = 0;
  uint64_t gpu_foreign = 0;
  uint64_t gpu_free = 0;
  std::vector<OomNeighbour> neighbours;
};

class OomLog {
 public:
  // False when it displaced an older one.
  void add(Oom oom);
  // The program got the memory at another try: counted, not listed. False when it is not there or of another process.
  bool overcome(uint64_t id, int32_t pid);
  const Oom* find(uint64_t id) const;
  const std::deque<Oom>& all() const { return ooms_; }  // oldest first
  uint64_t counted_overcome() const { return overcome_; }
  void set_counted(uint64_t overcome) { overcome_ = overcome; }

 private:
  std::deque<Oom> ooms_;
  uint64_t overcome_ = 0;
};

// What was asked, by which call, who held what, what would have fitted.
std::string oom_sentence(const Oom& oom);
// One line of JSON, for the journal and for `vram oom`; `others` false: neighbours' budgets are left out.
std::string oom_json(const Oom& oom, bool others);
std::optional<Oom> oom_from_json(const std::string& text);

}  // namespace kvram::node
