#include "cli/app.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/actions.h"
#include "cli/failure.h"
#include "cli/generate.h"
#include "cli/run.h"
#include "cli/top.h"

namespace kvram::cli {
namespace {

CommandPath command_path(const Invocation& line) {
  CommandPath path = {&command_tree()};
  for (const std::string& name : line.path) {
    if (const CommandSpec* child = child_of(*path.back(), name)) path.push_back(child);
  }
  return path;
}

int show_version(const Invocation& line, const char* version) {
  json::object o = {{"program", "vram"}, {"version", version}};
  write_all(STDOUT_FILENO, line.format() == Format::kJson   ? pretty_json(o)
                           : line.format() == Format::kYaml ? to_yaml(o)
                                                            : fmt::format("vram {}\n", version));
  return 0;
}

int dispatch(const Invocation& line, const char* version) {
  const std::string& name = line.name();
  if (name == "run") return run_command(line);
  if (name == "top") return top_command(line);
  if (name == "ps" || name == "gpus") return list_command(line);
  if (name == "oom") return oom_command(line);
  if (name == "kill") return kill_command(line);
  if (name == "daemon") return daemon_command(line);
  if (name == "explain") return explain_command(line);
  if (name == "completion") return completion_command(line);
  if (name == "__complete") return complete_command(line);
  return generate_command(line, version);
}

}  // namespace

int run_program(int argc, char** argv, const char* version) {
  std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  Result<Invocation> line = parse(words);
  if (!line) return report(line.error(), format_hint(words));
  if (line->has("--version")) return show_version(*line, version);
  if (line->has("--help")) {
    write_all(STDOUT_FILENO, help_text(command_path(*line)));
    return 0;
  }
  if (line->command == nullptr || !line->command->children.empty()) {
    write_all(STDERR_FILENO, help_text(command_path(*line)));
    return error_info(ErrorCode::kBadUsage).exit_status;
  }
  return dispatch(*line, version);
}

}  // namespace kvram::cli
