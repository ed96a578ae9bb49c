// What `vram ps`, `vram gpus` and `vram oom` print: pure functions from the daemon's reply to text.
#pragma once
#include <string>
#include <string_view>

#include "cli/snapshot.h"

namespace kvram::cli {

struct ShowOptions {
  bool wide = false;
  double now = 0;  // unix seconds, for ages
};

// "simulated GPUs" and the driver's version, or nothing: the first line of every output that rests on the simulator.
std::string simulated_line(const Snapshot& s);

// "0", "0,1" or "-".
std::string gpu_list(const std::vector<Share>& shares);

// What the guard does not meet in a mode ("namespace" or "path").
std::string_view slips_past(std::string_view mode);

std::string show_budgets(const Snapshot& s, const ShowOptions& options);
std::string show_gpus(const Snapshot& s, const ShowOptions& options);

// {"ooms": [...], "counted": {"overcome": N}}, newest first.
std::string show_ooms(const json::object& reply, const ShowOptions& options);
// {"oom": {...}}: the sentence, what was asked, who held what as a bar and a table.
std::string show_oom(const json::object& reply, const ShowOptions& options);

}  // namespace kvram::cli
