#include "cli/actions.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <charconv>

#include "cli/daemon.h"
#include "cli/failure.h"
#include "cli/generate.h"
#include "cli/show.h"
#include "cli/table.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

ShowOptions show_options(const Invocation& line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return {line.format() == Format::kWide, static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9};
}

// JSON or YAML of the value, else the text.
int print(const Invocation& line, const json::value& value, const std::string& text) {
  Format format = line.format();
  write_all(STDOUT_FILENO, format == Format::kJson   ? pretty_json(value)
                           : format == Format::kYaml ? to_yaml(value)
                                                     : text);
  return 0;
}

Result<json::object> ask_once(const Invocation& line, const json::object& request, bool may_start) {
  Result<Machine> machine = machine_of(line);
  if (!machine) return std::unexpected(machine.error());
  Result<node::Client> client = may_start ? connect_or_start(*machine) : connect(*machine);
  if (!client) return std::unexpected(client.error());
  Result<json::object> reply = ask(*client, request);
  if (reply && machine->simulated && reply->if_contains("simulated") == nullptr) (*reply)["simulated"] = true;
  return reply;
}

Result<void> expect_arguments(const Invocation& line, size_t least, size_t most) {
  if (line.arguments.size() >= least && line.arguments.size() <= most) return {};
  return fail(ErrorCode::kBadUsage,
              fmt::format("`vram {}` takes {}; it got {} arguments. `vram {} --help` says more.", line.name(),
                          line.command->argument, line.arguments.size(), line.name()));
}

// The entries of `from` that are named, in that order.
json::object only(const json::object& from, std::initializer_list<std::string_view> keys) {
  json::object out;
  for (std::string_view key : keys) {
    if (const json::value* v = from.if_contains(key)) out[key] = *v;
  }
  return out;
}

std::string status_text(const json::object& s) {
  std::string out = bool_at(s, "simulated") ? "simulated GPUs\n" : "";
  auto row = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += pad_right(name, 13) + printable(value) + "\n";
  };
  const json::object& driver = object_at(s, "driver");
  row("pid", fmt::format("{}", int_at(s, "pid")));
  row("version", text_at(s, "version"));
  row("up", format_age(double_at(s, "uptime_s")));
  row("run folder", text_at(s, "run_dir"));
  row("state folder", text_at(s, "state_dir"));
  row("driver", driver.empty() ? text_at(s, "driver") : text_at(driver, "version"));
  row("GPUs", text_at(s, "sim"));
  row("budgets", fmt::format("{}", int_at(s, "budgets")));
  row("connections", fmt::format("{}", int_at(s, "connections")));
  if (s.if_contains("rss_bytes") != nullptr) row("memory", format_human(Bytes(int_at(s, "rss_bytes"))));
  for (const json::value& w : array_at(s, "warnings")) {
    if (w.is_string()) row("warning", std::string(w.get_string()));
  }
  return out;
}

}  // namespace

int list_command(const Invocation& line) {
  Result<json::object> list = ask_once(line, {{"op", "list"}}, true);
  if (!list) return report(list.error(), line.format());
  Snapshot snapshot = parse_snapshot(*list);
  if (line.name() == "gpus") {
    return print(line, only(*list, {"simulated", "driver", "gpus"}), show_gpus(snapshot, show_options(line)));
  }
  return print(line, only(*list, {"simulated", "budgets", "waiting"}), show_budgets(snapshot, show_options(line)));
}

int oom_command(const Invocation& line) {
  if (Result<void> fits = expect_arguments(line, 0, 1); !fits) return report(fits.error(), line.format());
  json::object request = {{"op", "oom"}};
  bool one = !line.arguments.empty();
  if (one && line.arguments[0] == "last") {
    request["id"] = "last";
  } else if (one) {
    Result<int64_t> id = parse_id(line.arguments[0], "a post-mortem (or `last`)");
    if (!id) return report(id.error(), line.format());
    request["id"] = *id;
  }
  Result<json::object> reply = ask_once(line, request, true);
  if (!reply) return report(reply.error(), line.format());
  return print(line, *reply, one ? show_oom(*reply, show_options(line)) : show_ooms(*reply, show_options(line)));
}

int kill_command(const Invocation& line) {
  if (Result<void> fits = expect_arguments(line, 1, 1); !fits) return report(fits.error(), line.format());
  Result<int64_t> id = parse_id(line.arguments[0], "a budget");
  if (!id) return report(id.error(), line.format());
  Result<int> signal = parse_signal(line.value("--signal").value_or("TERM"));
  if (!signal) return report(signal.error(), line.format());
  Result<json::object> reply = ask_once(line, {{"op", "kill"}, {"budget", *id}, {"signal", *signal}}, false);
  if (!reply) return report(reply.error(), line.format());
  std::string pids;
  for (const json::value& pid : array_at(*reply, "signalled")) {
    if (pid.is_int64() || pid.is_uint64())
      pids += fmt::format("{}{}", pids.empty() ? "" : ", ", pid.to_number<int64_t>());
  }
  return print(line, *reply,
               pids.empty() ? fmt::format("budget {}: no process was left\n", *id)
                            : fmt::format("budget {}: sent signal {} to pid {}\n", *id, *signal, pids));
}

int daemon_command(const Invocation& line) {
  if (line.path[1] == "status") {
    Result<json::object> status = ask_once(line, {{"op", "status"}}, false);
    return status ? print(line, *status, status_text(*status)) : report(status.error(), line.format());
  }
  Result<json::object> stopped = ask_once(line, {{"op", "stop"}, {"force", line.has("--force")}}, false);
  return stopped ? print(line, *stopped, "the daemon ends\n") : report(stopped.error(), line.format());
}

int explain_command(const Invocation& line) {
  if (Result<void> fits = expect_arguments(line, 1, 1); !fits) return report(fits.error(), line.format());
  std::optional<ErrorCode> code = parse_error_id(line.arguments[0]);
  if (!code) {
    return report(Error{ErrorCode::kUnknownCode,
                        fmt::format("There is no error {}. A code looks like VRAM-1001; docs/errors.md lists all.",
                                    printable(line.arguments[0]))},
                  line.format());
  }
  const ErrorInfo& info = error_info(*code);
  json::object o = {{"code", error_id(*code)},
                    {"title", json::string(info.title)},
                    {"exit_status", info.exit_status},
                    {"explanation", json::string(info.long_form)}};
  std::string text = fmt::format("{}: {} (exit status {})\n\n", error_id(*code), info.title, info.exit_status);
  for (const std::string& part : wrap(info.long_form, 80)) text += part + "\n";
  return print(line, o, text);
}

int completion_command(const Invocation& line) {
  if (Result<void> fits = expect_arguments(line, 1, 1); !fits) return report(fits.error(), line.format());
  std::string script = completion_script(line.arguments[0]);
  if (script.empty()) {
    return report(Error{ErrorCode::kBadUsage, fmt::format("There is no completion for '{}': bash, zsh or fish.",
                                                          printable(line.arguments[0]))},
                  line.format());
  }
  write_all(STDOUT_FILENO, script);
  return 0;
}

int complete_command(const Invocation& line) {
  std::string kind = line.arguments.empty() ? "" : line.arguments[0];
  std::string out;
  if (kind == "codes") {
    for (const ErrorInfo& info : error_table()) out += error_id(info.code) + "\n";
  }
  bool budgets = kind == "budgets";
  if (budgets || kind == "ooms") {
    if (kind == "ooms") out += "last\n";
    Result<json::object> reply = ask_once(line, {{"op", budgets ? "list" : "oom"}}, false);
    if (reply) {
      for (const json::value& v : array_at(*reply, budgets ? "budgets" : "ooms")) {
        if (v.is_object()) out += fmt::format("{}\n", int_at(v.get_object(), budgets ? "budget" : "id"));
      }
    }
  }
  write_all(STDOUT_FILENO, out);
  return 0;
}

int generate_command(const Invocation& line, const char* version) {
  if (Result<void> fits = expect_arguments(line, 2, 2); !fits) return report(fits.error(), line.format());
  Result<void> written = write_generated(line.arguments[0], line.arguments[1], version);
  return written ? 0 : report(written.error(), line.format());
}

Result<int> parse_signal(const std::string& text) {
  struct Named {
    std::string_view name;
    int number;
  };
  constexpr Named kNamed[] = {{"TERM", SIGTERM}, {"KILL", SIGKILL}, {"INT", SIGINT},
                              {"HUP", SIGHUP},   {"QUIT", SIGQUIT}, {"USR1", SIGUSR1},
                              {"USR2", SIGUSR2}, {"STOP", SIGSTOP}, {"CONT", SIGCONT}};
  std::string upper;
  for (char c : text) upper += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  std::string_view name = upper;
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (const Named& n : kNamed) {
    if (n.name == name) return n.number;
  }
  int number = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status == std::errc() && end == text.data() + text.size() && number >= 1 && number <= 64) return number;
  return fail(
      ErrorCode::kBadUsage,
      fmt::format("'{}' is no signal: TERM, KILL, INT, HUP, QUIT, USR1, USR2, STOP, CONT or a number from 1 to 64.",
                  printable(text)));
}

Result<int64_t> parse_id(const std::string& text, std::string_view what) {
  int64_t id = 0;
  const char* begin = text.data() + (text.starts_with("#") ? 1 : 0);
  auto [end, status] = std::from_chars(begin, text.data() + text.size(), id);
  if (status == std::errc() && end == text.data() + text.size() && id > 0) return id;
  return fail(ErrorCode::kBadId, fmt::format("'{}' is not the number of {}.", printable(text), what));
}

}  // namespace kvram::cli
