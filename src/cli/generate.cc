#include "cli/generate.h"

#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr size_t kHelpColumns = 80;

void add_commands(const CommandPath& above, std::vector<CommandPath>* out) {
  out->push_back(above);
  for (const CommandSpec& child : above.back()->children) {
    if (child.hidden) continue;
    CommandPath path = above;
    path.push_back(&child);
    add_commands(path, out);
  }
}

std::string usage(const CommandPath& path) {
  const CommandSpec& c = *path.back();
  std::string out = joined(path, " ");
  if (!c.options.empty() && path.size() > 1) out += " [options]";
  if (!c.children.empty()) out += " COMMAND";
  if (!c.argument.empty()) out += fmt::format(" {}", c.argument);
  return out;
}

std::string option_names(const OptionSpec& o) {
  std::string out = o.shorthand.empty() ? std::string(o.name) : fmt::format("{}, {}", o.shorthand, o.name);
  if (o.value.empty()) return out;
  return out + (o.value_optional ? fmt::format(" [{}]", o.value) : fmt::format(" {}", o.value));
}

// Two columns, the right one wrapped.
std::string two_columns(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t left = 0;
  for (const auto& row : rows) left = std::max(left, std::min<size_t>(row.first.size(), 26));
  std::string out;
  for (const auto& [name, text] : rows) {
    std::vector<std::string> lines = wrap(text, kHelpColumns - left - 4);
    bool own_line = name.size() > left;
    if (own_line) out += "  " + name + "\n";
    for (size_t i = 0; i < lines.size(); ++i) {
      std::string head = i == 0 && !own_line ? name : "";
      out += "  " + pad_right(head, left) + "  " + lines[i] + "\n";
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> option_rows(const CommandSpec& c) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const OptionSpec& o : c.options) rows.emplace_back(option_names(o), std::string(o.help));
  return rows;
}

std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += fmt::format("\\&{}", c);
    } else if (c != '`') {
      out += c;
    }
  }
  return out;
}

std::string roff_options(const CommandSpec& c) {
  std::string out;
  for (const OptionSpec& o : c.options) out += fmt::format(".TP\n.B {}\n{}.\n", roff(option_names(o)), roff(o.help));
  return out;
}

std::string see_also(const CommandPath& path) {
  std::string out;
  for (const CommandPath& other : all_commands()) {
    bool near = other.size() == path.size() - 1 || (path.size() == 1 && other.size() == 2) ||
                (other.size() == path.size() + 1 && other[other.size() - 2] == path.back());
    if (!near || other == path) continue;
    out += fmt::format("{}.BR {} (1)", out.empty() ? "" : ",\n", roff(joined(other, "-")));
  }
  return out + "\n";
}

std::string markdown_section(const CommandPath& path, bool global) {
  const CommandSpec& c = *path.back();
  std::string out = fmt::format("```\n{}\n```\n\n", usage(path));
  for (std::string_view paragraph : c.description) {
    for (const std::string& line : wrap(paragraph, 140)) out += line + "\n";
    out += "\n";
  }
  if (!c.options.empty()) {
    out += fmt::format("| {} | |\n| --- | --- |\n", global ? "option of every command" : "option");
    for (const OptionSpec& o : c.options) out += fmt::format("| `{}` | {} |\n", option_names(o), o.help);
    out += "\n";
  }
  if (c.examples.empty()) return out;
  out += "```sh\n";
  for (const auto& [line, what] : c.examples) out += fmt::format("{}  # {}\n", line, what);
  out += "```\n\n";
  return out;
}

constexpr std::string_view kMade =
    "<!-- Made from the table of commands or of errors by `vram generate`; do not edit. -->\n";

void remove_double_newline(std::string* text) {
  while (text->ends_with("\n\n")) text->pop_back();
}

Result<void> write_file(const std::string& path, const std::string& text) {
  auto closer = [](FILE* f) { fclose(f); };
  if (std::unique_ptr<FILE, decltype(closer)> old(fopen(path.c_str(), "rbe"), closer); old) {
    std::string now(text.size() + 1, '\0');
    size_t n = fread(now.data(), 1, now.size(), old.get());
    if (n == text.size() && now.compare(0, n, text) == 0) return {};
  }
  std::unique_ptr<FILE, decltype(closer)> file(fopen(path.c_str(), "wbe"), closer);
  bool written = file && fwrite(text.data(), 1, text.size(), file.get()) == text.size() && fflush(file.get()) == 0;
  if (written) return {};
  return fail(ErrorCode::kInternal, fmt::format("{} cannot be written: {}.", path, strerror(errno)));
}

}  // namespace

std::vector<CommandPath> all_commands() {
  std::vector<CommandPath> out;
  add_commands({&command_tree()}, &out);
  return out;
}

std::string joined(const CommandPath& path, std::string_view separator) {
  std::string out;
  for (const CommandSpec* c : path) out += (out.empty() ? "" : std::string(separator)) + std::string(c->name);
  return out;
}

std::string help_text(const CommandPath& path) {
  const CommandSpec& c = *path.back();
  std::string out = fmt::format("{}: {}\n\nUsage: {}\n", joined(path, " "), c.summary, usage(path));
  for (std::string_view paragraph : c.description) {
    out += "\n";
    for (const std::string& line : wrap(paragraph, kHelpColumns)) out += line + "\n";
  }
  std::vector<std::pair<std::string, std::string>> children;
  for (const CommandSpec& child : c.children) {
    if (!child.hidden) children.emplace_back(std::string(child.name), std::string(child.summary));
  }
  if (!children.empty()) out += "\nCommands:\n" + two_columns(children);
  if (path.size() > 1 && !c.options.empty()) out += "\nOptions:\n" + two_columns(option_rows(c));
  out += "\nOptions of every command:\n" + two_columns(option_rows(command_tree()));
  if (!c.examples.empty()) out += "\nExamples:\n";
  for (const auto& [line, what] : c.examples) out += fmt::format("  {}\n      {}\n", line, what);
  return out;
}

std::string man_page(const CommandPath& path, std::string_view version) {
  const CommandSpec& c = *path.back();
  std::string name = joined(path, "-");
  std::string upper;
  for (char l : name) upper += static_cast<char>(l >= 'a' && l <= 'z' ? l - 32 : l);
  std::string out = fmt::format(".TH \"{}\" 1 \"\" \"kube\\-vram {}\" \"kube\\-vram\"\n.SH NAME\n{} \\- {}\n",
                                roff(upper), version, roff(name), roff(c.summary));
  out += fmt::format(".SH SYNOPSIS\n.B {}\n.SH DESCRIPTION\n", roff(usage(path)));
  for (std::string_view paragraph : c.description) out += fmt::format(".PP\n{}\n", roff(paragraph));
  bool commands = false;
  for (const CommandSpec& child : c.children) {
    if (child.hidden) continue;
    if (!commands) out += ".SH COMMANDS\n";
    commands = true;
    out += fmt::format(".TP\n.B {}\n{}.\n", roff(child.name), roff(child.summary));
  }
  if (path.size() > 1 && !c.options.empty()) out += ".SH OPTIONS\n" + roff_options(c);
  out += ".SH OPTIONS OF EVERY COMMAND\n" + roff_options(command_tree());
  out +=
      ".SH EXIT STATUS\n0 on success, for vram run that of the command. Errors: 64 usage, 69 service missing, 70 "
      "internal, 73 cannot "
      "write, 74 input or output, 75 try again later, 76 protocol, 77 no permission, 78 configuration; 126 and 127 for "
      "a command that cannot run or is missing. "
      "vram explain CODE says more about each.\n";
  if (!c.examples.empty()) out += ".SH EXAMPLES\n";
  for (const auto& [line, what] : c.examples) out += fmt::format(".TP\n.B {}\n{}.\n", roff(line), roff(what));
  return out + ".SH SEE ALSO\n" + see_also(path);
}

std::string command_page(const CommandSpec& command) {
  CommandPath path = {&command_tree(), &command};
  std::string out = fmt::format("{}\n# vram {}\n\n{}\n\n", kMade, command.name, command.summary);
  out += markdown_section(path, false);
  for (const CommandSpec& child : command.children) {
    if (child.hidden) continue;
    CommandPath below = path;
    below.push_back(&child);
    out += fmt::format("## {}\n\n{}\n\n", joined(below, " "), child.summary) + markdown_section(below, false);
  }
  remove_double_newline(&out);
  return out;
}

std::string command_index() {
  const CommandSpec& root = command_tree();
  std::string out = fmt::format("{}\n# Commands\n\n{}\n\n{}| command | |\n| --- | --- |\n", kMade, root.summary,
                                markdown_section({&root}, true));
  for (const CommandSpec& child : root.children) {
    if (!child.hidden) out += fmt::format("| [vram {}]({}.md) | {} |\n", child.name, child.name, child.summary);
  }
  return out;
}

std::string error_page() {
  std::string out = fmt::format(
      "{}\n# Errors\n\nErrors go to standard error as `vram: CODE: sentence`. The codes are stable; the exit status "
      "is that of `vram`.\n\n| code | what | exit status |\n| --- | --- | --- |\n",
      kMade);
  std::vector<ErrorInfo> errors(error_table().begin(), error_table().end());
  std::sort(errors.begin(), errors.end(), [](const ErrorInfo& a, const ErrorInfo& b) { return a.code < b.code; });
  for (const ErrorInfo& e : errors) {
    std::string id = error_id(e.code);
    std::string anchor;
    for (char c : id) anchor += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    out += fmt::format("| [{}](#{}) | {} | {} |\n", id, anchor, e.title, e.exit_status);
  }
  for (const ErrorInfo& e : errors) {
    out += fmt::format("\n## {}\n\n{} (exit status {})\n\n", error_id(e.code), e.title, e.exit_status);
    for (const std::string& line : wrap(e.long_form, 140)) out += line + "\n";
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> generated_files(std::string_view kind, std::string_view version) {
  std::vector<std::pair<std::string, std::string>> files;
  if (kind == "man") {
    for (const CommandPath& path : all_commands())
      files.emplace_back(joined(path, "-") + ".1", man_page(path, version));
  } else if (kind == "commands") {
    files.emplace_back("README.md", command_index());
    for (const CommandSpec& c : command_tree().children) {
      if (!c.hidden) files.emplace_back(std::string(c.name) + ".md", command_page(c));
    }
  } else if (kind == "errors") {
    files.emplace_back("errors.md", error_page());
  } else if (kind == "completions") {
    files.emplace_back("bash-completion/completions/vram", completion_script("bash"));
    files.emplace_back("zsh/site-functions/_vram", completion_script("zsh"));
    files.emplace_back("fish/vendor_completions.d/vram.fish", completion_script("fish"));
  }
  return files;
}

Result<void> write_generated(const std::string& kind, const std::string& folder, std::string_view version) {
  auto files = generated_files(kind, version);
  if (files.empty())
    return fail(ErrorCode::kBadUsage,
                fmt::format("'{}' is none of man, commands, errors, completions.", printable(kind)));
  for (const auto& [name, text] : files) {
    std::string path = folder + "/" + name;
    for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      mkdir(path.substr(0, slash).c_str(), 0755);
    }
    if (Result<void> written = write_file(path, text); !written) return written;
  }
  return {};
}

}  // namespace kvram::cli
