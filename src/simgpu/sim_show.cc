#include <fmt/format.h>

#include "base/bytes.h"
#include "simgpu/control.h"
#include "simgpu/gpu_clock.h"
#include "simgpu/machine.h"
#include "simgpu/sim_tool.h"

namespace kvram::simgpu {
namespace {

std::string human(uint64_t bytes) { return format_human(Bytes(static_cast<int64_t>(bytes))); }

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

const char* kind_name(uint32_t kind) {
  switch (static_cast<FaultKind>(kind)) {
    case FaultKind::kSlow:
      return "slow";
    case FaultKind::kHang:
      return "hang";
    case FaultKind::kError:
      return "error";
    default:
      return "none";
  }
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

std::string gpu_json(Machine& machine, uint32_t g) {
  std::vector<std::string> processes;
  for (const ProcessUse& use : machine.processes(g)) {
    processes.push_back(
        fmt::format(R"({{"pid":{},"command":{},"bytes":{}}})", use.pid, quoted(use.command), use.bytes));
  }
  const GpuInfo& info = machine.gpu(g);
  return fmt::format(
      R"({{"index":{},"name":{},"uuid":{},"total":{},"reserved":{},"used":{},"withheld":{},"lost":{},"busy_percent":{},"processes":[{}]}})",
      g, quoted(info.name), quoted(uuid_text(info.uuid)), info.total_bytes, info.reserve_bytes, machine.used(g),
      withheld_bytes(g), gpu_lost(g), clock_utilisation(g).gpu_percent, join(processes));
}

}  // namespace

std::string describe_text(Machine& machine) {
  std::string out = fmt::format("simulated machine {} in {}\n", machine.file().spec, machine.folder());
  for (uint32_t g = 0; g < machine.gpu_count(); ++g) {
    const GpuInfo& info = machine.gpu(g);
    out += fmt::format("GPU {}  {}  {} of {} used, {} reserved{}{}\n", g, info.name, human(machine.used(g)),
                       human(info.total_bytes), human(info.reserve_bytes), gpu_lost(g) ? ", lost" : "",
                       withheld_bytes(g) != 0 ? ", " + human(withheld_bytes(g)) + " withheld" : "");
    for (const ProcessUse& use : machine.processes(g)) {
      out += fmt::format("  pid {:<8} {:<10} {}\n", use.pid, human(use.bytes), use.command);
    }
  }
  for (const FaultRule& rule : control().rules) {
    uint32_t kind = rule.kind.load();
    if (kind == 0) continue;
    out += fmt::format("fault  {} {}{}\n", kind_name(kind), rule.call,
                       rule.value.load() != 0 ? fmt::format(" ({})", rule.value.load()) : "");
  }
  for (const CallCounter& counter : control().calls) {
    if (counter.state.load() == 2)
      out += fmt::format("not modelled  {} ({} calls)\n", counter.name, counter.count.load());
  }
  return out;
}

std::string describe_json(Machine& machine) {
  std::vector<std::string> gpus;
  std::vector<std::string> faults;
  std::vector<std::string> calls;
  for (uint32_t g = 0; g < machine.gpu_count(); ++g) gpus.push_back(gpu_json(machine, g));
  for (const FaultRule& rule : control().rules) {
    uint32_t kind = rule.kind.load();
    if (kind == 0) continue;
    faults.push_back(
        fmt::format(R"({{"kind":"{}","call":{},"value":{}}})", kind_name(kind), quoted(rule.call), rule.value.load()));
  }
  for (const CallCounter& counter : control().calls) {
    if (counter.state.load() != 2) continue;
    calls.push_back(fmt::format(R"({{"call":{},"count":{}}})", quoted(counter.name), counter.count.load()));
  }
  return fmt::format(
             R"({{"simulated":true,"spec":{},"folder":{},"gpus":[{}],"faults":[{}],"not_modelled":[{}],"xids":{}}})",
             quoted(machine.file().spec), quoted(machine.folder()), join(gpus), join(faults), join(calls),
             control().xids.load()) +
         "\n";
}

}  // namespace kvram::simgpu
