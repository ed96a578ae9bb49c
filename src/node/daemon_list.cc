// The one snapshot behind ps, top and gpus.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/process.h"

namespace kvram::node {
namespace {

namespace json = boost::json;

// A process that the driver lists.
struct Listed {
  int gpu = 0;
  int32_t pid = 0;
  uint64_t bytes = 0;
};

struct Share {
  uint64_t charged = 0;
  uint64_t resident = 0;
};
struct Member {
  std::string name;
  std::map<int, Share> gpus;
};

std::string_view mode_text(uint32_t mode) {
  if (mode == static_cast<uint32_t>(BudgetMode::kNamespace)) return "namespace";
  return mode == static_cast<uint32_t>(BudgetMode::kPath) ? "path" : "starting";
}

std::string name_of(int32_t pid) {
  auto facts = process_facts(pid);
  return facts ? clean_text(facts->name, 64) : "";
}

bool is_over(const Budget& budget) {
  bool over = false;
  for (uint32_t g = 0; g < budget.record->gpus; ++g) over = over || budget.watch[g].over_count >= 2;
  return over;
}

json::array gpus_json(const Ledger& ledger, const Budget& budget, const std::vector<int>& indexes,
                      const std::vector<Listed>& listed, const json::storage_ptr& memory) {
  json::array gpus(memory);
  for (uint32_t g = 0; g < budget.record->gpus; ++g) {
    const BudgetGpu& record = budget.record->gpu[g];
    uint64_t charged = ledger.charged(budget, g);
    uint64_t resident = 0;
    for (const Listed& p : listed) resident += p.gpu == indexes[g] ? lease::to_units(p.bytes) : 0;
    model::GpuUuid uuid;
    std::copy(std::begin(record.uuid), std::end(record.uuid), uuid.begin());
    gpus.push_back({{"index", indexes[g]},
                    {"uuid", model::uuid_text(uuid)},
                    {"limit", lease::to_bytes(record.limit)},
                    {"charged", lease::to_bytes(charged)},
                    {"granted", lease::to_bytes(ledger.granted(budget, g))},
                    {"hidden", lease::to_bytes(record.hidden)},
                    {"resident", lease::to_bytes(resident)},
                    {"peak", lease::to_bytes(std::max({record.peak, charged, resident}))}});
  }
  return gpus;
}

// Registered processes and those that the driver lists, each pid once.
json::array processes_json(Ledger& ledger, Budget& budget, const std::vector<int>& indexes,
                           const std::vector<Listed>& listed, const json::storage_ptr& memory) {
  std::map<int32_t, Member> members;
  for (uint32_t slot = 0; slot < budget.slots.size(); ++slot) {
    ProcessRecord* p = ledger.process(budget, slot);
    if (p == nullptr) continue;
    Member& member = members[p->pid];
    member.name = clean_text(p->name, 64);
    for (uint32_t g = 0; g < budget.record->gpus; ++g) {
      member.gpus[indexes[g]].charged += lease::to_bytes(ledger.charged_of(budget, slot, g));
    }
  }
  for (const Listed& p : listed) {
    Member& member = members[p.pid];
    if (member.name.empty()) member.name = name_of(p.pid);
    member.gpus[p.gpu].resident += p.bytes;
  }
  json::array processes(memory);
  for (const auto& [pid, member] : members) {
    json::array shares(memory);
    for (const auto& [index, share] : member.gpus) {
      shares.push_back({{"index", index}, {"charged", share.charged}, {"resident", share.resident}});
    }
    processes.push_back({{"pid", pid}, {"name", member.name}, {"gpus", std::move(shares)}});
  }
  return processes;
}

json::object gpu_json(const placement::GpuState& state, const std::string& name, const std::string& health,
                      uint64_t resident, uint64_t context, const std::vector<Listed>& foreign,
                      const json::storage_ptr& memory) {
  json::array processes(memory);
  for (const Listed& p : foreign) {
    processes.push_back({{"pid", p.pid}, {"bytes", p.bytes}, {"name", name_of(p.pid)}});
  }
  return json::object({{"index", state.index},
                       {"uuid", model::uuid_text(state.uuid)},
                       {"name", name},
                       {"total", state.total.count()},
                       {"reserved", state.reserved.count()},
                       {"foreign", state.foreign.count()},
                       {"assigned", state.assigned.count()},
                       {"resident", resident},
                       {"free", placement::free_of(state).count()},
                       {"context_reserve", context},
                       {"health", health},
                       {"foreign_processes", std::move(processes)}},
                      memory);
}

// Why the guarantee is not more: no namespace, or a driver that can do what the guard does not know.
std::string why_text(const BudgetRecord& record) {
  std::string why = record.why;
  if (record.unknown_symbols == 0) return why;
  if (!why.empty()) why += "; ";
  return why + fmt::format("the driver exports {} functions that the guard does not know", record.unknown_symbols);
}

json::object budget_json(Ledger& ledger, Budget& budget, const std::vector<int>& indexes, bool visible,
                         const std::vector<Listed>& listed, const json::storage_ptr& memory) {
  const BudgetRecord& record = *budget.record;
  json::array processes(memory);
  if (visible) processes = processes_json(ledger, budget, indexes, listed, memory);
  return json::object({{"budget", record.id},
                       {"user", cached_user(record.uid)},
                       {"uid", record.uid},
                       {"command", visible ? record.command : ""},
                       {"created", record.created},
                       {"strict", record.strict != 0},
                       {"card", record.card != 0},
                       {"mode", mode_text(record.mode)},
                       {"guarantee", record.unknown_symbols == 0 ? "cooperative" : "detected"},
                       {"why", why_text(record)},
                       {"root_pid", visible ? record.root_pid : 0},
                       {"over", is_over(budget)},
                       {"gpus", gpus_json(ledger, budget, indexes, listed, memory)},
                       {"refused", record.refused},
                       {"overcome", record.overcome},
                       {"processes", std::move(processes)}},
                      memory);
}

json::object waiter_json(const Waiter& waiter, size_t position, bool visible, const json::storage_ptr& memory) {
  return json::object({{"pid", visible ? waiter.pid : 0},
                       {"user", cached_user(waiter.uid)},
                       {"asked", waiter.request.memory.count()},
                       {"gpus", waiter.request.gpus},
                       {"cards", waiter.request.cards},
                       {"since", waiter.since},
                       {"position", position},
                       {"command", visible ? waiter.command : ""}},
                      memory);
}

}  // namespace

std::string Daemon::list_json(uint32_t asker) {
  measure_if_older(0.005);
  json::monotonic_resource arena(256 * 1024);
  json::storage_ptr memory(&arena);
  const gpu::Inventory& inventory = source_->inventory();
  std::vector<placement::GpuState> states = gpu_states();
  std::unordered_map<uint64_t, std::vector<Listed>> of_budget;
  std::vector<std::vector<Listed>> foreign(states.size());
  std::vector<uint64_t> resident(states.size());
  for (size_t i = 0; i < measured_.size() && i < states.size(); ++i) {
    for (const gpu::ProcessMemory& p : measured_[i].processes) {
      auto it = listed_.find(p.pid);
      uint64_t id = it == listed_.end() ? 0 : it->second.second;
      Listed entry{static_cast<int>(i), p.pid, static_cast<uint64_t>(p.resident.count())};
      (id != 0 ? of_budget[id] : foreign[i]).push_back(entry);
      if (id != 0) resident[i] += entry.bytes;
    }
  }
  json::array gpus(memory);
  for (size_t i = 0; i < states.size(); ++i) {
    std::string health = i < measured_.size() ? measured_[i].health : inventory.gpus[i].health;
    if (driver_fault_) health = "driver does not answer";
    uint64_t context = cost_model(inventory.gpus[i].name, !options_.sim.empty()).context_bytes;
    gpus.push_back(gpu_json(states[i], inventory.gpus[i].name, health, resident[i], context, foreign[i], memory));
  }
  json::array budgets(memory);
  for (auto& [id, budget] : ledger_->budgets()) {
    std::vector<int> indexes;
    for (uint32_t g = 0; g < budget.record->gpus; ++g) indexes.push_back(gpu_index(budget.record->gpu[g].uuid));
    bool visible = may_see(asker, budget.record->uid);
    budgets.push_back(budget_json(*ledger_, budget, indexes, visible, of_budget[id], memory));
  }
  json::array waiting(memory);
  for (const Waiter& w : queue_.waiting()) {
    waiting.push_back(waiter_json(w, waiting.size() + 1, may_see(asker, w.uid), memory));
  }
  json::object root(memory);
  root["simulated"] = !options_.sim.empty();
  root["driver"] = {{"version", inventory.driver}, {"cuda", inventory.cuda}, {"nvml", inventory.nvml}};
  root["gpus"] = std::move(gpus);
  root["budgets"] = std::move(budgets);
  root["waiting"] = std::move(waiting);
  return json::serialize(root);
}

}  // namespace kvram::node
