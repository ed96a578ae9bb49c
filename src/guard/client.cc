#include "guard/client.h"

#include <string.h>

namespace kvram::guard {

using lease::MessageType;

namespace {
constexpr uint64_t kPatienceMs = 1000;  // the longest a call of the program waits for the daemon
constexpr uint64_t kRetryMs = 200;      // how long a daemon that was away is left alone
constexpr int kMaxTries = 64;

void fill_header(lease::Header* header, MessageType type, size_t bytes, uint64_t seq) {
  *header = lease::Header{
      lease::kWireMagic, lease::kWireVersion, static_cast<uint16_t>(type), static_cast<uint32_t>(bytes), 0, 0, seq};
}
void set_call(char (&to)[lease::kMaxCallName], const char* call) {
  strncpy(to, call, sizeof to - 1);
  to[sizeof to - 1] = 0;
}
}  // namespace

int Client::gpu_of_uuid(const void* uuid) const {
  const lease::GrantPage* p = page();
  for (uint32_t i = 0; p != nullptr && i < gpus_; ++i) {
    if (memcmp(p->gpu[i].uuid, uuid, sizeof p->gpu[i].uuid) == 0) return static_cast<int>(i);
  }
  return kNoGpu;
}

uint64_t Client::free_units(int gpu) const {
  const lease::GrantPage* p = page();
  if (p == nullptr || gpu < 0) return 0;
  if (table_ == nullptr) {  // an observer that was not shown the leases: unspent ones count as charged
    const lease::GpuPage& g = p->gpu[gpu];
    const uint64_t taken =
        __atomic_load_n(&g.granted_units, __ATOMIC_ACQUIRE) + __atomic_load_n(&g.hidden_units, __ATOMIC_ACQUIRE);
    return g.limit_units > taken ? g.limit_units - taken : 0;
  }
  return lease::free_units(p, table_, static_cast<uint32_t>(gpu));
}

bool Client::attach_slow(bool observer) {
  const KeepErrno keep;
  const Guarded hold(lock_);
  if (attached_ != 0) return true;
  observer_ = observer ? 1 : 0;
  return connected_until(now_ms() + kPatienceMs) && attached_ != 0;
}

// Waits for a daemon that is just restarting, but only once: as long as it stays away later calls try without waiting.
bool Client::connected_until(uint64_t deadline_ms) {
  if (socket_.valid() >= 0) return true;
  disconnect();
  if (away_since_ms_ != 0 && now_ms() < retry_at_ms_) return false;
  for (unsigned pause = 5;; pause = pause < 80 ? pause * 2 : 80) {
    const Attempt attempt = connect_once(deadline_ms);
    if (attempt == Attempt::kConnected) {
      away_since_ms_ = 0;
      return true;
    }
    const uint64_t now = now_ms();
    if (away_since_ms_ == 0) away_since_ms_ = now;
    retry_at_ms_ = now + kRetryMs;
    if (attempt == Attempt::kRefused || now + pause >= deadline_ms || now - away_since_ms_ >= kPatienceMs) return false;
    sleep_ms(pause);
  }
}

Client::Attempt Client::connect_once(uint64_t deadline_ms) {
  const int fd = connect_unix(socket_path());
  if (fd < 0) return Attempt::kAway;
  socket_.set(fd);
  inherited_socket().set(fd);
  const Attempt attempt = hello(deadline_ms);
  if (attempt != Attempt::kConnected) disconnect();
  return attempt;
}

void Client::disconnect() {
  socket_.close();
  inherited_socket().forget();
}

Client::Attempt Client::hello(uint64_t deadline_ms) {
  const Facts about = facts();
  lease::Hello m{};
  fill_header(&m.header, MessageType::kHello, sizeof m, ++seq_);
  m.abi = lease::kAbiVersion;
  m.observer = observer_;
  m.unknown_symbols = about.unknown_symbols;
  m.driver_version = about.driver_version;
  const bool replay = attached_ != 0 && observer_ == 0;
  if (replay) {
    m.replay = 1;
    m.slot = slot_;
    m.budget_id = budget_id_;
    for (uint32_t g = 0; g < gpus_; ++g) m.granted_units[g] = granted_[g];
  }
  if (!send_packet(socket_.valid(), &m, sizeof m, replay ? lease_.valid() : -1, deadline_ms)) return Attempt::kAway;
  union {
    lease::Header header;
    lease::Welcome welcome;
    lease::Refuse refuse;
  } reply;
  int fds[2] = {-1, -1};
  const long n = receive_packet(socket_.valid(), &reply, sizeof reply, fds, deadline_ms);
  Attempt attempt = Attempt::kAway;
  if (n == static_cast<long>(sizeof(lease::Welcome)) && reply.header.magic == lease::kWireMagic &&
      reply.header.type == static_cast<uint16_t>(MessageType::kWelcome)) {
    attempt = welcomed(reply.welcome, fds) ? Attempt::kConnected : Attempt::kRefused;
  } else if (n == static_cast<long>(sizeof(lease::Refuse)) && reply.header.magic == lease::kWireMagic &&
             reply.header.type == static_cast<uint16_t>(MessageType::kRefuse)) {
    reply.refuse.sentence[sizeof reply.refuse.sentence - 1] = 0;
    log_line("the daemon refused this process: %s", reply.refuse.sentence);
    attempt = Attempt::kRefused;
  }
  for (const int fd : fds) close_fd(fd);
  return attempt;
}

// The two files are told apart by size: the lease table is far larger than the grant page. They are closed by the
// caller.
bool Client::welcomed(const lease::Welcome& w, const int (&fds)[2]) {
  if (w.gpus == 0 || w.gpus > lease::kMaxGpus || w.slot >= lease::kMaxSlots) return false;
  for (const int fd : fds) {
    const uint64_t bytes = file_bytes(fd);
    if (bytes >= lease::table_bytes(w.gpus)) {
      if (table_ != nullptr) continue;  // a replay: what is mapped stays, other threads are spending from it
      void* at = map_file(fd, lease::table_bytes(w.gpus), true);
      if (at == nullptr) return false;
      table_ = static_cast<uint64_t*>(at);
      if (observer_ == 0) {
        lease_.set(dup_fd(fd));
        inherited_lease().copy(lease_);
      }
    } else if (bytes >= lease::kGrantPidsOffset) {
      const bool pids = bytes >= lease::kGrantBytes;
      const void* at = map_file(fd, pids ? lease::kGrantBytes : lease::kGrantPidsOffset, false);
      if (at == nullptr) return false;
      const lease::GrantPage* p = static_cast<const lease::GrantPage*>(at);
      if (p->magic != lease::kGrantMagic || p->abi != lease::kAbiVersion || p->gpus != w.gpus) return false;
      __atomic_store_n(&page_, p, __ATOMIC_RELEASE);
      if (pids) __atomic_store_n(&pids_, lease::slot_pids(p), __ATOMIC_RELEASE);
    }
  }
  if (page_ == nullptr || (table_ == nullptr && observer_ == 0)) return false;
  if (attached_ == 0) {
    slot_ = w.slot;
    gpus_ = w.gpus;
  } else if (observer_ == 0 && (w.slot != slot_ || w.gpus != gpus_)) {
    log_line("the daemon offers slot %u instead of %u", w.slot, slot_);
    return false;
  }
  budget_id_ = w.budget_id;
  __atomic_store_n(&attached_, 1, __ATOMIC_RELEASE);
  log_line("in budget %llu, slot %u", static_cast<unsigned long long>(w.budget_id), w.slot);
  return true;
}

// Sends and waits for the reply of that type with the same number; older replies, of calls given up on, are skipped.
Client::Exchange Client::exchange(lease::Header* message, lease::RefillReply* reply, uint64_t deadline_ms) {
  if (!send_packet(socket_.valid(), message, message->length, -1, deadline_ms)) {
    disconnect();
    return Exchange::kUnsent;
  }
  for (;;) {
    int fds[2] = {-1, -1};
    const long n = receive_packet(socket_.valid(), reply, sizeof *reply, fds, deadline_ms);
    for (const int fd : fds) close_fd(fd);
    if (n != static_cast<long>(sizeof *reply) || reply->header.magic != lease::kWireMagic) {
      disconnect();
      return Exchange::kUnanswered;
    }
    if (reply->header.type == static_cast<uint16_t>(MessageType::kRefillReply) && reply->header.seq == message->seq) {
      return Exchange::kAnswered;
    }
  }
}

bool Client::refill_and_spend(int gpu, uint64_t units, const char* call, uint64_t asked) {
  if (gpu < 0 || !attach()) {
    log_line("%s of %llu bytes refused: %s", call, static_cast<unsigned long long>(asked),
             attached_ != 0 ? "the GPU is not in the budget" : "no budget");
    return false;
  }
  const KeepErrno keep;
  const Guarded hold(lock_);
  const uint64_t deadline = now_ms() + kPatienceMs;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    if (lease::spend(word(gpu), units)) return true;
    if (!connected_until(deadline)) break;
    flush_shared(deadline);
    lease::Refill m{};
    fill_header(&m.header, MessageType::kRefill, sizeof m, ++seq_);
    m.gpu = static_cast<uint32_t>(gpu);
    m.need_units = units;
    m.asked_bytes = asked;
    set_call(m.call, call);
    lease::RefillReply reply{};
    if (exchange(&m.header, &reply, deadline) != Exchange::kAnswered) {
      if (now_ms() >= deadline) break;
      continue;
    }
    granted_[gpu] = reply.granted_units;
    if (reply.status != static_cast<uint32_t>(lease::RefillStatus::kGranted)) {
      log_line("%s of %llu bytes refused, post-mortem %llu", call, static_cast<unsigned long long>(asked),
               static_cast<unsigned long long>(reply.oom_id));
      remember_refusal(gpu, asked, reply.oom_id);
      return false;
    }
  }
  log_line("%s of %llu bytes refused: the daemon does not answer", call, static_cast<unsigned long long>(asked));
  return false;
}

void Client::release_shared(int gpu, uint64_t units) {
  if (gpu < 0 || units == 0) return;
  const KeepErrno keep;
  const Guarded hold(lock_);
  shared_[gpu] += units;
  const uint64_t deadline = now_ms() + kPatienceMs;
  if (connected_until(deadline)) flush_shared(deadline);
}

// A release that may have been heard is never repeated: charged too long is harmless, released twice is not.
void Client::flush_shared(uint64_t deadline_ms) {
  for (uint32_t g = 0; g < gpus_; ++g) {
    if (shared_[g] == 0) continue;
    lease::ReleaseShared m{};
    fill_header(&m.header, MessageType::kReleaseShared, sizeof m, ++seq_);
    m.gpu = g;
    m.units = shared_[g];
    lease::RefillReply reply{};
    const Exchange done = exchange(&m.header, &reply, deadline_ms);
    if (done == Exchange::kUnsent) return;
    shared_[g] = 0;
    if (done != Exchange::kAnswered) return;
    granted_[g] = reply.granted_units;
  }
}

void Client::remember_refusal(int gpu, uint64_t asked, uint64_t oom_id) {
  if (oom_id == 0) return;
  uint32_t n = refusals_;
  if (n == kMaxRefusals) memmove(&refusal_[0], &refusal_[1], sizeof refusal_[0] * --n);
  refusal_[n] = Refusal{oom_id, asked, gpu};
  __atomic_store_n(&refusals_, n + 1, __ATOMIC_RELAXED);
}

void Client::overcome(int gpu, uint64_t asked) {
  const KeepErrno keep;
  const Guarded hold(lock_);
  uint32_t left = 0;
  for (uint32_t i = 0; i < refusals_; ++i) {
    const Refusal r = refusal_[i];
    if (r.gpu != gpu || r.asked > asked) {
      refusal_[left++] = r;
      continue;
    }
    lease::Overcome m{};
    fill_header(&m.header, MessageType::kOvercome, sizeof m, ++seq_);
    m.oom_id = r.oom_id;
    if (socket_.valid() >= 0) send_packet(socket_.valid(), &m, sizeof m, -1, now_ms());
  }
  __atomic_store_n(&refusals_, left, __ATOMIC_RELAXED);
}

void Client::physical_oom(int gpu, uint64_t asked, const char* call) {
  if (gpu < 0) return;
  const KeepErrno keep;
  const Guarded hold(lock_);
  log_line("%s of %llu bytes: the GPU has no room although the budget has", call,
           static_cast<unsigned long long>(asked));
  lease::PhysicalOom m{};
  fill_header(&m.header, MessageType::kPhysicalOom, sizeof m, ++seq_);
  m.gpu = static_cast<uint32_t>(gpu);
  m.asked_bytes = asked;
  set_call(m.call, call);
  if (socket_.valid() >= 0) send_packet(socket_.valid(), &m, sizeof m, -1, now_ms());
}

namespace {
// Not wiped by fork: the child needs the numbers to close its copies.
OpenFile g_socket;
OpenFile g_lease;
}  // namespace
OpenFile& Client::inherited_socket() { return g_socket; }
OpenFile& Client::inherited_lease() { return g_lease; }
void Client::close_inherited() {
  const KeepErrno keep;
  g_socket.close();
  g_lease.close();
}

}  // namespace kvram::guard
