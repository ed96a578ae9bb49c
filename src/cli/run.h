// `vram run`: a budget, the guard in front of the driver, and then the command in this very process.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "cli/isolate.h"
#include "cli/json.h"
#include "cli/parse.h"

namespace kvram::cli {

struct RunRequest {
  std::optional<Bytes> memory;
  int gpus = 1;
  std::optional<int> cards;
  std::optional<double> wait_s;
  bool strict = false;
  bool verbose = false;
  bool no_namespace = false;
  std::vector<std::string> command;
};

// Checks everything that can be checked without a daemon; the command itself is looked up by find_command.
Result<RunRequest> run_request(const Invocation& line);

// "30s", "10m", "1h30m", "90": seconds. Zero, negative, more than 30 days or anything else: kBadDuration.
Result<double> parse_duration(const std::string& text);

// The file that execvp would run. kCommandMissing or kCommandNotExecutable.
Result<std::string> find_command(const std::string& name);

// What the daemon granted, as far as this process needs it.
struct Grant {
  int64_t budget = 0;
  bool simulated = false;
  std::vector<Cover> covers;
  std::string path_dir;
  std::string driver_dir;
  std::vector<std::pair<std::string, std::string>> environment;
  json::object event;
};
Grant parse_grant(const json::object& event);

// The line of --verbose: budget, GPUs, context reserve, mode and what slips past it.
std::string grant_line(const Grant& grant, const std::string& mode, const std::string& why);

// LD_LIBRARY_PATH for the command: the guard's folder first (mode path) or the driver's (mode namespace, where it has
// none of the standard places), then what was set. Empty folders are left out.
std::string library_path(const std::string& folder, const char* before);

// Does it all. Returns only when the command was not started, with the exit status; errors are printed.
int run_command(const Invocation& line);

}  // namespace kvram::cli
