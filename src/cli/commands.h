// The one table of commands and options: the parser, --help, completions, man pages and docs/commands are made from it.
#pragma once
#include <string_view>
#include <vector>

namespace kvram::cli {

// What a shell can offer after an option or as an argument.
enum class Offer { kNothing, kFormat, kBudget, kOom, kErrorCode, kShell, kCommand, kSim, kSignal, kGpuCount, kFolder };

struct OptionSpec {
  std::string_view name;       // "--memory"
  std::string_view shorthand;  // "-o" or empty
  std::string_view value;      // "QUANTITY"; empty: a flag
  bool value_optional;
  Offer offer;
  std::string_view help;  // a sentence without a full stop
};

struct CommandSpec {
  std::string_view name;      // "run"; the program itself is "vram"
  std::string_view summary;   // one line
  std::string_view argument;  // "[last|ID]", "-- COMMAND [ARG...]"; empty: none
  Offer argument_offer;
  bool hidden;
  std::vector<std::string_view> description;  // paragraphs
  std::vector<OptionSpec> options;
  std::vector<std::pair<std::string_view, std::string_view>> examples;  // command line, what it does
  std::vector<CommandSpec> children;
};

// The root: its options are the global ones and may stand after any command.
const CommandSpec& command_tree();

// The child of that name, or nothing.
const CommandSpec* child_of(const CommandSpec& parent, std::string_view name);

}  // namespace kvram::cli
