#include "cli/snapshot.h"

namespace kvram::cli {
namespace {

Bytes bytes_at(const json::object& o, std::string_view key) { return Bytes(int_at(o, key)); }

const json::object& as_object(const json::value& v) {
  static const json::object kEmpty;
  return v.is_object() ? v.get_object() : kEmpty;
}

GpuView parse_gpu(const json::object& o) {
  GpuView g;
  g.index = static_cast<int>(int_at(o, "index"));
  g.uuid = text_at(o, "uuid");
  g.name = text_at(o, "name");
  g.health = text_at(o, "health");
  g.total = bytes_at(o, "total");
  g.reserved = bytes_at(o, "reserved");
  g.foreign = bytes_at(o, "foreign");
  g.assigned = bytes_at(o, "assigned");
  g.resident = bytes_at(o, "resident");
  g.free = bytes_at(o, "free");
  for (const json::value& v : array_at(o, "foreign_processes")) {
    const json::object& p = as_object(v);
    g.foreign_processes.push_back({int_at(p, "pid"), bytes_at(p, "bytes"), text_at(p, "name")});
  }
  return g;
}

std::vector<Share> parse_shares(const json::object& o) {
  std::vector<Share> shares;
  for (const json::value& v : array_at(o, "gpus")) {
    const json::object& s = as_object(v);
    shares.push_back({static_cast<int>(int_at(s, "index")), bytes_at(s, "limit"), bytes_at(s, "charged"),
                      bytes_at(s, "granted"), bytes_at(s, "hidden"), bytes_at(s, "resident"), bytes_at(s, "peak")});
  }
  return shares;
}

BudgetView parse_budget(const json::object& o) {
  BudgetView b;
  b.id = int_at(o, "budget");
  b.user = text_at(o, "user");
  b.command = text_at(o, "command");
  b.mode = text_at(o, "mode");
  b.guarantee = text_at(o, "guarantee");
  b.why = text_at(o, "why");
  b.uid = int_at(o, "uid", -1);
  b.created = double_at(o, "created");
  b.strict = bool_at(o, "strict");
  b.over = bool_at(o, "over");
  b.refused = int_at(o, "refused");
  b.overcome = int_at(o, "overcome");
  b.gpus = parse_shares(o);
  for (const json::value& v : array_at(o, "processes")) {
    const json::object& p = as_object(v);
    b.processes.push_back({int_at(p, "pid"), text_at(p, "name"), parse_shares(p)});
  }
  return b;
}

}  // namespace

Snapshot parse_snapshot(const json::object& list) {
  Snapshot s;
  s.simulated = bool_at(list, "simulated");
  const json::object& driver = object_at(list, "driver");
  s.driver_version = text_at(driver, "version");
  s.cuda = int_at(driver, "cuda");
  for (const json::value& v : array_at(list, "gpus")) s.gpus.push_back(parse_gpu(as_object(v)));
  for (const json::value& v : array_at(list, "budgets")) s.budgets.push_back(parse_budget(as_object(v)));
  for (const json::value& v : array_at(list, "waiting")) {
    const json::object& w = as_object(v);
    s.waiting.push_back({int_at(w, "pid"), text_at(w, "user"), text_at(w, "command"), bytes_at(w, "asked"),
                         double_at(w, "since"), int_at(w, "position")});
  }
  return s;
}

Bytes total(const std::vector<Share>& shares, Bytes Share::* member) {
  Bytes sum;
  for (const Share& s : shares) sum += s.*member;
  return sum;
}

}  // namespace kvram::cli
