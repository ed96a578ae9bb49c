#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "cli/bar.h"
#include "cli/show.h"
#include "cli/table.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kCells = 60;

Bytes bytes_at(const json::object& o, std::string_view key) { return Bytes(int_at(o, key)); }

std::string time_text(double when) {
  auto seconds = static_cast<time_t>(when);
  struct tm t = {};
  char text[32] = "";
  if (gmtime_r(&seconds, &t) != nullptr) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
  return text;
}

std::string legend(const std::vector<Segment>& segments) {
  std::string out;
  size_t width = 0;
  for (const Segment& s : segments) width = std::max(width, format_human(s.bytes).size());
  for (const Segment& s : segments) {
    out += shorten(fmt::format("  {} {}  {}", s.mark, pad_left(format_human(s.bytes), width), printable(s.label)),
                   kColumns) +
           "\n";
  }
  return out;
}

std::string fact(std::string_view name, const std::string& text) {
  return fmt::format("{}{}\n", pad_right(name, 12), printable(text));
}

std::string facts(const json::object& oom, const ShowOptions& options) {
  double when = double_at(oom, "time");
  std::string out = fact(
      "refusal", fmt::format("{}, {} ({} ago){}", int_at(oom, "id"), time_text(when), format_age(options.now - when),
                             text_at(oom, "kind") == "physical" ? ", by the driver itself" : ""));
  std::string command = text_at(oom, "command");
  out += fact("budget", fmt::format("{}{}{}", int_at(oom, "budget"), command.empty() ? "" : ": ", command));
  out += fact("process", fmt::format("pid {} {}", int_at(oom, "pid"), text_at(oom, "process")));
  out += fact("asked", fmt::format("{} ({} bytes) by {} on GPU {}", format_human(bytes_at(oom, "asked")),
                                   int_at(oom, "asked"), text_at(oom, "call"), int_at(oom, "gpu")));
  out += fact("limit", fmt::format("{}, of it charged {}, left {}", format_human(bytes_at(oom, "limit")),
                                   format_human(bytes_at(oom, "charged") + bytes_at(oom, "hidden")),
                                   format_human(bytes_at(oom, "free_in_budget"))));
  out += fact("would fit",
              fmt::format("{} ({} bytes)", format_human(bytes_at(oom, "would_fit")), int_at(oom, "would_fit")));
  return out;
}

std::string drawing(const std::string& title, const std::vector<Segment>& segments, Bytes whole) {
  return fmt::format("\n{}\n[{}]\n{}", title, draw_bar(segments, whole, kCells, false), legend(segments));
}

std::string budget_drawing(const json::object& oom) {
  std::vector<Segment> segments;
  Bytes charged;
  for (const json::value& v : array_at(oom, "processes")) {
    if (!v.is_object()) continue;
    const json::object& p = v.get_object();
    Bytes held = bytes_at(p, "charged");
    charged += held;
    segments.push_back({letter_of(segments.size()), held, held,
                        fmt::format("pid {} {}{}", int_at(p, "pid"), text_at(p, "name"),
                                    int_at(p, "pid") == int_at(oom, "pid") ? " (asked)" : "")});
  }
  Bytes hidden = bytes_at(oom, "hidden");
  Bytes limit = bytes_at(oom, "limit");
  if (hidden > Bytes(0))
    segments.push_back({'%', hidden, hidden, "no call announced it (seen by the driver's account)"});
  Bytes left = limit - charged - hidden;
  if (left > Bytes(0)) segments.push_back({'.', left, left, "left"});
  return drawing(fmt::format("Budget {}: {} on GPU {}", int_at(oom, "budget"), format_human(limit), int_at(oom, "gpu")),
                 segments, limit);
}

std::string gpu_drawing(const json::object& oom) {
  const json::object& gpu = object_at(oom, "gpu_state");
  if (gpu.empty()) return "";
  GpuView view;
  view.total = bytes_at(gpu, "total");
  view.reserved = bytes_at(gpu, "reserved");
  view.foreign = bytes_at(gpu, "foreign");
  view.free = bytes_at(gpu, "free");
  Snapshot s;
  for (const json::value& v : array_at(gpu, "budgets")) {
    if (!v.is_object()) continue;
    const json::object& o = v.get_object();
    BudgetView b;
    b.id = int_at(o, "budget");
    Share share;
    share.limit = bytes_at(o, "limit");
    share.charged = bytes_at(o, "charged");
    b.command = b.id == int_at(oom, "budget") ? "this one" : "";
    b.gpus.push_back(share);
    s.budgets.push_back(std::move(b));
  }
  return drawing(fmt::format("GPU {}: {}", int_at(oom, "gpu"), format_human(view.total)), gpu_segments(s, view),
                 view.total);
}

}  // namespace

std::string show_ooms(const json::object& reply, const ShowOptions& options) {
  std::string out = bool_at(reply, "simulated") ? "simulated GPUs\n" : "";
  const json::array& ooms = array_at(reply, "ooms");
  int64_t overcome = int_at(object_at(reply, "counted"), "overcome");
  if (ooms.empty()) {
    out += "No refusals. One is recorded here when a program asks for more than its budget has left.\n";
  } else {
    std::vector<Column> columns = {{"ID", Align::kRight},
                                   {"AGE", Align::kRight},
                                   {"BUDGET", Align::kRight},
                                   {"PID", Align::kRight},
                                   {"PROCESS"},
                                   {"ASKED", Align::kRight},
                                   {"LIMIT", Align::kRight},
                                   {"LEFT", Align::kRight},
                                   {"KIND"}};
    if (options.wide) columns.insert(columns.end(), {{"CALL"}, {"GPU", Align::kRight}, {"TIME"}, {"COMMAND"}});
    Table table(std::move(columns));
    for (const json::value& v : ooms) {
      if (!v.is_object()) continue;
      const json::object& o = v.get_object();
      std::vector<std::string> row = {fmt::format("{}", int_at(o, "id")),
                                      format_age(options.now - double_at(o, "time")),
                                      fmt::format("{}", int_at(o, "budget")),
                                      fmt::format("{}", int_at(o, "pid")),
                                      text_at(o, "process"),
                                      format_human(bytes_at(o, "asked")),
                                      format_human(bytes_at(o, "limit")),
                                      format_human(bytes_at(o, "free_in_budget")),
                                      text_at(o, "kind")};
      if (options.wide) {
        row.insert(row.end(), {text_at(o, "call"), fmt::format("{}", int_at(o, "gpu")), time_text(double_at(o, "time")),
                               text_at(o, "command")});
      }
      table.add(std::move(row));
    }
    out += table.text() + "`vram oom ID` shows who held what at that moment.\n";
  }
  if (overcome > 0) {
    out += fmt::format("{} more {} overcome by a retry of the same program: counted, not listed.\n", overcome,
                       overcome == 1 ? "was" : "were");
  }
  return out;
}

std::string show_oom(const json::object& reply, const ShowOptions& options) {
  const json::object& oom = object_at(reply, "oom");
  std::string out = bool_at(reply, "simulated") || bool_at(oom, "simulated") ? "simulated GPUs\n" : "";
  std::string sentence = printable(text_at(oom, "sentence"));
  for (const std::string& line : wrap(sentence, kColumns)) out += line + "\n";
  out += "\n" + facts(oom, options) + budget_drawing(oom) + gpu_drawing(oom);
  return out;
}

}  // namespace kvram::cli
