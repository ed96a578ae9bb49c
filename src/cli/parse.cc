#include "cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>

#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr std::string_view kNoValue = "\x01";  // for an option whose value is left away

struct Slot {  // where CLI11 leaves what it read for one option of one command
  const OptionSpec* spec;
  CLI::Option* option;
  std::vector<std::string> values;
  int count = 0;
};

struct Level {
  const CommandSpec* spec;
  CLI::App* app;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<std::unique_ptr<Level>> children;
};

std::unique_ptr<Level> build(const CommandSpec& spec, CLI::App* app) {
  auto level = std::make_unique<Level>();
  level->spec = &spec;
  level->app = app;
  app->set_help_flag();
  app->allow_extras();
  app->fallthrough();
  for (const OptionSpec& o : spec.options) {
    auto slot = std::make_unique<Slot>();
    slot->spec = &o;
    std::string names = o.shorthand.empty() ? std::string(o.name) : fmt::format("{},{}", o.shorthand, o.name);
    if (o.value.empty()) {
      slot->option = app->add_flag(names, slot->count);
    } else {
      slot->option = app->add_option(names, slot->values)
                         ->expected(o.value_optional ? 0 : 1, 1)
                         ->allow_extra_args(false)
                         ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    level->slots.push_back(std::move(slot));
  }
  for (const CommandSpec& child : spec.children) {
    level->children.push_back(build(child, app->add_subcommand(std::string(child.name))));
  }
  return level;
}

void collect(const Level& level, Invocation* out) {
  for (const auto& slot : level.slots) {
    if (slot->option->count() == 0) continue;
    std::string value = slot->values.empty() ? "" : slot->values.back();
    out->values[std::string(slot->spec->name)] = value == kNoValue ? "" : value;
  }
  for (const auto& child : level.children) {
    if (!child->app->parsed()) continue;
    out->path.emplace_back(child->spec->name);
    out->command = child->spec;
    collect(*child, out);
  }
}

std::string full_name(const Invocation& line) {
  std::string name = "vram";
  for (const std::string& word : line.path) name += " " + word;
  return name;
}

std::unexpected<Error> unknown_option(const Invocation& line, const std::string& word) {
  std::vector<std::string_view> names;
  for (const OptionSpec& o : command_tree().options) names.push_back(o.name);
  if (line.command != nullptr) {
    for (const OptionSpec& o : line.command->options) names.push_back(o.name);
  }
  std::string typed = word.substr(0, word.find('='));
  std::string_view meant = nearest(typed, names);
  return fail(
      ErrorCode::kBadUsage,
      fmt::format("`{}` has no option {}.{} `{} --help` lists what it takes.", full_name(line), printable(typed),
                  meant.empty() ? "" : fmt::format(" Did you mean {}?", meant), full_name(line)));
}

std::unexpected<Error> unknown_command(const Invocation& line, const std::string& word) {
  const CommandSpec& parent = line.command == nullptr ? command_tree() : *line.command;
  std::vector<std::string_view> names;
  std::string list;
  for (const CommandSpec& child : parent.children) {
    if (child.hidden) continue;
    names.push_back(child.name);
    list += (list.empty() ? "" : ", ") + std::string(child.name);
  }
  std::string_view meant = nearest(word, names);
  return fail(ErrorCode::kBadUsage,
              fmt::format("`{}` has no command '{}'.{} There are: {}.", full_name(line), printable(word),
                          meant.empty() ? "" : fmt::format(" Did you mean '{}'?", meant), list));
}

// Words that are no option: arguments of the command, or mistakes.
Result<void> place_extras(std::vector<std::string> extras, bool dashes, Invocation* line) {
  auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
  if (line->name() == "run" && !dashes) {  // the command's own options are told apart below
    std::vector<std::string> words;
    std::copy_if(extras.begin(), extras.end(), std::back_inserter(words), std::not_fn(is_option));
    std::copy_if(extras.begin(), extras.end(), std::back_inserter(words), is_option);
    extras = std::move(words);
  }
  for (const std::string& word : extras) {
    if (is_option(word) && !line->arguments.empty() && line->name() == "run") {
      return fail(
          ErrorCode::kBadUsage,
          fmt::format("{} may belong to `vram run` or to '{}': write -- before the command, as in "
                      "`vram run --memory 6Gi -- {} {}`.",
                      printable(word), printable(line->arguments[0]), printable(line->arguments[0]), printable(word)));
    }
    if (is_option(word)) return unknown_option(*line, word);
    if (line->command == nullptr || !line->command->children.empty()) return unknown_command(*line, word);
    if (line->command->argument.empty() || (dashes && line->name() == "run")) {
      return fail(ErrorCode::kBadUsage, fmt::format("`{}` takes no argument '{}'. `{} --help` lists what it takes.",
                                                    full_name(*line), printable(word), full_name(*line)));
    }
    line->arguments.push_back(word);
  }
  return {};
}

Result<void> check_format(const Invocation& line) {
  std::optional<std::string> format = line.value("--output");
  if (!format || *format == "json" || *format == "yaml" || *format == "wide") return {};
  return fail(ErrorCode::kBadUsage, fmt::format("'{}' is no output format: json, yaml or wide.", printable(*format)));
}

// Writes an option whose value may be missing as one word with its value, or with a mark that there is none.
std::vector<std::string> join_optional(auto begin, auto end) {
  std::vector<std::string> out;
  for (auto word = begin; word != end; ++word) {
    bool optional = std::any_of(command_tree().options.begin(), command_tree().options.end(),
                                [&](const OptionSpec& o) { return o.value_optional && o.name == *word; });
    out.push_back(*word);
    if (!optional) continue;
    bool value = word + 1 != end && looks_like_gpus(*(word + 1));
    out.back() += "=" + (value ? *(word + 1) : std::string(kNoValue));
    if (value) ++word;
  }
  return out;
}

// The value-taking option that ended the line, or nothing.
std::string option_without_value(const std::vector<std::string>& words) {
  if (words.empty()) return "";
  const std::string& last = words.back();
  return last.starts_with("-") ? last : "";
}

}  // namespace

std::optional<std::string> Invocation::value(std::string_view option) const {
  auto found = values.find(option);
  if (found == values.end()) return std::nullopt;
  return found->second;
}

Format Invocation::format() const {
  std::string text = value("--output").value_or("");
  return text == "json"   ? Format::kJson
         : text == "yaml" ? Format::kYaml
         : text == "wide" ? Format::kWide
                          : Format::kTable;
}

bool looks_like_gpus(std::string_view text) {
  if (text.empty() || text.size() > 400) return false;
  while (true) {
    std::string_view item = text.substr(0, text.find(','));
    auto has = [&](auto test) { return std::any_of(item.begin(), item.end(), test); };
    auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    auto digit = [](char c) { return c >= '0' && c <= '9'; };
    auto other = [&](char c) { return !letter(c) && !digit(c) && c != '-' && c != '_' && c != ' '; };
    bool sound = has(letter) && has(digit) && !has(other) && item.front() != '-';
    if (!sound) return false;
    if (item.size() == text.size()) return true;
    text.remove_prefix(item.size() + 1);
  }
}

Result<Invocation> parse(const std::vector<std::string>& words) {
  auto dashes = std::find(words.begin(), words.end(), "--");
  std::vector<std::string> ours = join_optional(words.begin(), dashes);
  CLI::App app("vram", "vram");
  std::unique_ptr<Level> root = build(command_tree(), &app);
  std::vector<std::string> reversed(ours.rbegin(), ours.rend());
  Invocation line;
  try {
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch&) {
    std::string option = option_without_value(ours);
    return fail(ErrorCode::kBadUsage,
                option.empty()
                    ? "An option has no value, or one that it does not take. `vram COMMAND --help` lists the options."
                    : fmt::format("{} needs a value. `vram COMMAND --help` lists the options.", printable(option)));
  } catch (const CLI::Error& error) {
    return fail(ErrorCode::kBadUsage, fmt::format("The command line does not fit: {}.", printable(error.what())));
  }
  collect(*root, &line);
  if (Result<void> placed = place_extras(app.remaining(true), dashes != words.end(), &line); !placed) {
    return std::unexpected(placed.error());
  }
  if (Result<void> checked = check_format(line); !checked) return std::unexpected(checked.error());
  if (dashes != words.end()) {
    if (line.name() != "run" && !line.name().empty()) {
      return fail(ErrorCode::kBadUsage, fmt::format("`{}` runs no command: -- has no place here.", full_name(line)));
    }
    line.arguments.insert(line.arguments.end(), dashes + 1, words.end());
  }
  return line;
}

Format format_hint(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string& w = words[i];
    if (w == "-ojson" || w == "--output=json" || w == "-o=json") return Format::kJson;
    if ((w == "-o" || w == "--output") && i + 1 < words.size() && words[i + 1] == "json") return Format::kJson;
  }
  return Format::kTable;
}

}  // namespace kvram::cli
