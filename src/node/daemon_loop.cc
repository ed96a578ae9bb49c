// Connections and messages: accepting, limits, reading, checking, sending.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "node/daemon.h"
#include "node/daemon_util.h"
#include "node/process.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvram::node {
namespace {

constexpr size_t kIdlePerUser = 256;      // connections of one user that hold no slot and do not wait
constexpr double kSilentSeconds = 5;      // until the first message
constexpr double kIdleSeconds = 60;       // between requests
constexpr size_t kMaxQueued = 16u << 20;  // bytes that a connection may leave unread
constexpr size_t kMaxFdsOfMessage = 4;
constexpr int kEventsAtOnce = 64;
constexpr double kIdleExitSeconds = 600;

bool counts_as_idle(const Connection& c) {
  return (c.kind == ConnectionKind::kSilent || c.kind == ConnectionKind::kControl) && c.waiter == 0 && c.budget == 0;
}

}  // namespace

int Daemon::run() {
  tick();
  arm_timer();
  while (!stopping_) {
    if (!step(-1)) return error_info(ErrorCode::kInternal).exit_status;
  }
  write_journals();
  return 0;
}

bool Daemon::step(int timeout_ms) {
  epoll_event events[kEventsAtOnce];
  int count = epoll_wait(epoll_, events, kEventsAtOnce, timeout_ms);
  if (count < 0 && errno != EINTR) return false;
  bool look = false;
  for (int i = 0; i < count; ++i) look = handle_event(events[i].data.u64, events[i].events) || look;
  if (look) {
    look_at_ = 0;
    tick();
  }
  if (look || changing_) arm_timer();
  if (!connections_.empty() || !ledger_->budgets().empty()) idle_since_ = monotonic_seconds();
  if (options_.leave_when_idle && monotonic_seconds() - idle_since_ > kIdleExitSeconds) stopping_ = true;
  return true;
}

// Whether the watch should look at once.
bool Daemon::handle_event(uint64_t token, uint32_t events) {
  switch (event_kind(token)) {
    case EventKind::kListener:
      accept_all();
      return false;
    case EventKind::kConnection:
      if (auto it = connections_.find(event_id(token)); it != connections_.end() && (events & EPOLLOUT) != 0) {
        flush(*it->second);
      }
      if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_connection(event_id(token));
      return false;
    case EventKind::kDeath:
      on_death(event_id(token));
      return true;
    case EventKind::kTimer: {
      uint64_t expirations = 0;
      return read(timer_, &expirations, sizeof expirations) > 0;
    }
    case EventKind::kSignal:
      log::info("Daemon was asked to end", {{"budgets", std::to_string(ledger_->budgets().size())}});
      stopping_ = true;
      return false;
  }
  return false;
}

// The next look: sooner while something changes. Never puts one off that is due, or a busy daemon would not look at
// all.
void Daemon::arm_timer() {
  double wait = changing_ ? std::clamp(measure_cost_ * 10, 0.02, 0.2) : queue_.waiting().empty() ? 1.0 : 0.2;
  double now = monotonic_seconds();
  if (look_at_ != 0 && look_at_ <= now + wait) return;
  look_at_ = now + wait;
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(wait);
  spec.it_value.tv_nsec = static_cast<long>((wait - static_cast<double>(spec.it_value.tv_sec)) * 1e9);
  timerfd_settime(timer_, 0, &spec, nullptr);
}

void Daemon::accept_all() {
  for (int i = 0; i < kEventsAtOnce; ++i) {
    int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_fd_ >= 0) {
      // No descriptor left: take this one off the queue with the spare, so that the loop does not spin on it.
      close(spare_fd_);
      fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) close(fd);
      spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      continue;
    }
    if (fd < 0) return;
    add_connection(fd);
  }
}

void Daemon::add_connection(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  int on = 1;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0 ||
      setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 || !make_room_for(peer.uid)) {
    close(fd);
    return;
  }
  auto c = std::make_unique<Connection>();
  c->id = next_id_++;
  c->fd = fd;
  c->pid = peer.pid;
  c->uid = peer.uid;
  c->gid = peer.gid;
  c->last = monotonic_seconds();
  if (!watch_fd(epoll_, fd, event_token(EventKind::kConnection, c->id), EPOLLIN)) {
    close(fd);
    return;
  }
  connections_.emplace(c->id, std::move(c));
  ++idle_by_uid_[peer.uid];
}

// A user's oldest idle connection makes way for a new one: a flood of connections keeps nobody out, itself included.
bool Daemon::make_room_for(uint32_t uid) {
  bool user_full = idle_by_uid_[uid] >= kIdlePerUser;
  if (!user_full && connections_.size() < max_connections_) return true;
  Connection* oldest = nullptr;
  size_t idle = 0;
  for (auto& [id, c] : connections_) {
    if (c->uid != uid || !counts_as_idle(*c)) continue;
    ++idle;
    if (oldest == nullptr || c->id < oldest->id) oldest = c.get();
  }
  idle_by_uid_[uid] = idle;  // what began to wait or took a slot since is not idle
  if (idle < kIdlePerUser && connections_.size() < max_connections_) return true;
  if (oldest == nullptr) return false;
  close_connection(oldest->id);
  return true;
}

void Daemon::close_connection(uint64_t id) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return;
  std::unique_ptr<Connection> c = std::move(it->second);
  connections_.erase(it);
  close(c->fd);
  if (size_t& idle = idle_by_uid_[c->uid]; counts_as_idle(*c) && idle > 0) --idle;
  if (stopping_) return;
  if (c->waiter != 0) {
    queue_.remove(c->waiter);
    pending_.erase(c->waiter);
    changing_ = true;
  }
  if (c->kind == ConnectionKind::kControl && c->budget != 0) end_budget(c->budget);  // granted, never started
  if (c->kind == ConnectionKind::kGuard) {
    Budget* budget = ledger_->find(c->budget);
    if (budget != nullptr && ledger_->state(*budget, c->slot) == ProcessState::kLive) {
      ledger_->set_state(*budget, c->slot, ProcessState::kDetached);
      changing_ = true;
    }
  }
}

void Daemon::read_connection(uint64_t id) {
  // A few messages at a time, so that one busy program does not hold up the others.
  for (int i = 0; i < 16; ++i) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Connection& c = *it->second;
    alignas(8) static char buffer[lease::kMaxMessage + 1];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int) * kMaxFdsOfMessage)];
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got = recvmsg(c.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    int32_t sender = 0;
    std::vector<int> fds;
    for (cmsghdr* h = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET) continue;
      if (h->cmsg_type == SCM_CREDENTIALS && h->cmsg_len >= CMSG_LEN(sizeof(ucred))) {
        ucred who{};
        memcpy(&who, CMSG_DATA(h), sizeof who);
        sender = who.pid;
      } else if (h->cmsg_type == SCM_RIGHTS) {
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t n = 0; n < count; ++n) {
          int fd = -1;
          memcpy(&fd, CMSG_DATA(h) + n * sizeof fd, sizeof fd);
          fds.push_back(fd);
        }
      }
    }
    bool sound = got > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    if (sound) sound = handle_packet(c, std::string_view(buffer, static_cast<size_t>(got)), sender, fds);
    for (int fd : fds) close(fd);
    if (!sound) return close_connection(id);
  }
}

namespace {

template <typename Message>
const Message* as(std::string_view packet) {
  return packet.size() == sizeof(Message) ? reinterpret_cast<const Message*>(packet.data()) : nullptr;
}

}  // namespace

bool Daemon::handle_packet(Connection& c, std::string_view packet, int32_t sender, const std::vector<int>& fds) {
  using lease::MessageType;
  lease::Header header{};
  if (packet.size() < sizeof header) return false;
  memcpy(&header, packet.data(), sizeof header);
  if (header.magic != lease::kWireMagic || header.version != lease::kWireVersion || header.length != packet.size()) {
    return false;
  }
  if (sender != c.pid) return false;  // a forked child, or a descriptor that was handed on: not who was let in
  c.last = monotonic_seconds();
  auto type = static_cast<MessageType>(header.type);
  if (type == MessageType::kControl) {
    if (c.kind != ConnectionKind::kSilent && c.kind != ConnectionKind::kControl) return false;
    c.kind = ConnectionKind::kControl;
    uint64_t id = c.id;
    on_control(c, header.seq, packet.substr(sizeof header));
    return connections_.contains(id);
  }
  if (type == MessageType::kHello) {
    const auto* hello = as<lease::Hello>(packet);
    return hello != nullptr && c.kind == ConnectionKind::kSilent && on_hello(c, *hello, fds);
  }
  if (c.kind != ConnectionKind::kGuard) return false;
  switch (type) {
    case MessageType::kRefill:
      if (const auto* m = as<lease::Refill>(packet)) return on_refill(c, *m);
      return false;
    case MessageType::kOvercome:
      if (const auto* m = as<lease::Overcome>(packet)) return on_overcome(c, *m);
      return false;
    case MessageType::kPhysicalOom:
      if (const auto* m = as<lease::PhysicalOom>(packet)) return on_physical_oom(c, *m);
      return false;
    case MessageType::kReleaseShared:
      if (const auto* m = as<lease::ReleaseShared>(packet)) return on_release_shared(c, *m);
      return false;
    default:
      return false;
  }
}

bool Daemon::know_peer(Connection& c) {
  if (c.start != 0) return true;
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  bool from_socket = getsockopt(c.fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0;
  auto facts = process_facts(c.pid);
  if (!facts) {
    if (from_socket) close(pidfd);
    return false;
  }
  if (from_socket) {
    // Alive now means that the pid was its own all the while, so the facts are about it.
    pollfd ended{pidfd, POLLIN, 0};
    bool dead = poll(&ended, 1, 0) != 0;
    close(pidfd);
    if (dead) return false;
  }
  c.start = facts->start;
  return true;
}

void Daemon::send_packet(Connection& c, const void* data, size_t size, const int* fds, size_t fd_count) {
  iovec part{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFdsOfMessage)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* h = CMSG_FIRSTHDR(&message);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(h), fds, sizeof(int) * fd_count);
  }
  if (c.out.empty() && sendmsg(c.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
  if (fd_count > 0 || c.out_bytes + size > kMaxQueued) {
    shutdown(c.fd, SHUT_RDWR);  // the loop sees its end
    return;
  }
  if (c.out.empty()) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.u64 = event_token(EventKind::kConnection, c.id);
    epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event);
  }
  c.out.emplace_back(static_cast<const char*>(data), size);
  c.out_bytes += size;
}

void Daemon::flush(Connection& c) {
  while (!c.out.empty()) {
    const std::string& packet = c.out.front();
    ssize_t sent = send(c.fd, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    c.out_bytes -= packet.size();
    c.out.pop_front();
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = event_token(EventKind::kConnection, c.id);
  epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event);
}

void Daemon::send_json(Connection& c, uint64_t seq, std::string_view json) {
  constexpr size_t kChunk = lease::kMaxMessage - sizeof(lease::Header);
  do {
    std::string_view part = json.substr(0, kChunk);
    json.remove_prefix(part.size());
    lease::Header header{};
    header.magic = lease::kWireMagic;
    header.version = lease::kWireVersion;
    header.type = static_cast<uint16_t>(lease::MessageType::kControlReply);
    header.length = static_cast<uint32_t>(sizeof header + part.size());
    header.flags = json.empty() ? 0 : lease::kFlagMore;
    header.seq = seq;
    std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
    packet += part;
    send_packet(c, packet.data(), packet.size());
  } while (!json.empty());
}

void Daemon::send_error(Connection& c, uint64_t seq, const Error& error) { send_json(c, seq, error_json(error)); }

void Daemon::expire_connections() {
  double now = monotonic_seconds();
  std::vector<uint64_t> expired;
  for (auto& [id, c] : connections_) {
    if (!counts_as_idle(*c)) continue;
    double allowed = c->kind == ConnectionKind::kSilent ? kSilentSeconds : kIdleSeconds;
    if (now - c->last > allowed) expired.push_back(id);
  }
  for (uint64_t id : expired) close_connection(id);
}

}  // namespace kvram::node
