#include <fmt/format.h>

#include "cli/generate.h"

namespace kvram::cli {
namespace {

// What the scripts offer: a fixed list of words, or what `vram __complete KIND` prints.
std::string_view words_of(Offer offer) {
  switch (offer) {
    case Offer::kFormat:
      return "json yaml wide";
    case Offer::kShell:
      return "bash zsh fish";
    case Offer::kSignal:
      return "TERM KILL INT HUP QUIT USR1 USR2 STOP CONT";
    case Offer::kGpuCount:
      return "1 2 4 8";
    case Offer::kSim:
      return "1xA10 2xA10 1xT4 1xL4 1xA100-80GB 1xH100-80GB";
    default:
      return "";
  }
}
std::string_view kind_of(Offer offer) {
  switch (offer) {
    case Offer::kBudget:
      return "budgets";
    case Offer::kOom:
      return "ooms";
    case Offer::kErrorCode:
      return "codes";
    default:
      return "";
  }
}

std::string names_of(const CommandSpec& c) {
  std::string out;
  for (const OptionSpec& o : c.options) {
    out += fmt::format("{} ", o.name);
    if (!o.shorthand.empty()) out += fmt::format("{} ", o.shorthand);
  }
  return out;
}

std::string children_of(const CommandSpec& c) {
  std::string out;
  for (const CommandSpec& child : c.children) {
    if (!child.hidden) out += fmt::format("{} ", child.name);
  }
  if (!out.empty()) out.pop_back();
  return out;
}

// Options that take a value, as a case pattern: --memory|-m.
std::string value_pattern(const CommandSpec& c, bool with_optional) {
  std::string out;
  for (const OptionSpec& o : c.options) {
    if (o.value.empty() || (o.value_optional && !with_optional)) continue;
    out += fmt::format("{}{}", out.empty() ? "" : "|", o.name);
    if (!o.shorthand.empty()) out += fmt::format("|{}", o.shorthand);
  }
  return out;
}

std::string all_value_patterns() {
  std::string out;
  for (const CommandPath& path : all_commands()) {
    std::string pattern = value_pattern(*path.back(), false);
    if (!pattern.empty()) out += (out.empty() ? "" : "|") + pattern;
  }
  return out;
}

std::string bash_offer(Offer offer) {
  if (!words_of(offer).empty()) return fmt::format("words=\"{}\"", words_of(offer));
  if (!kind_of(offer).empty()) return fmt::format("words=$(\"$program\" __complete {} 2>/dev/null)", kind_of(offer));
  return ":";
}

// The cases for the value of the option before the cursor.
std::string bash_values() {
  std::string out;
  for (const CommandPath& path : all_commands()) {
    for (const OptionSpec& o : path.back()->options) {
      if (o.value.empty()) continue;
      std::string command = joined(path, " ");
      std::string scope = path.size() == 1 ? "*" : fmt::format("\"{}\"", command.substr(5));
      std::string names = fmt::format("{}:{}", scope, o.name);
      if (!o.shorthand.empty()) names += fmt::format("|{}:{}", scope, o.shorthand);
      std::string finish = o.value_optional ? "" : "; finish=1";
      out += fmt::format("    {}) {}{} ;;\n", names, bash_offer(o.offer), finish);
    }
  }
  return out;
}

std::string bash_commands() {
  std::string globals = names_of(command_tree());
  std::string out;
  for (const CommandPath& path : all_commands()) {
    const CommandSpec& c = *path.back();
    std::string command = path.size() == 1 ? "" : joined(path, " ").substr(5);
    std::string own = path.size() == 1 ? "" : names_of(c);
    out += fmt::format("    \"{}\")\n      if [[ $cur == -* ]]; then words=\"{}{}\"", command, own, globals);
    std::string children = children_of(c);
    if (!children.empty()) {
      out += fmt::format("; else words=\"{}\"", children);
    } else if (c.argument_offer != Offer::kNothing) {
      out += fmt::format("; else {}", bash_offer(c.argument_offer));
    }
    out += "; fi ;;\n";
  }
  return out;
}

std::string tree_pattern() {
  std::string out;
  for (const CommandPath& path : all_commands()) {
    if (path.size() > 1) out += fmt::format("{}\"{}\"", out.empty() ? "" : "|", joined(path, " ").substr(5));
  }
  return out;
}

std::string bash_script() {
  return fmt::format(R"script(# bash completion for vram, made by `vram completion bash`
_vram() {{
  local program=${{COMP_WORDS[0]}} cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local command="" words="" finish="" word i try
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    case $word in
      --)
        if [[ $command == run ]]; then
          if ((COMP_CWORD == i + 1)); then mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur"); else mapfile -t COMPREPLY < <(compgen -f -- "$cur"); fi
        fi
        return ;;
      {0}) ((i++)) ;;
      -*) ;;
      *)
        try="${{command:+$command }}$word"
        case $try in {1}) command=$try ;; esac ;;
    esac
  done
  case $command:$prev in
{2}  esac
  if [[ -z $finish ]] && {{ [[ -z $words ]] || [[ $cur == -* ]]; }}; then
    case $command in
{3}    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}
complete -F _vram vram
)script",
                     all_value_patterns(), tree_pattern(), bash_values(), bash_commands());
}

// Single quotes, and what zsh and fish would read inside.
std::string quoted(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out;
}
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : quoted(text)) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_offer(Offer offer) {
  if (!words_of(offer).empty()) return fmt::format("({})", words_of(offer));
  if (!kind_of(offer).empty()) return fmt::format("_vram_{}", kind_of(offer));
  return offer == Offer::kFolder ? "_files -/" : " ";
}

std::string zsh_options(const CommandSpec& c) {
  std::string out;
  for (const OptionSpec& o : c.options) {
    std::string value =
        o.value.empty() ? "" : fmt::format("{}{}:{}", o.value_optional ? "::" : ":", o.value, zsh_offer(o.offer));
    for (std::string_view name : {o.shorthand, o.name}) {
      if (!name.empty()) out += fmt::format("      '{}[{}]{}' \\\n", name, zsh_text(o.help), value);
    }
  }
  return out;
}

std::string zsh_case(const CommandSpec& c, const std::string& below) {
  std::string options = zsh_options(c);
  for (const CommandSpec& child : c.children) options += zsh_options(child);
  std::string rest;
  if (c.argument_offer == Offer::kCommand) {
    rest = "'*::command:_normal'";
  } else if (!c.children.empty()) {
    rest = fmt::format("'1:command:({})'", children_of(c));
  } else if (c.argument_offer != Offer::kNothing) {
    rest = fmt::format("'1:argument:{}'", zsh_offer(c.argument_offer));
  }
  return fmt::format("    {})\n      _arguments -s \\\n{}{}      {} ;;\n", below, options, zsh_options(command_tree()),
                     rest.empty() ? "'*: :'" : rest);
}

std::string zsh_script() {
  std::string cases;
  std::string list;
  for (const CommandSpec& c : command_tree().children) {
    if (c.hidden) continue;
    cases += zsh_case(c, std::string(c.name));
    list += fmt::format("    '{}:{}'\n", c.name, zsh_text(c.summary));
  }
  return fmt::format(R"script(#compdef vram
# zsh completion for vram, made by `vram completion zsh`
_vram_budgets() {{ compadd -- ${{(f)"$(vram __complete budgets 2>/dev/null)"}} }}
_vram_ooms() {{ compadd -- ${{(f)"$(vram __complete ooms 2>/dev/null)"}} }}
_vram_codes() {{ compadd -- ${{(f)"$(vram __complete codes 2>/dev/null)"}} }}
_vram() {{
  local state line
  local -a commands
  commands=(
{}  )
  _arguments -C \
{}    '1:command:->command' \
    '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
{}      esac ;;
  esac
}}
if [ "$funcstack[1]" = "_vram" ]; then _vram "$@"; else compdef _vram vram; fi
)script",
                     list, zsh_options(command_tree()), cases);
}

std::string fish_offer(Offer offer) {
  if (!words_of(offer).empty()) return fmt::format(" -xa '{}'", words_of(offer));
  if (!kind_of(offer).empty()) return fmt::format(" -xa '(vram __complete {} 2>/dev/null)'", kind_of(offer));
  return " -x";
}

void fish_options(const CommandSpec& c, const std::string& condition, std::string* out) {
  for (const OptionSpec& o : c.options) {
    std::string line = "complete -c vram" + condition + fmt::format(" -l {}", o.name.substr(2));
    if (!o.shorthand.empty()) line += fmt::format(" -s {}", o.shorthand.substr(1));
    if (!o.value.empty()) line += o.value_optional ? fmt::format(" -a '{}'", words_of(o.offer)) : fish_offer(o.offer);
    *out += line + fmt::format(" -d '{}'\n", quoted(o.help));
  }
}

std::string fish_script() {
  std::string out = "# fish completion for vram, made by `vram completion fish`\ncomplete -c vram -f\n";
  fish_options(command_tree(), "", &out);
  for (const CommandSpec& c : command_tree().children) {
    if (c.hidden) continue;
    out += fmt::format("complete -c vram -n __fish_use_subcommand -a {} -d '{}'\n", c.name, quoted(c.summary));
    std::string inside = fmt::format(" -n '__fish_seen_subcommand_from {}'", c.name);
    fish_options(c, inside, &out);
    if (c.argument_offer == Offer::kCommand) {
      out += fmt::format("complete -c vram{} -xa '(__fish_complete_subcommand --fcs-skip=2)'\n", inside);
    } else if (c.argument_offer != Offer::kNothing) {
      out += fmt::format("complete -c vram{}{}\n", inside, fish_offer(c.argument_offer));
    }
    for (const CommandSpec& child : c.children) {
      out += fmt::format("complete -c vram{} -a {} -d '{}'\n", inside, child.name, quoted(child.summary));
      fish_options(child, inside, &out);
    }
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  return shell == "fish" ? fish_script() : "";
}

}  // namespace kvram::cli
