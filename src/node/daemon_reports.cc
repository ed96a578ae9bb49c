// Control requests that report or act on budgets: list, oom, kill, status, stop.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>

#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/process.h"

#ifndef KV_VERSION
#define KV_VERSION "unknown"
#endif

namespace kvram::node {
namespace {

namespace json = boost::json;

uint64_t resident_set_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void Daemon::on_control(Connection& c, uint64_t seq, std::string_view text) {
  boost::system::error_code bad;
  json::value value = json::parse(text, bad);
  const json::object* o = bad ? nullptr : value.if_object();
  if (o == nullptr) {
    return send_error(c, seq,
                      {ErrorCode::kProtocol,
                       "The request is no JSON object. Program and daemon may be of different "
                       "versions: run `vram daemon stop`, then try again."});
  }
  std::string op = json_text(*o, "op");
  std::string body(text);
  auto answer = [&](const Result<std::string>& reply) {
    if (reply) {
      send_json(c, seq, *reply);
    } else {
      send_error(c, seq, reply.error());
    }
  };
  if (op == "run") return on_run(c, seq, body);
  if (op == "started") return on_started(c, seq, body);
  if (op == "list") return answer(list_json(c.uid));
  if (op == "oom" && o->if_contains("id") == nullptr) return answer(oom_list_json(c.uid));
  if (op == "oom") return answer(oom_detail_json(body, c.uid));
  if (op == "kill") return answer(kill_json(body, c.uid));
  if (op == "status") return answer(status_json());
  if (op == "stop") {
    if (!may_see(c.uid, geteuid())) {
      return send_error(c, seq, {ErrorCode::kNoPermission, "Only root or the daemon's own user may stop it."});
    }
    size_t live = ledger_->budgets().size();
    if (live != 0 && !json_flag(*o, "force")) {
      return send_error(
          c, seq,
          {ErrorCode::kBudgetsLive,
           fmt::format("{} budget{} in use. They would outlive the daemon, but could get nothing new until "
                       "it runs again. Add --force to stop it all the same.",
                       live, live == 1 ? " is" : "s are")});
    }
    send_json(c, seq, R"({"ok":true})");
    stopping_ = true;
    return;
  }
  send_error(c, seq,
             {ErrorCode::kProtocol, fmt::format("The daemon knows no request '{}'. Program and daemon may be of "
                                                "different versions: run `vram daemon stop`, then try again.",
                                                clean_text(op, 32))});
}

std::string Daemon::oom_list_json(uint32_t asker) {
  std::string list;
  for (auto it = ooms_.all().rbegin(); it != ooms_.all().rend(); ++it) {
    if (!may_see(asker, it->uid)) continue;
    if (!list.empty()) list += ',';
    list += oom_json(*it, asker == 0);
  }
  return fmt::format(R"({{"simulated":{},"ooms":[{}],"counted":{{"overcome":{}}}}})", !options_.sim.empty(), list,
                     ooms_.counted_overcome());
}

Result<std::string> Daemon::oom_detail_json(const std::string& text, uint32_t asker) {
  json::object o = json::parse(text).as_object();
  const Oom* found = nullptr;
  if (json_text(o, "id") == "last") {
    for (const Oom& oom : ooms_.all()) {
      if (may_see(asker, oom.uid)) found = &oom;
    }
  } else {
    found = ooms_.find(json_number(o, "id"));
    if (found != nullptr && !may_see(asker, found->uid)) found = nullptr;
  }
  if (found == nullptr) {
    bool last = json_text(o, "id") == "last";
    return fail(
        ErrorCode::kUnknownOom,
        last ? "No allocation was refused yet (or a retry overcame each refusal)."
             : fmt::format("There is no refusal {}. `vram oom` lists the ones there are.", json_number(o, "id")));
  }
  return fmt::format(R"({{"simulated":{},"oom":{}}})", !options_.sim.empty(), oom_json(*found, asker == 0));
}

Result<std::string> Daemon::kill_json(const std::string& text, uint32_t asker) {
  json::object o = json::parse(text).as_object();
  uint64_t id = json_number(o, "budget");
  uint64_t signal = o.contains("signal") ? json_number(o, "signal") : SIGTERM;
  Budget* budget = ledger_->find(id);
  if (budget == nullptr) {
    return fail(ErrorCode::kUnknownBudget,
                fmt::format("There is no budget {}. `vram ps` lists the ones there are.", id));
  }
  if (!may_see(asker, budget->record->uid)) {
    return fail(ErrorCode::kNoPermission, fmt::format("Budget {} belongs to {}; only that user or root may end it.", id,
                                                      cached_user(budget->record->uid)));
  }
  if (signal == 0 || signal > 64) return fail(ErrorCode::kBadUsage, fmt::format("{} is no signal.", signal));
  json::array pids;
  for (int32_t pid : signal_members(*budget, static_cast<int>(signal))) pids.emplace_back(pid);
  changing_ = true;
  return json::serialize(json::object{{"ok", true}, {"signalled", std::move(pids)}});
}

std::vector<std::string> Daemon::warnings() const {
  std::vector<std::string> all = start_warnings_;
  if (driver_fault_) all.push_back(driver_fault_->message);
  for (const Journal* journal : {budget_journal_.get(), oom_journal_.get()}) {
    if (!journal->trouble()) continue;
    if (std::find(all.begin(), all.end(), journal->trouble()->message) == all.end()) {
      all.push_back(journal->trouble()->message);
    }
  }
  for (const auto& [id, budget] : ledger_->budgets()) {
    if (budget.distrusted) all.push_back(fmt::format("Budget {} broke an invariant; it gets nothing new.", id));
  }
  return all;
}

std::string Daemon::status_json() {
  json::array list;
  for (const std::string& warning : warnings()) list.emplace_back(clean_text(warning, 1024));
  const gpu::Inventory& inventory = source_->inventory();
  return json::serialize(json::object{{"pid", getpid()},
                                      {"uptime_s", monotonic_seconds() - started_at_},
                                      {"version", KV_VERSION},
                                      {"run_dir", options_.run_dir},
                                      {"state_dir", options_.state_dir},
                                      {"simulated", !options_.sim.empty()},
                                      {"sim", options_.sim},
                                      {"driver", json::object{{"version", inventory.driver},
                                                              {"cuda", inventory.cuda},
                                                              {"nvml", inventory.nvml},
                                                              {"library", inventory.library}}},
                                      {"gpus", inventory.gpus.size()},
                                      {"budgets", ledger_->budgets().size()},
                                      {"waiting", queue_.waiting().size()},
                                      {"connections", connections_.size()},
                                      {"warnings", std::move(list)},
                                      {"rss_bytes", resident_set_bytes()}});
}

}  // namespace kvram::node
