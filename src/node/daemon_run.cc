// `vram run`: placing a budget, waiting for room, and the moment before the command starts.
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/log.h"
#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/paths.h"
#include "node/process.h"

namespace kvram::node {
namespace {

namespace json = boost::json;

constexpr Bytes kBesideContext{64LL << 20};  // a budget has to leave room for something beside its context
constexpr double kTellSeconds = 5;
constexpr size_t kToldAtOnce = 32;  // waiting requests that hear of every change

// A whole number of any sign, or nothing; what is too large becomes the largest.
std::optional<int64_t> whole_number(const json::object& o, const char* key) {
  const json::value* value = o.if_contains(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return value->get_int64();
  if (value->is_uint64()) return INT64_MAX;
  if (value->is_double()) {
    double number = value->get_double();
    if (std::isnan(number)) return std::nullopt;
    return std::abs(number) < 9e18 ? static_cast<int64_t>(number) : number > 0 ? INT64_MAX : INT64_MIN;
  }
  return std::nullopt;
}

int as_count(int64_t number) { return static_cast<int>(std::clamp<int64_t>(number, -1, 1 << 20)); }

std::string command_text(const json::object& o) {
  const json::value* argv = o.if_contains("command");
  std::string text;
  if (argv == nullptr || !argv->is_array()) return text;
  for (const json::value& word : argv->get_array()) {
    if (!word.is_string()) continue;
    if (!text.empty()) text += ' ';
    text += word.get_string();
    if (text.size() > sizeof(BudgetRecord::command)) break;
  }
  return clean_text(text, sizeof(BudgetRecord::command) - 1);
}

json::array detail_json(const std::vector<GpuHolders>& gpus) {
  json::array list;
  for (const GpuHolders& gpu : gpus) {
    json::array holders;
    for (const Holder& h : gpu.holders) {
      if (h.budget != 0) {
        holders.push_back({{"budget", h.budget}, {"command", h.who}, {"bytes", h.bytes.count()}});
      } else {
        holders.push_back({{"foreign_pid", h.pid}, {"name", h.who}, {"bytes", h.bytes.count()}});
      }
    }
    list.push_back({{"index", gpu.index},
                    {"free", gpu.free.count()},
                    {"largest_ask", round_down(gpu.free, kMiB).count()},
                    {"holders", std::move(holders)}});
  }
  return list;
}

json::array paths_json(const std::vector<std::string>& paths) {
  json::array list;
  for (const std::string& path : paths) list.emplace_back(path);
  return list;
}

}  // namespace

std::vector<placement::GpuState> Daemon::gpu_states() const {
  std::vector<placement::GpuState> states;
  const auto& gpus = source_->inventory().gpus;
  for (size_t i = 0; i < gpus.size(); ++i) {
    placement::GpuState state;
    state.uuid = gpus[i].uuid;
    state.index = gpus[i].index;
    state.total = gpus[i].total;
    state.reserved = gpus[i].reserved;
    state.healthy = gpus[i].healthy && i < measured_.size() && measured_[i].ok;
    if (i < foreign_.size()) state.foreign = foreign_[i];
    states.push_back(state);
  }
  for (const auto& [id, budget] : ledger_->budgets()) {
    for (uint32_t g = 0; g < budget.record->gpus; ++g) {
      int index = gpu_index(budget.record->gpu[g].uuid);
      if (index < 0) continue;
      placement::GpuState& state = states[static_cast<size_t>(index)];
      uint64_t taken = std::max(budget.record->gpu[g].limit, budget.watch[g].resident);
      state.assigned += Bytes(static_cast<int64_t>(lease::to_bytes(taken)));
      ++state.budgets;
      state.whole = state.whole || budget.record->card != 0;
    }
  }
  return states;
}

// Without the GPUs on which a context alone would fill the part.
std::vector<placement::GpuState> Daemon::usable_states(const model::Request& request) const {
  std::vector<placement::GpuState> states = gpu_states();
  if (request.cards > 0) return states;
  std::erase_if(states, [&](const placement::GpuState& state) {
    const model::Gpu& gpu =
        source_->inventory()
            .gpus[static_cast<size_t>(gpu_index(reinterpret_cast<const uint8_t(&)[16]>(*state.uuid.data())))];
    auto context = static_cast<int64_t>(cost_model(gpu.name, !options_.sim.empty()).context_bytes);
    return model::part_of(request) < Bytes(context) + kBesideContext;
  });
  return states;
}

std::vector<GpuHolders> Daemon::holders(uint32_t asker) const {
  std::vector<GpuHolders> all;
  std::vector<placement::GpuState> states = gpu_states();
  for (size_t i = 0; i < states.size(); ++i) {
    GpuHolders gpu;
    gpu.index = states[i].index;
    gpu.free = placement::free_of(states[i]);
    all.push_back(std::move(gpu));
  }
  for (const auto& [id, budget] : ledger_->budgets()) {
    for (uint32_t g = 0; g < budget.record->gpus; ++g) {
      int index = gpu_index(budget.record->gpu[g].uuid);
      if (index < 0) continue;
      Holder h;
      h.budget = id;
      if (may_see(asker, budget.record->uid)) h.who = *budget.record->command != 0 ? budget.record->command : "?";
      h.bytes =
          Bytes(static_cast<int64_t>(lease::to_bytes(std::max(budget.record->gpu[g].limit, budget.watch[g].resident))));
      all[static_cast<size_t>(index)].holders.push_back(std::move(h));
    }
  }
  for (size_t i = 0; i < all.size() && i < foreign_.size(); ++i) {
    Bytes rest = foreign_[i];
    for (const gpu::ProcessMemory& p : measured_[i].processes) {
      auto it = listed_.find(p.pid);
      if ((it != listed_.end() && it->second.second != 0) || p.resident == Bytes(0) || rest == Bytes(0)) continue;
      auto facts = process_facts(p.pid);
      Bytes part = std::min(rest, p.resident);
      rest -= part;
      all[i].holders.push_back({0, p.pid, facts ? clean_text(facts->name, 64) : "ended", part});
    }
    if (rest > Bytes(0)) all[i].holders.push_back({0, 0, "", rest});
  }
  return all;
}

std::optional<Error> Daemon::below_reserve(const model::Request& request) const {
  if (request.cards != 0 || request.memory <= Bytes(0) || request.gpus < 1) return std::nullopt;
  const model::Gpu* smallest = nullptr;
  Bytes least;
  for (const model::Gpu& gpu : source_->inventory().gpus) {
    Bytes context(static_cast<int64_t>(cost_model(gpu.name, !options_.sim.empty()).context_bytes));
    if (smallest == nullptr || context < least) {
      smallest = &gpu;
      least = context;
    }
  }
  if (smallest == nullptr || model::part_of(request) >= least + kBesideContext) return std::nullopt;
  return Error{
      ErrorCode::kBelowReserve,
      fmt::format("{} asked, but a context alone takes {} on {}, before a program allocates anything. Ask for at least "
                  "{} for each GPU.",
                  asked_text(request), format_human(least), smallest->name,
                  format_quantity(round_up(least + kBesideContext, kMiB)))};
}

void Daemon::send_refused(Connection& c, const Error& error) {
  json::object body{{"code", error_id(error.code)}, {"message", error.message}};
  json::object event{{"event", "refused"},
                     {"error", std::move(body)},
                     {"detail", json::object{{"gpus", detail_json(holders(c.uid))}}}};
  send_json(c, c.run_seq, json::serialize(event));
}

void Daemon::on_run(Connection& c, uint64_t seq, const std::string& text) {
  json::object o = json::parse(text).as_object();
  c.run_seq = seq;
  model::Request request;
  request.memory = Bytes(whole_number(o, "memory").value_or(0));
  request.cards = as_count(whole_number(o, "card").value_or(0));
  request.gpus = as_count(whole_number(o, "gpu").value_or(1));
  bool strict = options_.strict_watch || json_flag(o, "strict");
  std::string command = command_text(o);
  if (c.waiter != 0 || c.budget != 0) {
    return send_refused(c, {ErrorCode::kProtocol, "This connection has asked for a budget already."});
  }
  if (!know_peer(c)) return send_refused(c, {ErrorCode::kProtocol, "The asking process has ended."});
  if (!guard_fault_.empty()) return send_refused(c, {ErrorCode::kGuardMissing, guard_fault_});
  measure_if_older(0.01);
  if (driver_fault_) return send_refused(c, *driver_fault_);
  if (source_->inventory().gpus.empty()) {
    return send_refused(c, {ErrorCode::kTooManyGpus,
                            "The driver answers, but this machine has no GPU. On a machine without a "
                            "GPU add --sim 1xA10 for the simulated driver."});
  }
  if (auto error = below_reserve(request)) return send_refused(c, *error);
  std::vector<placement::GpuState> states = usable_states(request);
  queue_.promise(states, queue_.waiting().size());
  placement::Decision decision = placement::best_fit().place(states, request);
  if (auto* parts = std::get_if<model::Assignment>(&decision)) return grant(c, request, command, strict, *parts);
  const auto& refusal = std::get<placement::Refusal>(decision);
  bool can_wait = refusal.why == placement::Why::kNoRoom || refusal.why == placement::Why::kWaitsAhead;
  auto wait_s = whole_number(o, "wait_s");
  double wait = wait_s ? static_cast<double>(*wait_s) : 0;
  if (const json::value* exact = o.if_contains("wait_s"); exact != nullptr && exact->is_double())
    wait = exact->get_double();
  if (!can_wait || !(wait > 0)) {
    return send_refused(c, refusal_error(request, refusal, holders(c.uid), queue_.waiting().size()));
  }
  if (queue_.full()) {
    return send_refused(c, {ErrorCode::kTooManyBudgets,
                            fmt::format("{} requests wait already, as many as there may be.", kMaxWaiting)});
  }
  Waiter waiter;
  waiter.id = next_id_++;
  waiter.request = request;
  waiter.since = unix_seconds();
  waiter.deadline = monotonic_seconds() + wait;
  waiter.uid = c.uid;
  waiter.pid = c.pid;
  waiter.command = command;
  c.waiter = waiter.id;
  pending_[waiter.id] = {strict, command};
  queue_.add(waiter);
  tell_waiting(c, waiter, true);
  arm_timer();
}

void Daemon::grant(Connection& c, const model::Request& request, const std::string& command, bool strict,
                   const model::Assignment& parts) {
  NewBudget wanted;
  wanted.uid = c.uid;
  wanted.gid = c.gid;
  wanted.root_pid = c.pid;
  wanted.root_start = c.start;
  wanted.created = unix_seconds();
  wanted.strict = strict;
  wanted.card = request.cards > 0;
  wanted.command = command;
  wanted.parts = parts;
  Result<uint64_t> id = ledger_->create(wanted);
  if (!id) return send_refused(c, id.error());
  budget_journal_->append(budget_line(*ledger_->find(*id)->record, image_->image().boot_id));
  extras_[*id] = BudgetExtra{};
  watch(c.pid, c.start);
  c.budget = *id;
  c.waiter = 0;
  log::info("Budget was granted",
            {{"budget", std::to_string(*id)}, {"pid", std::to_string(c.pid)}, {"command", command}});
  send_json(c, c.run_seq, guard_json(*id));
}

std::string Daemon::guard_json(uint64_t id) const {
  const BudgetRecord& record = *ledger_->find(id)->record;
  json::array gpus;
  std::string visible;
  for (uint32_t g = 0; g < record.gpus; ++g) {
    int index = gpu_index(record.gpu[g].uuid);
    if (index < 0) continue;
    const model::Gpu& gpu = source_->inventory().gpus[static_cast<size_t>(index)];
    std::string uuid = model::uuid_text(gpu.uuid);
    visible += (visible.empty() ? "" : ",") + uuid;
    gpus.push_back({{"uuid", uuid},
                    {"index", gpu.index},
                    {"name", gpu.name},
                    {"limit", lease::to_bytes(record.gpu[g].limit)},
                    {"context_reserve", cost_model(gpu.name, !options_.sim.empty()).context_bytes}});
  }
  json::object env{{"CUDA_VISIBLE_DEVICES", visible}};
  if (!options_.sim.empty()) {
    env["KUBE_VRAM_SIM"] = options_.sim;
    env["KUBE_VRAM_SIM_DIR"] = sim_dir();
  }
  json::object event{
      {"event", "granted"},
      {"budget", id},
      {"simulated", !options_.sim.empty()},
      {"gpus", std::move(gpus)},
      {"guard", json::object{{"path_dir", guard_.path_dir},
                             {"ns_cuda", guard_.ns_cuda},
                             {"ns_nvml", guard_.ns_nvml},
                             {"stash_cuda", guard_.stash_cuda},
                             {"stash_nvml", guard_.stash_nvml}}},
      {"driver",
       json::object{{"dir", files_.dir}, {"cuda", paths_json(files_.cuda)}, {"nvml", paths_json(files_.nvml)}}},
      {"env", std::move(env)}};
  return json::serialize(event);
}

void Daemon::on_started(Connection& c, uint64_t seq, const std::string& text) {
  json::object o = json::parse(text).as_object();
  uint64_t id = json_number(o, "budget");
  Budget* budget = id != 0 && id == c.budget ? ledger_->find(id) : nullptr;
  if (budget == nullptr) {
    return send_error(c, seq,
                      {ErrorCode::kUnknownBudget, fmt::format("Budget {} was not granted to this process.", id)});
  }
  bool in_namespace = json_text(o, "mode") == "namespace";
  budget->record->mode = static_cast<uint32_t>(in_namespace ? BudgetMode::kNamespace : BudgetMode::kPath);
  std::string why = clean_text(json_text(o, "why"), sizeof budget->record->why - 1);
  memcpy(budget->record->why, why.c_str(), why.size() + 1);
  BudgetExtra& extra = extras_[id];
  extra.started = true;
  if (in_namespace) pin_namespace(*budget, extra, c.pid);
  c.budget = 0;  // its end is no longer that of the budget
  send_json(c, seq, R"({"ok":true})");
}

void Daemon::pin_namespace(Budget& budget, BudgetExtra& extra, int32_t pid) {
  uint64_t inode = mount_namespace_of(pid);
  if (inode == 0 || inode == mount_namespace_of(getpid())) return;
  if (budget.record->namespace_inode != 0 && budget.record->namespace_inode != inode) return;
  for (auto& [id, other] : ledger_->budgets()) {
    if (&other != &budget && other.record->namespace_inode == inode) return;  // a run inside another run's namespace
  }
  int fd = ::open(fmt::format("/proc/{}/ns/mnt", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (extra.namespace_fd >= 0) close(extra.namespace_fd);
  extra.namespace_fd = fd;
  budget.record->namespace_inode = inode;
}

Connection* Daemon::connection_of_waiter(uint64_t waiter) {
  for (auto& [id, c] : connections_) {
    if (c->waiter == waiter) return c.get();
  }
  return nullptr;
}

void Daemon::serve_waiting() {
  if (queue_.waiting().empty() || driver_fault_) return expire_waiting();
  while (auto admission = queue_.next(gpu_states(), placement::best_fit())) {
    Connection* c = connection_of_waiter(admission->id);
    auto it = std::find_if(queue_.waiting().begin(), queue_.waiting().end(),
                           [&](const Waiter& w) { return w.id == admission->id; });
    model::Request request = it->request;
    PendingRun run = pending_[admission->id];
    queue_.remove(admission->id);
    pending_.erase(admission->id);
    if (c != nullptr) grant(*c, request, run.command, run.strict, admission->parts);
  }
  expire_waiting();
  double now = monotonic_seconds();
  size_t told = 0;
  for (const Waiter& waiter : queue_.waiting()) {
    Connection* c = connection_of_waiter(waiter.id);
    bool due = c != nullptr && now - c->told >= kTellSeconds;
    if (c != nullptr && (due || told++ < kToldAtOnce)) tell_waiting(*c, waiter, due);
  }
}

void Daemon::expire_waiting() {
  double now = monotonic_seconds();
  std::vector<Waiter> late;
  for (const Waiter& waiter : queue_.waiting()) {
    if (waiter.deadline && now >= *waiter.deadline) late.push_back(waiter);
  }
  for (const Waiter& waiter : late) {
    Connection* c = connection_of_waiter(waiter.id);
    std::vector<placement::GpuState> states = usable_states(waiter.request);
    queue_.promise(states, queue_.position(waiter.id) - 1);
    placement::Decision decision = placement::best_fit().place(states, waiter.request);
    const auto* refusal = std::get_if<placement::Refusal>(&decision);
    std::string reason = refusal == nullptr ? "The driver did not answer."
                                            : waiting_reason(waiter.request, *refusal, holders(waiter.uid),
                                                             queue_.position(waiter.id) - 1);
    queue_.remove(waiter.id);
    pending_.erase(waiter.id);
    if (c == nullptr) continue;
    c->waiter = 0;
    send_refused(*c, {ErrorCode::kWaitTimedOut, fmt::format("Waited {:.0f} s for room in vain. {} Nothing was started.",
                                                            unix_seconds() - waiter.since, reason)});
  }
}

void Daemon::tell_waiting(Connection& c, const Waiter& waiter, bool always) {
  size_t position = queue_.position(waiter.id);
  std::vector<placement::GpuState> states = usable_states(waiter.request);
  queue_.promise(states, position - 1);
  placement::Decision decision = placement::best_fit().place(states, waiter.request);
  const auto* refusal = std::get_if<placement::Refusal>(&decision);
  std::string reason = refusal == nullptr ? "Room has just become free."
                                          : waiting_reason(waiter.request, *refusal, holders(waiter.uid), position - 1);
  std::string event = json::serialize(
      json::object{{"event", "waiting"}, {"position", position}, {"ahead", position - 1}, {"reason", reason}});
  if (!always && event == c.last_event) return;
  c.last_event = event;
  c.told = monotonic_seconds();
  send_json(c, c.run_seq, event);
}

}  // namespace kvram::node
