// How many refills a second the daemon serves: processes of one budget that ask for more again and again and never
// spend it, so that every question reaches the daemon. While the budget has room a refill is a plain grant; after that
// it takes unspent leases from the others.
//   refills --socket PATH [--processes N] [--seconds S] [--repeat N] [--step BYTES]
// Run it in a budget. Prints JSON: per repetition the refills served, those refused, the seconds, and round-trip times
// of process 0.
#include <fmt/core.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "lease/table.h"
#include "lease/wire.h"

namespace {

namespace lease = kvram::lease;
using Clock = std::chrono::steady_clock;

constexpr int kMaxProcesses = 64;
constexpr int kMaxSamples = 200000;

struct Options {
  std::string socket;
  int processes = 16;
  double seconds = 0.5;
  int repeat = 9;
  uint64_t step_units = lease::to_units(1ULL << 20);
};

// Shared by parent and children.
struct Board {
  std::atomic<int> phase;  // repetition that runs, 0 before the first, -1 at the end
  std::atomic<int> ready;
  std::atomic<uint64_t> served[kMaxProcesses];
  std::atomic<uint64_t> refused[kMaxProcesses];
  int samples;
  float micros[kMaxSamples];
};

[[noreturn]] void die(const std::string& sentence) {
  fmt::print(stderr, "refills: {}: {}\n", sentence, std::strerror(errno));
  std::_Exit(3);
}

lease::Header header(lease::MessageType type, size_t length, uint64_t seq) {
  return lease::Header{.magic = lease::kWireMagic,
                       .version = lease::kWireVersion,
                       .type = static_cast<uint16_t>(type),
                       .length = static_cast<uint32_t>(length),
                       .flags = 0,
                       .reserved = 0,
                       .seq = seq};
}

class Link {
 public:
  explicit Link(const std::string& path) : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) die("the socket's path is too long");
    std::memcpy(address.sun_path, path.c_str(), path.size());
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die("cannot connect to " + path);
    lease::Hello hello{};
    hello.header = header(lease::MessageType::kHello, sizeof hello, 1);
    hello.abi = lease::kAbiVersion;
    if (send(fd_, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) die("cannot send");
    welcome();
  }

  uint64_t available() const {
    return lease::unpack(__atomic_load_n(lease::word_at(table_, gpus_, slot_, 0), __ATOMIC_ACQUIRE)).available;
  }

  uint64_t limit() const { return page_->gpu[0].limit_units; }

  bool refill(uint64_t need_units) {
    lease::Refill ask{};
    ask.header = header(lease::MessageType::kRefill, sizeof ask, ++seq_);
    ask.need_units = need_units;
    ask.asked_bytes = lease::to_bytes(need_units);
    std::strcpy(ask.call, "benchmark");
    lease::RefillReply reply{};
    if (send(fd_, &ask, sizeof ask, MSG_NOSIGNAL) != sizeof ask) die("cannot send");
    if (recv(fd_, &reply, sizeof reply, 0) != sizeof reply || reply.header.seq != seq_)
      die("a reply that makes no sense");
    return reply.status == static_cast<uint32_t>(lease::RefillStatus::kGranted);
  }

 private:
  void welcome() {
    union {
      lease::Welcome welcome;
      lease::Refuse refuse;
    } in{};
    iovec part{&in, sizeof in};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(fd_, &message, MSG_CMSG_CLOEXEC) <= 0) die("no welcome");
    if (in.welcome.header.type != static_cast<uint16_t>(lease::MessageType::kWelcome))
      die(std::string("refused: ") + in.refuse.sentence);
    gpus_ = in.welcome.gpus;
    slot_ = in.welcome.slot;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        map_file(fd);
        close(fd);
      }
    }
    if (table_ == nullptr || page_ == nullptr) die("no lease table or grant page came with the welcome");
  }

  // The lease table is told from the grant page by its size.
  void map_file(int fd) {
    struct stat file{};
    const size_t bytes = lease::table_bytes(gpus_);
    const bool table = fstat(fd, &file) == 0 && static_cast<size_t>(file.st_size) >= bytes;
    void* at = mmap(nullptr, table ? bytes : sizeof(lease::GrantPage), table ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die("cannot map what came with the welcome");
    if (table) {
      table_ = static_cast<uint64_t*>(at);
    } else {
      page_ = static_cast<const lease::GrantPage*>(at);
    }
  }

  int fd_;
  uint64_t seq_ = 1;
  uint64_t* table_ = nullptr;
  const lease::GrantPage* page_ = nullptr;
  uint32_t gpus_ = 0;
  uint32_t slot_ = 0;
};

[[noreturn]] void child(const Options& o, Board* board, int number) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Link link(o.socket);
  board->ready.fetch_add(1);
  for (int phase = 0; phase >= 0; phase = board->phase.load(std::memory_order_relaxed)) {
    if (phase == 0) {
      usleep(1000);
      continue;
    }
    // Half of the budget at most, so that what is asked for can always be had from the others.
    const uint64_t need = link.available() + o.step_units;
    if (need > link.limit() / 2) {
      sched_yield();
      continue;
    }
    const auto start = Clock::now();
    const bool granted = link.refill(need);
    const std::chrono::duration<float, std::micro> took = Clock::now() - start;
    (granted ? board->served : board->refused)[number].fetch_add(1, std::memory_order_relaxed);
    if (number == 0 && board->samples < kMaxSamples) board->micros[board->samples++] = took.count();
  }
  std::_Exit(0);
}

uint64_t sum(const std::atomic<uint64_t>* counters) {
  uint64_t total = 0;
  for (int i = 0; i < kMaxProcesses; ++i) total += counters[i].load();
  return total;
}

void measure(const Options& o, Board* board) {
  fmt::print("{{\"processes\": {}, \"step_bytes\": {}, \"repetitions\": [", o.processes, lease::to_bytes(o.step_units));
  board->phase = 1;
  for (int r = 0; r < o.repeat; ++r) {
    const uint64_t served = sum(board->served);
    const uint64_t refused = sum(board->refused);
    const auto start = Clock::now();
    usleep(static_cast<useconds_t>(o.seconds * 1e6));
    const std::chrono::duration<double> took = Clock::now() - start;
    fmt::print("{}{{\"served\": {}, \"refused\": {}, \"seconds\": {:.4f}}}", r ? ", " : "", sum(board->served) - served,
               sum(board->refused) - refused, took.count());
  }
  board->phase = -1;
  std::vector<float> times(board->micros, board->micros + board->samples);
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return times.empty() ? 0.0F : times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))];
  };
  fmt::print("], \"round_trip_us\": {{\"median\": {:.1f}, \"p99\": {:.1f}, \"samples\": {}}}}}\n", at(0.5), at(0.99),
             times.size());
}

Options parse(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  Options o;
  o.socket = given["--socket"];
  if (given.contains("--processes")) o.processes = std::atoi(given["--processes"].c_str());
  if (given.contains("--seconds")) o.seconds = std::atof(given["--seconds"].c_str());
  if (given.contains("--repeat")) o.repeat = std::atoi(given["--repeat"].c_str());
  if (given.contains("--step")) o.step_units = lease::to_units(std::strtoull(given["--step"].c_str(), nullptr, 10));
  if (o.socket.empty() || o.processes < 1 || o.processes > kMaxProcesses || o.repeat < 1) die("bad options");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  void* shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) die("mmap");
  auto* board = new (shared) Board;
  std::vector<pid_t> children;
  for (int i = 0; i < o.processes; ++i) {
    const pid_t pid = fork();
    if (pid < 0) die("cannot fork");
    if (pid == 0) child(o, board, i);
    children.push_back(pid);
  }
  while (board->ready.load() < o.processes) {
    if (waitpid(-1, nullptr, WNOHANG) > 0) die("a process ended early");
    usleep(1000);
  }
  measure(o, board);
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  return 0;
}
