// The commands that ask the daemon one thing and print it. Each returns the exit status and prints its errors.
#pragma once
#include "cli/parse.h"

namespace kvram::cli {

int list_command(const Invocation& line);  // ps, gpus
int oom_command(const Invocation& line);
int kill_command(const Invocation& line);
int daemon_command(const Invocation& line);
int explain_command(const Invocation& line);
int completion_command(const Invocation& line);
int complete_command(const Invocation& line);  // for the completion scripts
int generate_command(const Invocation& line, const char* version);

// "TERM", "SIGKILL", "9": the signal's number; kBadUsage for another.
Result<int> parse_signal(const std::string& text);
// A budget or post-mortem by number, "#7" too; kBadId.
Result<int64_t> parse_id(const std::string& text, std::string_view what);

}  // namespace kvram::cli
