#include "node/oom_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/bytes.h"

namespace kvram::node {
namespace {

namespace json = boost::json;

std::string human(uint64_t bytes) {
  return format_human(Bytes(static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX))));
}

uint64_t number(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<uint64_t>() : 0;
}
std::string text(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

}  // namespace

void OomLog::add(Oom oom) {
  ooms_.push_back(std::move(oom));
  if (ooms_.size() > kMaxOoms) ooms_.pop_front();
}

bool OomLog::overcome(uint64_t id, int32_t pid) {
  auto it = std::find_if(ooms_.begin(), ooms_.end(), [id, pid](const Oom& o) { return o.id == id && o.pid == pid; });
  if (it == ooms_.end()) return false;
  ooms_.erase(it);
  ++overcome_;
  return true;
}

const Oom* OomLog::find(uint64_t id) const {
  for (const Oom& oom : ooms_) {
    if (oom.id == id) return &oom;
  }
  return nullptr;
}

std::string oom_sentence(const Oom& oom) {
  std::string held;
  for (const OomProcess& p : oom.processes) {
    if (!held.empty()) held += ", ";
    held += fmt::format("{} (pid {}) {}", p.name, p.pid, human(p.charged));
  }
  if (oom.hidden > 0) held += fmt::format("{}{} that no call announced", held.empty() ? "" : ", ", human(oom.hidden));
  if (oom.physical) {
    return fmt::format(
        "{} asked for {} with {} and budget {} had room, but the driver refused: GPU {} had {} free, with {} of "
        "foreign memory. At most {} would have fitted.",
        oom.process, human(oom.asked), oom.call, oom.budget, oom.gpu, human(oom.gpu_free), human(oom.gpu_foreign),
        human(oom.would_fit));
  }
  return fmt::format(
      "{} asked for {} with {}, but budget {} has {} of its {} on GPU {} left. Held: {}. At most {} would have "
      "fitted.",
      oom.process, human(oom.asked), oom.call, oom.budget, human(oom.free_in_budget), human(oom.limit), oom.gpu,
      held.empty() ? "nothing" : held, human(oom.would_fit));
}

std::string oom_json(const Oom& oom, bool others) {
  json::array processes;
  for (const OomProcess& p : oom.processes) {
    processes.push_back({{"pid", p.pid}, {"name", p.name}, {"charged", p.charged}, {"resident", p.resident}});
  }
  json::array budgets;
  for (const OomNeighbour& n : oom.neighbours) {
    if (others || n.budget == oom.budget) {
      budgets.push_back({{"budget", n.budget}, {"limit", n.limit}, {"charged", n.charged}});
    }
  }
  json::object state{{"total", oom.gpu_total},
                     {"reserved", oom.gpu_reserved},
                     {"foreign", oom.gpu_foreign},
                     {"free", oom.gpu_free},
                     {"budgets", std::move(budgets)}};
  json::object object{{"id", oom.id},
                      {"time", oom.time},
                      {"budget", oom.budget},
                      {"uid", oom.uid},
                      {"command", oom.command},
                      {"pid", oom.pid},
                      {"process", oom.process},
                      {"call", oom.call},
                      {"asked", oom.asked},
                      {"gpu", oom.gpu},
                      {"limit", oom.limit},
                      {"charged", oom.charged},
                      {"hidden", oom.hidden},
                      {"free_in_budget", oom.free_in_budget},
                      {"would_fit", oom.would_fit},
                      {"kind", oom.physical ? "physical" : "limit"},
                      {"processes", std::move(processes)},
                      {"gpu_state", std::move(state)},
                      {"sentence", oom_sentence(oom)}};
  return json::serialize(object);
}

std::optional<Oom> oom_from_json(const std::string& line) {
  boost::system::error_code bad;
  json::value value = json::parse(line, bad);
  const json::object* o = bad ? nullptr : value.if_object();
  if (o == nullptr || number(*o, "id") == 0) return std::nullopt;
  Oom oom;
  oom.id = number(*o, "id");
  if (const json::value* time = o->if_contains("time"); time != nullptr && time->is_number()) {
    oom.time = time->to_number<double>();
  }
  oom.budget = number(*o, "budget");
  oom.uid = static_cast<uint32_t>(number(*o, "uid"));
  oom.command = text(*o, "command");
  oom.pid = static_cast<int32_t>(number(*o, "pid"));
  oom.process = text(*o, "process");
  oom.call = text(*o, "call");
  oom.asked = number(*o, "asked");
  oom.gpu = static_cast<int>(number(*o, "gpu"));
  oom.limit = number(*o, "limit");
  oom.charged = number(*o, "charged");
  oom.hidden = number(*o, "hidden");
  oom.free_in_budget = number(*o, "free_in_budget");
  oom.would_fit = number(*o, "would_fit");
  oom.physical = text(*o, "kind") == "physical";
  if (const json::value* list = o->if_contains("processes"); list != nullptr && list->is_array()) {
    for (const json::value& entry : list->get_array()) {
      if (const json::object* p = entry.if_object()) {
        oom.processes.push_back(
            {static_cast<int32_t>(number(*p, "pid")), text(*p, "name"), number(*p, "charged"), number(*p, "resident")});
      }
    }
  }
  if (const json::value* state = o->if_contains("gpu_state"); state != nullptr && state->is_object()) {
    const json::object& s = state->get_object();
    oom.gpu_total = number(s, "total");
    oom.gpu_reserved = number(s, "reserved");
    oom.gpu_foreign = number(s, "foreign");
    oom.gpu_free = number(s, "free");
  }
  return oom;
}

}  // namespace kvram::node
