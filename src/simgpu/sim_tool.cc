#include "simgpu/sim_tool.h"

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/bytes.h"
#include "simgpu/control.h"
#include "simgpu/machine.h"

namespace kvram::simgpu {
namespace {

constexpr char kUsage[] =
    "vram-sim: the simulated machine of KUBE_VRAM_SIM_DIR\n"
    "  vram-sim show [--json]                 GPUs, processes, faults, calls that are not modelled\n"
    "  vram-sim hold BYTES [--gpu N] [--for SECONDS]\n"
    "                                         a program outside kube-vram that holds memory\n"
    "  vram-sim fault gpu-lost N              the GPU falls off the bus (and Xid 79)\n"
    "  vram-sim fault xid N CODE              an Xid event and its line in xid.log\n"
    "  vram-sim fault slow CALL TIME [COUNT]  a driver call takes longer: 200ms, 1s\n"
    "  vram-sim fault hang CALL [COUNT]       a driver call does not return until the faults are cleared\n"
    "  vram-sim fault error CALL CODE [COUNT] a driver call (cu... or nvml...) returns a code; nvml-error is the same\n"
    "  vram-sim fault phys-oom N BYTES        so much is shown as free and refused all the same\n"
    "  vram-sim hidden PID N BYTES            a process gets memory that no call shows\n"
    "  vram-sim clear                         ends all faults\n";

using Words = std::vector<std::string>;

int usage(const std::string& why) {
  std::fprintf(stderr, "vram-sim: %s\n%s", why.c_str(), kUsage);
  return 64;
}

std::optional<uint64_t> whole_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 18)
    return std::nullopt;
  return std::strtoull(text.c_str(), nullptr, 10);
}

std::optional<uint64_t> amount(const std::string& text) {
  auto parsed = parse_quantity(text);
  if (!parsed) return std::nullopt;
  return static_cast<uint64_t>(parsed->count());
}

std::optional<uint64_t> duration_ns(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  std::string unit(end);
  double scale = unit == "s" ? 1e9 : unit == "us" ? 1e3 : unit == "ms" ? 1e6 : 0;
  if (end == text.c_str() || scale == 0 || value <= 0 || value * scale > 1e15) return std::nullopt;
  return static_cast<uint64_t>(value * scale);
}

std::unique_ptr<Machine> open_machine() {
  auto machine = Machine::open(sim_folder(), spec_from_environment(), false);
  if (machine) return std::move(*machine);
  std::fprintf(stderr, "vram-sim: %s\n", machine.error().message.c_str());
  return nullptr;
}

std::optional<uint32_t> gpu_of(const std::string& text) {
  std::optional<uint64_t> index = whole_number(text);
  if (!index || *index >= kControlGpus) return std::nullopt;
  return static_cast<uint32_t>(*index);
}

// "slow CALL TIME", "hang CALL", "error CALL CODE", each with an optional count behind.
int call_fault(FaultKind kind, const Words& words) {
  size_t values = kind == FaultKind::kHang ? 1 : 2;
  if (words.size() < 1 + values || words.size() > 2 + values) return usage("'" + words[0] + "' does not fit");
  std::optional<uint64_t> value = 0;
  if (kind == FaultKind::kSlow) value = duration_ns(words[2]);
  if (kind == FaultKind::kError) value = whole_number(words[2]);
  if (!value) return usage("'" + words[2] + "' is no " + (kind == FaultKind::kSlow ? "time" : "code"));
  uint32_t times = UINT32_MAX;
  if (words.size() == 2 + values) {
    std::optional<uint64_t> count = whole_number(words.back());
    if (!count || *count == 0 || *count >= UINT32_MAX) return usage("'" + words.back() + "' is no count");
    times = static_cast<uint32_t>(*count);
  }
  if (add_rule(kind, words[1], *value, times)) return 0;
  std::fprintf(stderr, "vram-sim: all %u faults are in use, or the name is too long; `vram-sim clear` ends them\n",
               kFaultRules);
  return 1;
}

int gpu_fault(const Words& words) {
  std::optional<uint32_t> gpu = words.size() > 1 ? gpu_of(words[1]) : std::nullopt;
  if (!gpu) return usage("'" + words[0] + "' needs the index of a GPU");
  if (words[0] == "gpu-lost" && words.size() == 2) {
    set_lost(*gpu, true);
    raise_xid(*gpu, 79);
    return 0;
  }
  if (words.size() != 3) return usage("'" + words[0] + "' does not fit");
  if (words[0] == "xid") {
    std::optional<uint64_t> code = whole_number(words[2]);
    if (!code || *code > 9999) return usage("'" + words[2] + "' is no Xid");
    raise_xid(*gpu, static_cast<uint32_t>(*code));
    return 0;
  }
  std::optional<uint64_t> bytes = amount(words[2]);
  if (!bytes) return usage("'" + words[2] + "' is no quantity of memory");
  control().withheld[*gpu].store(*bytes);
  return 0;
}

int fault(const Words& words) {
  if (words.empty()) return usage("which fault?");
  const std::string& kind = words[0];
  if (kind == "gpu-lost" || kind == "xid" || kind == "phys-oom") return gpu_fault(words);
  if (kind == "slow") return call_fault(FaultKind::kSlow, words);
  if (kind == "hang") return call_fault(FaultKind::kHang, words);
  if (kind == "error" || kind == "nvml-error") return call_fault(FaultKind::kError, words);
  return usage("there is no fault '" + kind + "'");
}

// Adds to what a live process holds, behind its back.
int hidden(const Words& words) {
  std::optional<uint64_t> pid = words.size() == 3 ? whole_number(words[0]) : std::nullopt;
  std::optional<uint32_t> gpu = words.size() == 3 ? gpu_of(words[1]) : std::nullopt;
  std::optional<uint64_t> bytes = words.size() == 3 ? amount(words[2]) : std::nullopt;
  if (!pid || !gpu || !bytes) return usage("hidden takes a pid, a GPU and a quantity of memory");
  std::unique_ptr<Machine> machine = open_machine();
  if (!machine) return 1;
  if (*gpu >= machine->gpu_count()) return usage("there is no GPU " + words[1]);
  for (const ProcessUse& use : machine->processes(*gpu)) {
    if (use.pid != static_cast<int32_t>(*pid)) continue;
    if (machine->free_bytes(*gpu) < *bytes) {
      std::fprintf(stderr, "vram-sim: not so much is free on GPU %u\n", *gpu);
      return 1;
    }
    Machine::Lock lock(machine->file());
    __atomic_fetch_add(&machine->file().slot[use.slot].resident[*gpu], *bytes, __ATOMIC_ACQ_REL);
    return 0;
  }
  std::fprintf(stderr, "vram-sim: process %s holds nothing on GPU %u\n", words[0].c_str(), *gpu);
  return 1;
}

int hold(const Words& words) {
  std::optional<uint64_t> bytes = words.empty() ? std::nullopt : amount(words[0]);
  if (!bytes) return usage("hold takes a quantity of memory");
  uint32_t gpu = 0;
  double seconds = 0;
  for (size_t i = 1; i < words.size(); i += 2) {
    if (i + 1 >= words.size()) return usage("'" + words[i] + "' has no value");
    if (words[i] == "--gpu") {
      std::optional<uint32_t> index = gpu_of(words[i + 1]);
      if (!index) return usage("'" + words[i + 1] + "' is no GPU");
      gpu = *index;
    } else if (words[i] == "--for") {
      seconds = std::strtod(words[i + 1].c_str(), nullptr);
      if (seconds <= 0) return usage("'" + words[i + 1] + "' is no number of seconds");
    } else {
      return usage("there is no option '" + words[i] + "'");
    }
  }
  return hold_memory(*bytes, static_cast<int>(gpu), seconds);
}

int show(const Words& words) {
  bool json = words.size() == 1 && words[0] == "--json";
  if (!words.empty() && !json) return usage("show takes --json alone");
  std::unique_ptr<Machine> machine = open_machine();
  if (!machine) return 1;
  std::string text = json ? describe_json(*machine) : describe_text(*machine);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

int run_tool(int argc, char** argv) {
  Words words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (words.empty()) return usage("what to do?");
  std::string command = words[0];
  words.erase(words.begin());
  if (command == "show") return show(words);
  if (command == "hold") return hold(words);
  if (command == "fault") return fault(words);
  if (command == "hidden") return hidden(words);
  if (command == "clear") {
    clear_faults();
    return 0;
  }
  if (command == "--help" || command == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  return usage("there is no command '" + command + "'");
}

}  // namespace kvram::simgpu
