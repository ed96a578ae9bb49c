#include "simgpu/control.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

namespace kvram::simgpu {
namespace {

struct LocalRule {
  FaultKind kind = FaultKind::kNone;
  uint64_t value = 0;
  std::array<char, kCallNameBytes> call{};
};
// Faults of KUBE_VRAM_SIM_FAULTS: read once, never changed after.
struct LocalRules {
  std::array<LocalRule, 16> rule{};
  uint32_t count = 0;
};

uint64_t parse_duration_ns(std::string_view text) {
  std::string digits(text);
  char* end = nullptr;
  double amount = std::strtod(digits.c_str(), &end);
  std::string_view unit(end);
  double scale = 1e6;  // milliseconds where no unit is given
  if (unit == "s") scale = 1e9;
  if (unit == "us") scale = 1e3;
  if (unit == "ns") scale = 1;
  return amount > 0 ? static_cast<uint64_t>(amount * scale) : 0;
}

// One rule of the variable: "slow:CALL=200ms", "hang:CALL", "error:CALL=CODE".
bool parse_local_rule(std::string_view text, LocalRule& rule) {
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  std::string_view kind = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  std::string_view call = rest.substr(0, rest.find('='));
  std::string value(call.size() < rest.size() ? rest.substr(call.size() + 1) : "");
  if (call.empty() || call.size() >= kCallNameBytes) return false;
  std::memcpy(rule.call.data(), call.data(), call.size());
  if (kind == "slow") {
    rule.kind = FaultKind::kSlow;
    rule.value = parse_duration_ns(value);
  } else if (kind == "hang") {
    rule.kind = FaultKind::kHang;
  } else if (kind == "error") {
    rule.kind = FaultKind::kError;
    rule.value = std::strtoul(value.c_str(), nullptr, 10);
  }
  return rule.kind != FaultKind::kNone;
}

LocalRules read_local_rules() {
  LocalRules rules;
  const char* text = std::getenv("KUBE_VRAM_SIM_FAULTS");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty() && rules.count < rules.rule.size()) {
    std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(one.size() == rest.size() ? one.size() : one.size() + 1);
    if (parse_local_rule(one, rules.rule[rules.count])) {
      ++rules.count;
    } else {
      std::fprintf(stderr, "simulated driver: KUBE_VRAM_SIM_FAULTS has a part it does not know: %.*s\n",
                   static_cast<int>(one.size()), one.data());
    }
  }
  return rules;
}

const LocalRules& local_rules() {
  static const LocalRules rules = read_local_rules();
  return rules;
}

ControlPage* map_page() {
  std::string folder = sim_folder();
  mkdir(folder.c_str(), 0700);
  int fd = open((folder + "/control").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  void* at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(ControlPage)) == 0) {
    at = mmap(nullptr, sizeof(ControlPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (fd >= 0) close(fd);
  if (at == MAP_FAILED) {
    at = mmap(nullptr, sizeof(ControlPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (at == MAP_FAILED) std::abort();  // not even a page of memory: nothing can run here
  return static_cast<ControlPage*>(at);
}

bool names_match(const char* rule, const char* call) {
  return std::strncmp(rule, call, kCallNameBytes) == 0 || std::strcmp(rule, "*") == 0;
}

void sleep_ns(uint64_t ns) {
  timespec rest{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  while (nanosleep(&rest, &rest) != 0) {
  }
}

int apply(FaultKind kind, uint64_t value) {
  if (kind == FaultKind::kSlow) sleep_ns(value);
  while (kind == FaultKind::kHang) pause();
  return kind == FaultKind::kError ? static_cast<int>(value) : 0;
}

// Takes one use of the rule; false when it is used up.
bool take_use(FaultRule& rule) {
  uint32_t left = rule.remaining.load();
  while (left != 0 && left != UINT32_MAX) {
    if (rule.remaining.compare_exchange_weak(left, left - 1)) return true;
  }
  return left == UINT32_MAX;
}

}  // namespace

std::string sim_folder() {
  const char* set = std::getenv("KUBE_VRAM_SIM_DIR");
  if (set != nullptr && *set != '\0') return set;
  return "/dev/shm/kube-vram-sim-" + std::to_string(getuid());
}

ControlPage& control() {
  static ControlPage* const page = map_page();
  return *page;
}

bool faults_armed() { return control().armed.load(std::memory_order_relaxed) != 0 || local_rules().count != 0; }

int fault_at(const char* call) {
  const LocalRules& local = local_rules();
  for (uint32_t i = 0; i < local.count; ++i) {
    if (!names_match(local.rule[i].call.data(), call)) continue;
    if (int code = apply(local.rule[i].kind, local.rule[i].value)) return code;
  }
  if (control().armed.load() == 0) return 0;
  for (FaultRule& rule : control().rules) {
    auto kind = static_cast<FaultKind>(rule.kind.load(std::memory_order_acquire));
    if (kind == FaultKind::kNone || !names_match(rule.call, call) || !take_use(rule)) continue;
    // A hang ends when the fault is cleared, so that a test can let its program go.
    while (kind == FaultKind::kHang && rule.kind.load() == static_cast<uint32_t>(FaultKind::kHang)) sleep_ns(5000000);
    if (kind == FaultKind::kHang) continue;
    if (int code = apply(kind, rule.value.load())) return code;
  }
  return 0;
}

bool gpu_lost(uint32_t gpu) {
  return gpu < kControlGpus && (control().lost_mask.load(std::memory_order_relaxed) >> gpu & 1) != 0;
}

uint64_t withheld_bytes(uint32_t gpu) {
  return gpu < kControlGpus ? control().withheld[gpu].load(std::memory_order_relaxed) : 0;
}

void count_unsupported(const char* call) {
  for (CallCounter& counter : control().calls) {
    uint32_t state = 0;
    if (counter.state.compare_exchange_strong(state, 1)) {
      std::strncpy(counter.name, call, kCallNameBytes - 1);
      counter.count.store(1);
      counter.state.store(2, std::memory_order_release);
      return;
    }
    if (state == 2 && std::strncmp(counter.name, call, kCallNameBytes - 1) == 0) {
      counter.count.fetch_add(1);
      return;
    }
  }
}

bool add_rule(FaultKind kind, std::string_view call, uint64_t value, uint32_t times) {
  if (call.empty() || call.size() >= kCallNameBytes) return false;
  for (FaultRule& rule : control().rules) {
    if (rule.kind.load() != 0) continue;
    std::memset(rule.call, 0, kCallNameBytes);
    std::memcpy(rule.call, call.data(), call.size());
    rule.value.store(value);
    rule.remaining.store(times);
    rule.kind.store(static_cast<uint32_t>(kind), std::memory_order_release);
    control().armed.fetch_add(1);
    return true;
  }
  return false;
}

void set_lost(uint32_t gpu, bool lost) {
  if (gpu >= kControlGpus) return;
  if (lost) {
    control().lost_mask.fetch_or(1U << gpu);
  } else {
    control().lost_mask.fetch_and(~(1U << gpu));
  }
}

void raise_xid(uint32_t gpu, uint32_t xid) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  ControlPage& page = control();
  uint64_t seq = page.xids.fetch_add(1) + 1;
  XidEvent& event = page.ring[seq % kXidRing];
  event.seq.store(0);
  event.gpu = gpu;
  event.xid = xid;
  event.unix_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
  event.seq.store(seq, std::memory_order_release);
  int fd = open((sim_folder() + "/xid.log").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  char line[200];
  int length = std::snprintf(line, sizeof(line), "[%lld.%06ld] NVRM: Xid (PCI:0000:%02x:00): %u, pid=%d, name=%s, %s\n",
                             static_cast<long long>(now.tv_sec), now.tv_nsec / 1000, gpu + 1, xid,
                             static_cast<int>(getpid()), "vram-sim", xid_text(xid));
  if (length > 0 && write(fd, line, static_cast<size_t>(length)) < 0) {
    std::fprintf(stderr, "simulated driver: cannot write xid.log: %s\n", std::strerror(errno));
  }
  close(fd);
}

void clear_faults() {
  ControlPage& page = control();
  page.armed.store(0);
  page.lost_mask.store(0);
  for (auto& bytes : page.withheld) bytes.store(0);
  for (FaultRule& rule : page.rules) rule.kind.store(0);
}

const char* xid_text(uint32_t xid) {
  switch (xid) {
    case 13:
      return "Graphics Engine Exception";
    case 31:
      return "MMU Fault";
    case 43:
      return "Ch 00000010, engmask 00000101";
    case 45:
      return "Preemptive Channel Removal";
    case 48:
      return "Double Bit ECC Error";
    case 63:
      return "Row Remapper: New row marked for remapping";
    case 74:
      return "NVLink Error";
    case 79:
      return "GPU has fallen off the bus.";
    case 94:
      return "Contained ECC error";
    case 95:
      return "Uncontained ECC error";
    case 119:
      return "Timeout waiting for RPC from GSP!";
    default:
      return "injected by vram-sim";
  }
}

}  // namespace kvram::simgpu
