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

const std::string& cached_user(uint32_t uid) {
  static std::unordered_map<uint32_t, std::string> names;
  auto it = names.find(uid);
  if (it == names.end()) {
    if (names.size() > 4096) names.clear();
    it = names.emplace(uid, clean_text(user_name(uid), 64)).first;
  }
  return it->second;
}

uint64_t resident_set_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string_view mode_text(uint32_t mode) {
  if (mode == static_cast<uint32_t>(BudgetMode::kNamespace)) return "namespace";
  return mode == static_cast<uint32_t>(BudgetMode::kPath) ? "path" : "starting";
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

namespace {

// Appends what a budget shows of its GPUs; returns whether it holds more than its limit anywhere.
bool add_budget_gpus(const Ledger& ledger, const Budget& budget, const std::vector<int>& indexes,
                     const std::vector<uint64_t>& resident, json::array& gpus) {
  bool over = false;
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    const BudgetGpu& record = budget.record->gpu[g];
    uint64_t charged = ledger.charged(budget, g);
    model::GpuUuid uuid;
    std::copy(std::begin(record.uuid), std::end(record.uuid), uuid.begin());
    over = over || budget.watch[g].over_count >= 2;
    gpus.push_back({{"index", indexes[g]},
                    {"uuid", model::uuid_text(uuid)},
                    {"limit", lease::to_bytes(record.limit)},
                    {"charged", lease::to_bytes(charged)},
                    {"granted", lease::to_bytes(ledger.granted(budget, g))},
                    {"hidden", lease::to_bytes(record.hidden)},
                    {"resident", lease::to_bytes(resident[g])},
                    {"peak", lease::to_bytes(std::max({record.peak, charged, resident[g]}))}});
  }
  return over;
}

}  // namespace

std::string Daemon::list_json(uint32_t asker) {
  measure_if_older(0.05);
  json::monotonic_resource memory(256 * 1024);
  const gpu::Inventory& inventory = source_->inventory();
  std::vector<placement::GpuState> states = gpu_states();
  std::vector<uint64_t> resident_sum(states.size());
  // Which listed process is whose, once for all budgets.
  struct Listed {
    size_t gpu;
    int32_t pid;
    uint64_t bytes;
  };
  std::unordered_map<uint64_t, std::vector<Listed>> of_budget;
  std::vector<std::vector<Listed>> foreign(states.size());
  for (size_t i = 0; i < measured_.size() && i < states.size(); ++i) {
    for (const gpu::ProcessMemory& p : measured_[i].processes) {
      auto it = listed_.find(p.pid);
      uint64_t id = it == listed_.end() ? 0 : it->second.second;
      Listed entry{i, p.pid, static_cast<uint64_t>(p.resident.count())};
      if (id != 0) {
        of_budget[id].push_back(entry);
        resident_sum[i] += entry.bytes;
      } else {
        foreign[i].push_back(entry);
      }
    }
  }
  json::object root(&memory);
  root["simulated"] = !options_.sim.empty();
  root["driver"] = json::object{{"version", inventory.driver}, {"cuda", inventory.cuda}, {"nvml", inventory.nvml}};
  json::array gpus(&memory);
  for (size_t i = 0; i < states.size(); ++i) {
    json::array processes(&memory);
    for (const Listed& p : foreign[i]) {
      auto facts = process_facts(p.pid);
      processes.push_back({{"pid", p.pid}, {"bytes", p.bytes}, {"name", facts ? clean_text(facts->name, 64) : ""}});
    }
    std::string health = i < measured_.size() ? measured_[i].health : inventory.gpus[i].health;
    if (driver_fault_) health = "driver does not answer";
    gpus.push_back({{"index", states[i].index},
                    {"uuid", model::uuid_text(states[i].uuid)},
                    {"name", inventory.gpus[i].name},
                    {"total", states[i].total.count()},
                    {"reserved", states[i].reserved.count()},
                    {"foreign", states[i].foreign.count()},
                    {"assigned", states[i].assigned.count()},
                    {"resident", resident_sum[i]},
                    {"free", placement::free_of(states[i]).count()},
                    {"context_reserve", cost_model(inventory.gpus[i].name, !options_.sim.empty()).context_bytes},
                    {"health", health},
                    {"foreign_processes", std::move(processes)}});
  }
  root["gpus"] = std::move(gpus);
  json::array budgets(&memory);
  for (auto& [id, budget] : ledger_->budgets()) {
    const BudgetRecord& record = *budget.record;
    bool visible = may_see(asker, record.uid);
    std::vector<int> indexes;
    for (uint32_t g = 0; g < record.gpus; ++g) indexes.push_back(gpu_index(record.gpu[g].uuid));
    const std::vector<Listed>& listed = of_budget[id];
    std::vector<uint64_t> resident(record.gpus);
    auto part_of_gpu = [&](size_t gpu) {
      return std::find(indexes.begin(), indexes.end(), static_cast<int>(gpu)) - indexes.begin();
    };
    for (const Listed& p : listed) {
      if (auto g = static_cast<size_t>(part_of_gpu(p.gpu)); g < resident.size())
        resident[g] += lease::to_units(p.bytes);
    }
    json::array budget_gpus(&memory);
    bool over = add_budget_gpus(*ledger_, budget, indexes, resident, budget_gpus);
    json::array processes(&memory);
    std::map<int32_t, std::pair<std::string, std::map<int, std::pair<uint64_t, uint64_t>>>> by_pid;
    for (uint32_t slot = 0; visible && slot < budget.slots.size(); ++slot) {
      ProcessRecord* p = ledger_->process(budget, slot);
      if (p == nullptr) continue;
      auto& entry = by_pid[p->pid];
      entry.first = clean_text(p->name, 64);
      for (uint32_t g = 0; g < record.gpus; ++g) {
        entry.second[indexes[g]].first += lease::to_bytes(ledger_->charged_of(budget, slot, g));
      }
    }
    for (const Listed& p : listed) {
      if (!visible) break;
      auto& entry = by_pid[p.pid];
      if (entry.first.empty()) {
        auto facts = process_facts(p.pid);
        entry.first = facts ? clean_text(facts->name, 64) : "";
      }
      entry.second[static_cast<int>(p.gpu)].second += p.bytes;
    }
    for (auto& [pid, entry] : by_pid) {
      json::array shares(&memory);
      for (auto& [index, bytes] : entry.second) {
        shares.push_back({{"index", index}, {"charged", bytes.first}, {"resident", bytes.second}});
      }
      processes.push_back({{"pid", pid}, {"name", entry.first}, {"gpus", std::move(shares)}});
    }
    budgets.push_back({{"budget", id},
                       {"user", cached_user(record.uid)},
                       {"uid", record.uid},
                       {"command", visible ? record.command : ""},
                       {"created", record.created},
                       {"strict", record.strict != 0},
                       {"card", record.card != 0},
                       {"mode", mode_text(record.mode)},
                       {"guarantee", "cooperative"},
                       {"why", record.why},
                       {"root_pid", visible ? record.root_pid : 0},
                       {"over", over},
                       {"gpus", std::move(budget_gpus)},
                       {"refused", record.refused},
                       {"overcome", record.overcome},
                       {"processes", std::move(processes)}});
  }
  root["budgets"] = std::move(budgets);
  json::array waiting(&memory);
  size_t position = 0;
  for (const Waiter& w : queue_.waiting()) {
    bool visible = may_see(asker, w.uid);
    waiting.push_back({{"pid", visible ? w.pid : 0},
                       {"user", cached_user(w.uid)},
                       {"asked", w.request.memory.count()},
                       {"gpus", w.request.gpus},
                       {"cards", w.request.cards},
                       {"since", w.since},
                       {"position", ++position},
                       {"command", visible ? w.command : ""}});
  }
  root["waiting"] = std::move(waiting);
  return json::serialize(root);
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
