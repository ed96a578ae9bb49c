// The command line: words in, an Invocation out. Syntax only; nothing is looked up or connected here.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/commands.h"

namespace kvram::cli {

enum class Format { kTable, kWide, kJson, kYaml };

struct Invocation {
  std::vector<std::string> path;  // "daemon", "status"; empty: no command was given
  const CommandSpec* command = nullptr;
  std::map<std::string, std::string, std::less<>> values;  // "--memory" -> "6Gi"; a flag -> ""
  std::vector<std::string> arguments;                      // for run: the command and its arguments

  bool has(std::string_view option) const { return values.find(option) != values.end(); }
  // The value, or nothing when the option was not given.
  std::optional<std::string> value(std::string_view option) const;
  std::string name() const { return path.empty() ? "" : path[0]; }
  Format format() const;  // kTable when --output is absent; parse() has checked it
};

// argv without the program's name. Unknown words, missing values and options that exclude each other: kBadUsage with
// what was probably meant.
Result<Invocation> parse(const std::vector<std::string>& words);

// Whether a word can be a list of simulated GPUs: [COUNTx]MODEL, separated by commas, each model with a letter and a
// digit. Only such a word is taken as the value of --sim, so that `vram oom --sim last` means what it says.
bool looks_like_gpus(std::string_view text);

// The format that errors are to be printed in, also when the line cannot be parsed.
Format format_hint(const std::vector<std::string>& words);

}  // namespace kvram::cli
