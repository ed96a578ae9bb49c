#include <fmt/format.h>

#include "cli/show.h"
#include "cli/table.h"
#include "cli/text.h"

namespace kvram::cli {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

void add_budget_rows(const BudgetView& b, const ShowOptions& options, Table* table) {
  std::vector<std::string> row = {fmt::format("{}", b.id),
                                  "-",
                                  or_dash(b.user),
                                  gpu_list(b.gpus),
                                  format_human(total(b.gpus, &Share::limit)),
                                  format_human(total(b.gpus, &Share::charged)),
                                  format_human(total(b.gpus, &Share::resident)),
                                  format_human(total(b.gpus, &Share::peak)),
                                  fmt::format("{}", b.refused),
                                  or_dash(b.guarantee)};
  if (options.wide) {
    row.insert(row.end(), {or_dash(b.mode), b.strict ? "yes" : "no", fmt::format("{}", b.overcome),
                           format_human(total(b.gpus, &Share::hidden)), format_age(options.now - b.created)});
  }
  row.push_back(or_dash(b.command));
  table->add(std::move(row));
  for (const ProcessView& p : b.processes) {
    std::vector<std::string> line = {"",
                                     fmt::format("{}", p.pid),
                                     "",
                                     gpu_list(p.gpus),
                                     "",
                                     format_human(total(p.gpus, &Share::charged)),
                                     format_human(total(p.gpus, &Share::resident)),
                                     "",
                                     "",
                                     ""};
    if (options.wide) line.resize(line.size() + 5);
    line.push_back(or_dash(p.name));
    table->add(std::move(line));
  }
}

// How a budget is guarded, where that is not the usual way or the reader asked for all of it.
std::string guard_note(const BudgetView& b, bool wide) {
  bool usual = b.guarantee.empty() || b.guarantee == "cooperative";
  if (b.mode.empty() || (usual && !wide)) return "";
  return fmt::format("budget {}: mode {}{}; past the guard: {}\n", b.id, printable(b.mode),
                     b.why.empty() ? "" : " (" + printable(b.why) + ")", slips_past(b.mode));
}

std::string budget_notes(const Snapshot& s, bool wide) {
  std::string out;
  for (const BudgetView& b : s.budgets) {
    out += guard_note(b, wide);
    if (b.over) {
      out += fmt::format("budget {} holds more than it asked for: {} of {} resident{}\n", b.id,
                         format_human(total(b.gpus, &Share::resident)), format_human(total(b.gpus, &Share::limit)),
                         b.strict ? "; --strict will end it" : "");
    }
  }
  return out;
}

std::string waiting_table(const Snapshot& s, const ShowOptions& options) {
  if (s.waiting.empty()) return "";
  Table table({{"WAITING", Align::kRight},
               {"PID", Align::kRight},
               {"USER"},
               {"ASKED", Align::kRight},
               {"SINCE", Align::kRight},
               {"COMMAND"}});
  for (const WaitingView& w : s.waiting) {
    table.add({fmt::format("{}", w.position), fmt::format("{}", w.pid), or_dash(w.user), format_human(w.asked),
               format_age(options.now - w.since), or_dash(w.command)});
  }
  return "\n" + table.text();
}

std::string foreign_processes(const GpuView& g) {
  std::string out;
  for (const ForeignProcess& p : g.foreign_processes) {
    if (!out.empty()) out += ", ";
    out += fmt::format("pid {}", p.pid);
    if (!p.name.empty()) out += fmt::format(" {}", p.name);
    out += fmt::format(" {}", format_human(p.bytes));
  }
  return out.empty() ? "-" : out;
}

}  // namespace

std::string_view slips_past(std::string_view mode) {
  return mode == "namespace" ? "a driver of the program's own, static programs, a mount undone on purpose"
                             : "the driver opened by absolute path, an rpath, setuid programs";
}

std::string simulated_line(const Snapshot& s) {
  if (!s.simulated) return "";
  return s.driver_version.empty() ? "simulated GPUs\n"
                                  : fmt::format("simulated GPUs, driver {}\n", printable(s.driver_version));
}

std::string gpu_list(const std::vector<Share>& shares) {
  std::string out;
  for (const Share& share : shares) out += fmt::format("{}{}", out.empty() ? "" : ",", share.index);
  return out.empty() ? "-" : out;
}

std::string show_budgets(const Snapshot& s, const ShowOptions& options) {
  std::string out = simulated_line(s);
  if (s.budgets.empty()) {
    out += "No budgets. Start one: vram run --memory 6Gi -- COMMAND\n";
  } else {
    std::vector<Column> columns = {{"BUDGET", Align::kRight},
                                   {"PID", Align::kRight},
                                   {"USER"},
                                   {"GPU"},
                                   {"ASKED", Align::kRight},
                                   {"CHARGED", Align::kRight},
                                   {"RESIDENT", Align::kRight},
                                   {"PEAK", Align::kRight},
                                   {"REFUSED", Align::kRight},
                                   {"GUARANTEE"}};
    if (options.wide) {
      columns.insert(
          columns.end(),
          {{"MODE"}, {"STRICT"}, {"OVERCOME", Align::kRight}, {"HIDDEN", Align::kRight}, {"AGE", Align::kRight}});
    }
    columns.push_back({"COMMAND"});
    Table table(std::move(columns));
    for (const BudgetView& b : s.budgets) add_budget_rows(b, options, &table);
    out += table.text() + budget_notes(s, options.wide);
  }
  return out + waiting_table(s, options);
}

std::string show_gpus(const Snapshot& s, const ShowOptions& options) {
  std::string out = simulated_line(s);
  if (s.gpus.empty()) return out + "No GPUs. `nvidia-smi` shows what the driver sees; --sim gives simulated ones.\n";
  std::vector<Column> columns = {{"GPU", Align::kRight},
                                 {"NAME"},
                                 {"TOTAL", Align::kRight},
                                 {"RESERVE", Align::kRight},
                                 {"FOREIGN", Align::kRight},
                                 {"ASSIGNED", Align::kRight},
                                 {"RESIDENT", Align::kRight},
                                 {"FREE", Align::kRight},
                                 {"HEALTH"}};
  if (options.wide) columns.push_back({"UUID"});
  columns.push_back({"FOREIGN-PROCESSES"});
  Table table(std::move(columns));
  for (const GpuView& g : s.gpus) {
    std::vector<std::string> row = {fmt::format("{}", g.index), or_dash(g.name),         format_human(g.total),
                                    format_human(g.reserved),   format_human(g.foreign), format_human(g.assigned),
                                    format_human(g.resident),   format_human(g.free),    or_dash(g.health)};
    if (options.wide) row.push_back(or_dash(g.uuid));
    row.push_back(foreign_processes(g));
    table.add(std::move(row));
  }
  return out + table.text();
}

}  // namespace kvram::cli
