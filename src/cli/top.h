// `vram top` at a terminal or into a pipe.
#pragma once
#include "cli/daemon.h"
#include "cli/parse.h"

namespace kvram::cli {

// Returns the exit status; errors are printed.
int top_command(const Invocation& line);

// "0.5", "2": seconds between 0.1 and 3600, else kBadUsage.
Result<double> parse_interval(const std::string& text);

}  // namespace kvram::cli
