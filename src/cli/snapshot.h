// What the daemon's `list` and `oom` replies say, as plain data. Amounts are bytes, times are unix seconds.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/json.h"

namespace kvram::cli {

struct ForeignProcess {
  int64_t pid = 0;
  Bytes bytes;
  std::string name;
};

struct GpuView {
  int index = 0;
  std::string uuid, name, health;
  Bytes total, reserved, foreign, assigned, resident, free;
  std::vector<ForeignProcess> foreign_processes;
};

struct Share {  // of one budget or process on one GPU
  int index = 0;
  Bytes limit, charged, granted, hidden, resident, peak;
};

struct ProcessView {
  int64_t pid = 0;
  std::string name;
  std::vector<Share> gpus;
};

struct BudgetView {
  int64_t id = 0;
  std::string user, command, mode, guarantee, why;
  int64_t uid = -1;
  double created = 0;
  bool strict = false;
  bool over = false;
  int64_t refused = 0;
  int64_t overcome = 0;
  std::vector<Share> gpus;
  std::vector<ProcessView> processes;
};

struct WaitingView {
  int64_t pid = 0;
  std::string user, command;
  Bytes asked;
  double since = 0;
  int64_t position = 0;
};

struct Snapshot {
  bool simulated = false;
  std::string driver_version;
  int64_t cuda = 0;
  std::vector<GpuView> gpus;
  std::vector<BudgetView> budgets;
  std::vector<WaitingView> waiting;
};

// Missing entries are zero or empty: an older daemon's answer is still shown.
Snapshot parse_snapshot(const json::object& list);

// The sum over the GPUs of one member: total(budget.gpus, &Share::charged).
Bytes total(const std::vector<Share>& shares, Bytes Share::* member);

}  // namespace kvram::cli
