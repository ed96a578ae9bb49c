// The little that the guard needs of the system, without a C++ runtime: a lock that a forked child can forget, memory
// straight from the kernel, time, and a log that is silent unless asked for.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define KV_LIKELY(x) __builtin_expect(!!(x), 1)
#define KV_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace kvram::guard {

// Futex lock. All zero is unlocked, so that wiped memory holds no lock of a thread that does not exist in the child.
// Keeps errno.
class Lock {
 public:
  void lock() {
    uint32_t free = 0;
    if (KV_LIKELY(__atomic_compare_exchange_n(&word_, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))) return;
    lock_slow();
  }
  bool try_lock() {
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&word_, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  }
  void unlock() {
    if (KV_UNLIKELY(__atomic_exchange_n(&word_, 0, __ATOMIC_RELEASE) == 2)) wake();
  }

 private:
  void lock_slow();
  void wake();
  uint32_t word_;  // 0 free, 1 held, 2 held and waited for
};

class Guarded {
 public:
  explicit Guarded(Lock& lock) : lock_(lock) { lock_.lock(); }
  ~Guarded() { lock_.unlock(); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

 private:
  Lock& lock_;
};

class KeepErrno {
 public:
  KeepErrno();
  ~KeepErrno();
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

// Zeroed private memory, absent in a forked child; null when the system has none. Bytes are rounded up to pages.
void* map_pages(size_t bytes);
void unmap_pages(void* at, size_t bytes);
// Zeroed private memory that reads as zero in a forked child. `*wiped`: whether this kernel can.
void* map_wiped_on_fork(size_t bytes, bool* wiped);

uint64_t now_ms();  // monotonic
void sleep_ms(unsigned ms);

// Appends a line to the file that KUBE_VRAM_LOG names; nothing without it.
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace kvram::guard
