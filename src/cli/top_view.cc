#include "cli/top_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/bar.h"
#include "cli/show.h"
#include "cli/table.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

std::string clip(const std::string& text, const TopOptions& options) {
  return shorten(printable(text), options.columns);
}

std::string title(const Snapshot& s, const TopOptions& options) {
  std::string text = "kube-vram";
  if (s.simulated) text += "  simulated GPUs";
  if (!s.driver_version.empty()) text += fmt::format("  driver {}", s.driver_version);
  text += fmt::format("  budgets {}", s.budgets.size());
  if (!s.waiting.empty()) text += fmt::format("  waiting {}", s.waiting.size());
  constexpr std::string_view kHint = "q quits";
  bool room = options.rows > 0 && display_width(text) + kHint.size() + 2 <= options.columns;
  return room ? pad_right(clip(text, options), options.columns - kHint.size()) + std::string(kHint)
              : clip(text, options);
}

// "# 450Mi reserve  A 6Gi  . 10Gi free", as much as fits; marks in their colours.
std::string legend(const std::vector<Segment>& segments, const TopOptions& options) {
  std::string out;
  size_t used = 0;
  for (const Segment& seg : segments) {
    std::string_view word = seg.mark == '#'   ? " reserve"
                            : seg.mark == '%' ? " foreign"
                            : seg.mark == '.' ? " free"
                                              : "";
    std::string amount = format_human(seg.bytes);
    if (!word.empty() || seg.used == seg.bytes) {
      amount += word;
    } else {
      amount = fmt::format("{}/{}", format_human(seg.used), amount);
    }
    size_t width = 2 + display_width(amount) + (used > 0 ? 2 : 1);
    if (used + width > options.columns) break;
    out += (used > 0 ? "  " : " ") + draw_mark(seg.mark, options.colour) + " " + amount;
    used += width;
  }
  return out;
}

void add_gpu(const Snapshot& s, const GpuView& gpu, bool roomy, const TopOptions& options,
             std::vector<std::string>* lines) {
  std::vector<Segment> segments = gpu_segments(s, gpu);
  if (!roomy) {
    std::string head = fmt::format("{:>2} ", gpu.index);
    std::string tail = fmt::format(" {} free", format_human(gpu.free));
    size_t taken = head.size() + tail.size() + 2;
    size_t cells = options.columns > taken + 4 ? options.columns - taken : 0;
    lines->push_back(cells == 0 ? clip(head + tail, options)
                                : head + "[" + draw_bar(segments, gpu.total, cells, options.colour) + "]" + tail);
    return;
  }
  lines->push_back(clip(fmt::format("GPU {}  {}  {}  resident {}  free {}{}", gpu.index, gpu.name,
                                    format_human(gpu.total), format_human(gpu.resident), format_human(gpu.free),
                                    gpu.health.empty() || gpu.health == "ok" ? "" : "  " + gpu.health),
                        options));
  size_t cells = options.columns > 2 ? options.columns - 2 : 0;
  lines->push_back(cells == 0 ? "" : "[" + draw_bar(segments, gpu.total, cells, options.colour) + "]");
  lines->push_back(legend(segments, options));
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The command without the folder of its program: what tells two of them apart stands further right.
std::string short_command(const std::string& command) {
  size_t word = std::min(command.find(' '), command.size());
  size_t slash = word == 0 ? std::string::npos : command.rfind('/', word - 1);
  return slash == std::string::npos || slash + 1 == word ? command : command.substr(slash + 1);
}

std::vector<std::string> budget_cells(const BudgetView& b, bool narrow) {
  auto sum = [&](Bytes Share::* member) { return format_human(total(b.gpus, member)); };
  std::string command = b.command.empty() ? "-" : short_command(b.command);
  if (b.over) command = "OVER ITS BUDGET: " + command;
  if (narrow) return {fmt::format("{}", b.id), sum(&Share::limit), sum(&Share::charged), command};
  return {fmt::format("{}", b.id),
          "",
          b.user,
          gpu_list(b.gpus),
          sum(&Share::limit),
          sum(&Share::charged),
          sum(&Share::resident),
          sum(&Share::peak),
          fmt::format("{}", b.refused),
          command};
}

std::vector<std::string> process_cells(const ProcessView& p, bool narrow) {
  auto sum = [&](Bytes Share::* member) { return format_human(total(p.gpus, member)); };
  if (narrow) return {"", "", sum(&Share::charged), fmt::format("{} {}", p.pid, p.name)};
  return {
      "",    fmt::format("{}", p.pid), "", gpu_list(p.gpus), "", sum(&Share::charged), sum(&Share::resident), "", "",
      p.name};
}

void add_budgets(const Snapshot& s, const TopOptions& options, std::vector<std::string>* lines) {
  if (s.budgets.empty()) {
    lines->push_back(clip("No budgets. Start one: vram run --memory 6Gi -- COMMAND", options));
    return;
  }
  bool narrow = options.columns < 72;
  Table table(narrow ? std::vector<Column>{{"BUDGET", Align::kRight},
                                           {"ASKED", Align::kRight},
                                           {"CHARGED", Align::kRight},
                                           {"COMMAND"}}
                     : std::vector<Column>{{"BUDGET", Align::kRight},
                                           {"PID", Align::kRight},
                                           {"USER"},
                                           {"GPU"},
                                           {"ASKED", Align::kRight},
                                           {"CHARGED", Align::kRight},
                                           {"RESIDENT", Align::kRight},
                                           {"PEAK", Align::kRight},
                                           {"REFUSED", Align::kRight},
                                           {"COMMAND"}});
  std::vector<char> marks = {' '};
  for (size_t n = 0; n < s.budgets.size(); ++n) {
    table.add(budget_cells(s.budgets[n], narrow));
    marks.push_back(letter_of(n));
    for (const ProcessView& p : s.budgets[n].processes) {
      table.add(process_cells(p, narrow));
      marks.push_back(' ');
    }
  }
  if (options.columns < 4) return;  // no room for a mark and a word
  std::vector<std::string> rows = split_lines(table.text(options.columns - 2));
  for (size_t i = 0; i < rows.size(); ++i) {
    lines->push_back((marks[i] == ' ' ? " " : draw_mark(marks[i], options.colour)) + " " + rows[i]);
  }
}

}  // namespace

std::vector<std::string> top_screen(const Snapshot& s, const TopOptions& options) {
  std::vector<std::string> lines = {title(s, options)};
  bool roomy = options.rows == 0 || s.gpus.size() * 3 + 8 <= options.rows;
  for (const GpuView& gpu : s.gpus) add_gpu(s, gpu, roomy, options, &lines);
  if (s.gpus.empty()) lines.push_back(clip("No GPUs.", options));
  lines.emplace_back();
  add_budgets(s, options, &lines);
  for (const WaitingView& w : s.waiting) {
    lines.push_back(clip(fmt::format("waiting {}: {} asks for {} (pid {}) {}", w.position, w.user,
                                     format_human(w.asked), w.pid, short_command(w.command)),
                         options));
  }
  bool notice = !options.notice.empty() && options.rows != 1;
  size_t room = options.rows == 0 ? lines.size() : options.rows - (notice ? 1 : 0);
  if (room == 1) lines.resize(1);
  if (lines.size() > room) {
    size_t hidden = lines.size() - room + 1;
    lines.resize(room - 1);
    lines.push_back(clip(fmt::format("... {} more lines: a taller window or `vram ps` shows them", hidden), options));
  }
  if (notice) lines.push_back(clip(options.notice, options));
  return lines;
}

}  // namespace kvram::cli
