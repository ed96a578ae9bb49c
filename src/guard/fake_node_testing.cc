#include "guard/fake_node_testing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace kvram::guard {
using lease::MessageType;

namespace {
void* shared_file(const char* name, size_t bytes, int* fd) {
  *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0 || ftruncate(*fd, static_cast<off_t>(bytes)) != 0) abort();
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (at == MAP_FAILED) abort();
  return at;
}

lease::Header header_of(MessageType type, size_t bytes, uint64_t seq) {
  return {lease::kWireMagic, lease::kWireVersion, static_cast<uint16_t>(type), static_cast<uint32_t>(bytes), 0, 0, seq};
}

void send_with(int fd, const void* data, size_t bytes, const std::vector<int>& fds) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (!fds.empty()) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  [[maybe_unused]] const ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
}
}  // namespace

FakeNode::FakeNode(Options options) : options_(std::move(options)) {
  table_ = static_cast<uint64_t*>(shared_file("lease", lease::table_bytes(1), &lease_fd_));
  page_ = static_cast<lease::GrantPage*>(shared_file("grant", lease::kGrantBytes, &page_fd_));
  page_->magic = lease::kGrantMagic;
  page_->abi = lease::kAbiVersion;
  page_->budget_id = 7;
  page_->gpus = 1;
  page_->gpu[0].limit_units = lease::to_units(options_.limit);
  page_->gpu[0].cost = options_.cost;
  start();
}

void FakeNode::start() {
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, options_.socket.c_str(), sizeof address.sun_path - 1);
  unlink(options_.socket.c_str());
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener_, 64) != 0)
    abort();
  if (pipe2(wake_, O_CLOEXEC) != 0) abort();
  thread_ = std::thread([this] { serve(); });
}

void FakeNode::stop() {
  if (!thread_.joinable()) return;
  [[maybe_unused]] const ssize_t n = write(wake_[1], "x", 1);
  thread_.join();
  const std::lock_guard hold(mutex_);
  for (const auto& [fd, slot] : slot_of_fd_) close(fd);
  slot_of_fd_.clear();
  close(listener_);
  close(wake_[0]);
  close(wake_[1]);
  unlink(options_.socket.c_str());
}

FakeNode::~FakeNode() {
  stop();
  munmap(table_, lease::table_bytes(1));
  munmap(page_, lease::kGrantBytes);
  close(lease_fd_);
  close(page_fd_);
}

void FakeNode::serve() {
  for (;;) {
    std::vector<pollfd> all{{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
    {
      const std::lock_guard hold(mutex_);
      for (const auto& [fd, slot] : slot_of_fd_) all.push_back({fd, POLLIN, 0});
    }
    if (poll(all.data(), all.size(), -1) < 0) continue;
    if (all[0].revents != 0) return;
    const std::lock_guard hold(mutex_);
    if (all[1].revents != 0) slot_of_fd_[accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)] = UINT32_MAX;
    for (size_t i = 2; i < all.size(); ++i) {
      if (all[i].revents == 0) continue;
      std::vector<char> packet(lease::kMaxMessage);
      iovec part{packet.data(), packet.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      msghdr m{};
      m.msg_iov = &part;
      m.msg_iovlen = 1;
      m.msg_control = control;
      m.msg_controllen = sizeof control;
      const ssize_t n = recvmsg(all[i].fd, &m, MSG_CMSG_CLOEXEC);
      int passed = -1;
      if (cmsghdr* c = n > 0 ? CMSG_FIRSTHDR(&m) : nullptr) memcpy(&passed, CMSG_DATA(c), sizeof passed);
      if (n <= 0) {
        close(all[i].fd);
        slot_of_fd_.erase(all[i].fd);
        continue;
      }
      packet.resize(static_cast<size_t>(n));
      handle(all[i].fd, packet, passed);
      if (passed >= 0) close(passed);
    }
  }
}

void FakeNode::handle(int fd, const std::vector<char>& packet, int passed_fd) {
  lease::Header h{};
  memcpy(&h, packet.data(), sizeof h);
  const auto as = [&packet]<typename T>(T value) {
    memcpy(&value, packet.data(), sizeof value < packet.size() ? sizeof value : packet.size());
    return value;
  };
  const uint32_t slot = slot_of_fd_[fd];
  switch (static_cast<MessageType>(h.type)) {
    case MessageType::kHello:
      return hello(fd, as(lease::Hello{}), passed_fd);
    case MessageType::kRefill:
      return refill(fd, as(lease::Refill{}));
    case MessageType::kOvercome:
      seen_.overcome.push_back(as(lease::Overcome{}).oom_id);
      return;
    case MessageType::kPhysicalOom:
      seen_.physical.push_back(as(lease::PhysicalOom{}).asked_bytes);
      return;
    case MessageType::kReleaseShared: {
      const auto m = as(lease::ReleaseShared{});
      seen_.shared += m.units;
      granted_[slot] -= m.units;
      return reply_refill(fd, h.seq, lease::RefillStatus::kGranted, slot, 0);
    }
    default:
      return;
  }
}

void FakeNode::hello(int fd, const lease::Hello& m, int passed_fd) {
  ++seen_.hellos;
  seen_.unknown_symbols = m.unknown_symbols;
  if (options_.refuse_all) {
    lease::Refuse no{};
    no.header = header_of(MessageType::kRefuse, sizeof no, m.header.seq);
    strcpy(no.sentence, "This process belongs to no budget.");
    return send_with(fd, &no, sizeof no, {});
  }
  uint32_t slot = m.slot;
  if (m.observer != 0) {
    ++seen_.observers;
    slot = 0;
  } else if (m.replay != 0) {
    struct stat ours{};
    struct stat theirs{};
    fstat(lease_fd_, &ours);
    if (passed_fd < 0 || fstat(passed_fd, &theirs) != 0 || ours.st_ino != theirs.st_ino || slot >= granted_.size())
      return;
    ++seen_.replays;
  } else {
    slot = static_cast<uint32_t>(granted_.size());
    granted_.push_back(0);
    lease::slot_pids(page_)[slot] = static_cast<uint32_t>(getpid());
    __atomic_store_n(&page_->slots_used, slot + 1, __ATOMIC_RELEASE);
  }
  if (m.observer == 0) slot_of_fd_[fd] = slot;
  lease::Welcome yes{};
  yes.header = header_of(MessageType::kWelcome, sizeof yes, m.header.seq);
  yes.budget_id = 7;
  yes.slot = slot;
  yes.gpus = 1;
  send_with(fd, &yes, sizeof yes, {lease_fd_, page_fd_});
}

uint64_t FakeNode::recall(uint32_t except, uint64_t most) {
  uint64_t got = 0;
  for (uint32_t s = 0; s < granted_.size() && got < most; ++s) {
    if (s == except) continue;
    uint64_t* word = lease::word_at(table_, 1, s, 0);
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    for (;;) {
      lease::Word w = lease::unpack(seen);
      const uint64_t take = w.available < most - got ? w.available : most - got;
      if (take == 0) break;
      const uint64_t next = lease::pack({w.seq + 1, w.available - take});
      if (!__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
      granted_[s] -= take;
      got += take;
      break;
    }
  }
  return got;
}

void FakeNode::refill(int fd, const lease::Refill& m) {
  ++seen_.refills;
  const uint32_t slot = slot_of_fd_[fd];
  uint64_t* word = lease::word_at(table_, 1, slot, 0);
  const uint64_t has = lease::unpack(__atomic_load_n(word, __ATOMIC_ACQUIRE)).available;
  uint64_t more = m.need_units > has ? m.need_units - has : 0;
  uint64_t total = 0;
  for (const uint64_t g : granted_) total += g;
  const uint64_t limit = page_->gpu[0].limit_units;
  uint64_t room = limit > total ? limit - total : 0;
  if (room < more) {
    room += recall(slot, more - room);
    total = limit - room;
  }
  if (room < more) {
    seen_.refused_calls.emplace_back(m.call);
    return reply_refill(fd, m.header.seq, lease::RefillStatus::kRefused, slot, next_oom_++);
  }
  if (more < lease::to_units(options_.step)) more = lease::to_units(options_.step);
  if (more > room) more = room;
  granted_[slot] += more;
  __atomic_fetch_add(word, more, __ATOMIC_ACQ_REL);
  reply_refill(fd, m.header.seq, lease::RefillStatus::kGranted, slot, 0);
}

void FakeNode::reply_refill(int fd, uint64_t seq, lease::RefillStatus status, uint32_t slot, uint64_t oom) {
  uint64_t total = 0;
  for (const uint64_t g : granted_) total += g;
  __atomic_store_n(&page_->gpu[0].granted_units, total, __ATOMIC_RELEASE);
  lease::RefillReply r{};
  r.header = header_of(MessageType::kRefillReply, sizeof r, seq);
  r.status = static_cast<uint32_t>(status);
  r.oom_id = oom;
  r.granted_units = granted_[slot];
  send_with(fd, &r, sizeof r, {});
}

void FakeNode::set_limit(uint64_t bytes) {
  const std::lock_guard hold(mutex_);
  recall(UINT32_MAX, UINT64_MAX);
  page_->gpu[0].limit_units = lease::to_units(bytes);
}

uint64_t FakeNode::charged_of(uint32_t slot) {
  const std::lock_guard hold(mutex_);
  const uint64_t available =
      lease::unpack(__atomic_load_n(lease::word_at(table_, 1, slot, 0), __ATOMIC_ACQUIRE)).available;
  return lease::to_bytes(granted_[slot] - available);
}
uint32_t FakeNode::slots() {
  const std::lock_guard hold(mutex_);
  return static_cast<uint32_t>(granted_.size());
}
uint64_t FakeNode::charged() {
  uint64_t sum = 0;
  for (uint32_t s = 0; s < slots(); ++s) sum += charged_of(s);
  return sum;
}
FakeNode::Seen FakeNode::seen() {
  const std::lock_guard hold(mutex_);
  return seen_;
}

}  // namespace kvram::guard
