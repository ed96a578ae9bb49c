#include "simgpu/gpu_clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "simgpu/control.h"

namespace kvram::simgpu {
namespace {

constexpr uint32_t kSlots = 128;     // processes with work on one GPU
constexpr uint32_t kHistory = 1024;  // power of two
constexpr uint64_t kWindowNs = 250000000;
constexpr uint64_t kReapNs = 20000000;
constexpr uint64_t kMagic = 0x6b76636c6f636b31;

struct Snapshot {
  uint64_t at_ns;
  uint64_t amount_ns;
};

// The last two snapshots of a growing amount: its rate over the last one to two windows.
struct Window {
  Snapshot older;
  Snapshot newer;
};

struct Slot {
  uint32_t pid;  // 0: free
  uint32_t reserved;
  uint64_t start_time;
  Tag finish;
  uint64_t service_ns;
  Window window;
};

struct Point {
  uint64_t real_ns;
  Tag v;
};

struct State {
  pthread_mutex_t lock;
  uint64_t last_ns;
  Tag v;
  uint64_t busy_ns;
  uint64_t reaped_ns;
  uint64_t points;  // pushed so far
  uint32_t slots_used;
  Window window;
  Slot slot[kSlots];
  Point point[kHistory];
};

struct ClockFile {
  std::atomic<uint64_t> magic;
  State gpu[kControlGpus];
};

struct Mapping {
  ClockFile* file = nullptr;
  int lock_fd = -1;  // a byte per slot, locked by the process that has it; never closed, or the locks would go
};

void init_file(ClockFile* file) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (State& state : file->gpu) {
    pthread_mutex_init(&state.lock, &attributes);
    state.last_ns = real_now_ns();
  }
  pthread_mutexattr_destroy(&attributes);
  file->magic.store(kMagic, std::memory_order_release);
}

Mapping map_clock() {
  Mapping mapping;
  std::string folder = sim_folder();
  mkdir(folder.c_str(), 0700);
  int fd = open((folder + "/clock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  mapping.lock_fd = open((folder + "/clock.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  void* at = MAP_FAILED;
  if (fd >= 0 && flock(fd, LOCK_EX) == 0 && ftruncate(fd, sizeof(ClockFile)) == 0) {
    at = mmap(nullptr, sizeof(ClockFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (at == MAP_FAILED) {
    at = mmap(nullptr, sizeof(ClockFile), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (at == MAP_FAILED) std::abort();  // not even a few pages of memory: nothing can run here
  mapping.file = static_cast<ClockFile*>(at);
  if (mapping.file->magic.load(std::memory_order_acquire) != kMagic) init_file(mapping.file);
  if (fd >= 0) {
    flock(fd, LOCK_UN);  // the mapping keeps the open file, and with it the lock
    close(fd);
  }
  return mapping;
}

const Mapping& mapping() {
  static const Mapping mapped = map_clock();
  return mapped;
}

// When this process started, in clock ticks since boot: with the pid it names a process for good.
uint64_t read_start_time() {
  std::array<char, 1024> text{};
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text.data(), text.size() - 1);
  close(fd);
  const char* at = got > 0 ? std::strrchr(text.data(), ')') : nullptr;
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

struct Self {
  std::atomic<uint32_t> pid{0};  // 0: not looked up yet (also after a fork)
  uint64_t start_time = 0;
  std::array<std::atomic<uint32_t>, kControlGpus> slot{};  // index + 1
};
Self g_self;

void forget_self() {
  g_self.pid.store(0);
  for (auto& slot : g_self.slot) slot.store(0);
}

void learn_self() {
  if (g_self.pid.load(std::memory_order_acquire) != 0) return;
  static const int once = pthread_atfork(nullptr, nullptr, forget_self);
  (void)once;
  g_self.start_time = read_start_time();
  g_self.pid.store(static_cast<uint32_t>(getpid()), std::memory_order_release);
}

struct flock slot_lock(uint32_t gpu, uint32_t slot, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(gpu) * kSlots + slot;
  lock.l_len = 1;
  return lock;
}

bool slot_alive(uint32_t gpu, uint32_t index, const Slot& slot) {
  if (slot.pid == g_self.pid.load() && slot.start_time == g_self.start_time) return true;
  struct flock lock = slot_lock(gpu, index, F_WRLCK);
  return fcntl(mapping().lock_fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void roll(Window& window, uint64_t now_ns, uint64_t amount_ns) {
  if (now_ns < window.newer.at_ns + kWindowNs) return;
  window.older = window.newer;
  window.newer = Snapshot{now_ns, amount_ns};
}
// After a gap in which nothing grew.
void restart(Window& window, uint64_t now_ns, uint64_t amount_ns) {
  window.older = Snapshot{now_ns - kWindowNs, amount_ns};
  window.newer = Snapshot{now_ns, amount_ns};
}

uint32_t rate_percent(const Window& window, uint64_t now_ns, uint64_t amount_ns) {
  uint64_t elapsed = now_ns - std::min(now_ns, window.older.at_ns);
  if (elapsed == 0) return 0;
  uint64_t grown = amount_ns - std::min(amount_ns, window.older.amount_ns);
  return static_cast<uint32_t>(std::min<uint64_t>(100, (grown * 100 + elapsed / 2) / elapsed));
}

// A GPU's state under its lock, brought up to now.
class Locked {
 public:
  explicit Locked(uint32_t gpu) : gpu_(gpu % kControlGpus), state_(mapping().file->gpu[gpu_]) {
    learn_self();
    // A process that died inside leaves fields that are each valid; the sums may lack its last step, no more.
    if (pthread_mutex_lock(&state_.lock) == EOWNERDEAD) pthread_mutex_consistent(&state_.lock);
    now_ns_ = real_now_ns();
    if (now_ns_ > state_.reaped_ns + kReapNs) reap();
    advance();
  }
  ~Locked() { pthread_mutex_unlock(&state_.lock); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  State& state() { return state_; }
  uint64_t now_ns() const { return now_ns_; }

  uint32_t active() const {
    uint32_t n = 0;
    for (uint32_t i = 0; i < state_.slots_used; ++i) n += state_.slot[i].finish > state_.v ? 1 : 0;
    return n;
  }

  void push_point() {
    state_.point[state_.points % kHistory] = Point{state_.last_ns, state_.v};
    ++state_.points;
  }

  Slot* own_slot() {
    uint32_t known = g_self.slot[gpu_].load(std::memory_order_relaxed);
    if (known != 0) return &state_.slot[known - 1];
    for (uint32_t i = 0; i < kSlots; ++i) {
      Slot& slot = state_.slot[i];
      if (slot.pid != 0 && (slot.finish > state_.v || slot_alive(gpu_, i, slot))) continue;
      struct flock lock = slot_lock(gpu_, i, F_WRLCK);
      if (fcntl(mapping().lock_fd, F_SETLK, &lock) != 0) continue;
      Window fresh{{state_.last_ns, 0}, {state_.last_ns, 0}};
      slot = Slot{g_self.pid.load(), 0, g_self.start_time, 0, 0, fresh};
      state_.slots_used = std::max(state_.slots_used, i + 1);
      g_self.slot[gpu_].store(i + 1);
      return &slot;
    }
    return nullptr;  // more processes than slots: this one's work takes time, but nobody else's
  }

  // Real nanoseconds until `tag`, if nobody else comes.
  uint64_t eta_ns(Tag tag) const {
    uint64_t total = 0;
    for (Tag at = state_.v; at < tag;) {
      uint64_t n = 0;
      Tag next = tag;
      for (uint32_t i = 0; i < state_.slots_used; ++i) {
        Tag finish = state_.slot[i].finish;
        if (finish <= at) continue;
        ++n;
        next = std::min(next, finish);
      }
      total += (next - at) * std::max<uint64_t>(n, 1);
      at = next;
    }
    return total;
  }

 private:
  void reap() {
    state_.reaped_ns = now_ns_;
    for (uint32_t i = 0; i < state_.slots_used; ++i) {
      Slot& slot = state_.slot[i];
      if (slot.finish <= state_.v || slot_alive(gpu_, i, slot)) continue;
      push_point();
      slot.finish = state_.v;
    }
  }

  void serve(Tag amount, uint64_t real_ns) {
    for (uint32_t i = 0; i < state_.slots_used; ++i) {
      Slot& slot = state_.slot[i];
      if (slot.finish <= state_.v) continue;
      slot.service_ns += amount;
    }
    state_.busy_ns += real_ns;
    state_.v += amount;
    state_.last_ns += real_ns;
    roll(state_.window, state_.last_ns, state_.busy_ns);
    for (uint32_t i = 0; i < state_.slots_used; ++i) {
      roll(state_.slot[i].window, state_.last_ns, state_.slot[i].service_ns);
    }
  }

  void idle() {
    bool long_gap = now_ns_ >= state_.last_ns + 2 * kWindowNs;
    state_.last_ns = now_ns_;
    if (!long_gap) return serve(0, 0);
    restart(state_.window, now_ns_, state_.busy_ns);
    for (uint32_t i = 0; i < state_.slots_used; ++i) restart(state_.slot[i].window, now_ns_, state_.slot[i].service_ns);
  }

  void advance() {
    while (state_.last_ns < now_ns_) {
      uint64_t n = 0;
      Tag next = UINT64_MAX;
      for (uint32_t i = 0; i < state_.slots_used; ++i) {
        Tag finish = state_.slot[i].finish;
        if (finish <= state_.v) continue;
        ++n;
        next = std::min(next, finish);
      }
      if (n == 0) return idle();
      uint64_t to_next = (next - state_.v) * n;
      if (state_.last_ns + to_next <= now_ns_) {
        serve(next - state_.v, to_next);
        push_point();
      } else {
        // The rest of the division stays for the next time, so that frequent looks do not slow the clock.
        Tag amount = (now_ns_ - state_.last_ns) / n;
        serve(amount, amount * n);
        return;
      }
    }
  }

  uint32_t gpu_;
  State& state_;
  uint64_t now_ns_ = 0;
};

void rest_ns(uint64_t ns) {
  if (ns < 60000) {  // shorter than the kernel's timer slack: give others the core and look again
    sched_yield();
    return;
  }
  timespec rest{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  nanosleep(&rest, nullptr);
}

}  // namespace

uint64_t real_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

Tag clock_append(uint32_t gpu, Tag after, uint64_t gpu_ns, Tag* now) {
  Locked locked(gpu);
  State& state = locked.state();
  if (now != nullptr) *now = state.v;
  Tag tag = std::max(after, state.v) + gpu_ns;
  if (tag <= state.v) return tag;
  if (Slot* slot = locked.own_slot()) {
    if (slot->finish <= state.v) locked.push_point();
    slot->finish = std::max(slot->finish, tag);
  }
  return tag;
}

Tag clock_now(uint32_t gpu) { return Locked(gpu).state().v; }

bool clock_reached(uint32_t gpu, Tag tag) { return clock_now(gpu) >= tag; }

uint64_t clock_reached_at(uint32_t gpu, Tag tag) {
  Locked locked(gpu);
  State& state = locked.state();
  if (state.v < tag) return locked.now_ns();
  uint64_t count = std::min<uint64_t>(state.points, kHistory);
  Point after{state.last_ns, state.v};
  for (uint64_t back = 1; back <= count; ++back) {
    const Point& point = state.point[(state.points - back) % kHistory];
    if (point.v >= tag) {
      after = point;
      continue;
    }
    // Between two points the speed is constant.
    uint64_t span = after.v - point.v;
    uint64_t part = tag - point.v;
    auto scaled = static_cast<unsigned __int128>(after.real_ns - point.real_ns) * part / std::max<uint64_t>(span, 1);
    return point.real_ns + static_cast<uint64_t>(scaled);
  }
  return after.real_ns;
}

bool clock_wait(uint32_t gpu, Tag tag) {
  for (;;) {
    if (gpu_lost(gpu)) return false;
    uint64_t eta = 0;
    {
      Locked locked(gpu);
      if (locked.state().v >= tag) return true;
      eta = locked.eta_ns(tag);
    }
    // Looked at again at least every 50 ms: others leave, and the GPU may be lost.
    rest_ns(std::min<uint64_t>(eta > 120000 ? eta - 60000 : eta, 50000000));
  }
}

Utilisation clock_utilisation(uint32_t gpu) {
  Locked locked(gpu);
  State& state = locked.state();
  return Utilisation{rate_percent(state.window, locked.now_ns(), state.busy_ns), state.busy_ns};
}

ProcessShare clock_process_share(uint32_t gpu, uint32_t pid) {
  Locked locked(gpu);
  State& state = locked.state();
  for (uint32_t i = 0; i < state.slots_used; ++i) {
    const Slot& slot = state.slot[i];
    if (slot.pid == pid)
      return ProcessShare{rate_percent(slot.window, locked.now_ns(), slot.service_ns), slot.service_ns};
  }
  return ProcessShare{0, 0};
}

uint32_t clock_active(uint32_t gpu) { return Locked(gpu).active(); }

}  // namespace kvram::simgpu
