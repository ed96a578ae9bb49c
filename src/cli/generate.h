// What is made from the table of commands and the table of errors: help, man pages, documentation, completions.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/commands.h"

namespace kvram::cli {

// A command with its names from the root: {"vram", "daemon", "stop"}.
using CommandPath = std::vector<const CommandSpec*>;
// The root, every command and every command below one; hidden ones are left out.
std::vector<CommandPath> all_commands();
std::string joined(const CommandPath& path, std::string_view separator);

std::string help_text(const CommandPath& path);
// roff for man(1); the section is 1.
std::string man_page(const CommandPath& path, std::string_view version);
// One page for a top-level command and what is below it.
std::string command_page(const CommandSpec& command);
std::string command_index();
std::string error_page();

std::string completion_script(std::string_view shell);  // "bash", "zsh" or "fish"; empty for another

// File names and texts of one kind: man, commands, errors or completions. Empty for another kind.
std::vector<std::pair<std::string, std::string>> generated_files(std::string_view kind, std::string_view version);
// Writes them below the folder, which is made. Files that are the same are left alone.
Result<void> write_generated(const std::string& kind, const std::string& folder, std::string_view version);

}  // namespace kvram::cli
