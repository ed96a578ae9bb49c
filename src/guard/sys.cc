#include "guard/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace kvram::guard {

KeepErrno::KeepErrno() : saved_(errno) {}
KeepErrno::~KeepErrno() { errno = saved_; }

void Lock::lock_slow() {
  const KeepErrno keep;
  for (int spin = 0; spin < 64; ++spin) {
    if (try_lock()) return;
    __asm__ __volatile__("" ::: "memory");
  }
  while (__atomic_exchange_n(&word_, 2, __ATOMIC_ACQUIRE) != 0) {
    syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
  }
}

void Lock::wake() {
  const KeepErrno keep;
  syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

namespace {
size_t pages(size_t bytes) { return (bytes + 4095) & ~static_cast<size_t>(4095); }
void* map(size_t bytes) {
  void* at = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}
}  // namespace

void* map_pages(size_t bytes) {
  const KeepErrno keep;
  void* at = map(bytes);
  if (at != nullptr) madvise(at, pages(bytes), MADV_DONTFORK);
  return at;
}

void unmap_pages(void* at, size_t bytes) {
  const KeepErrno keep;
  if (at != nullptr) munmap(at, pages(bytes));
}

void* map_wiped_on_fork(size_t bytes, bool* wiped) {
  const KeepErrno keep;
  void* at = map(bytes);
  *wiped = at != nullptr && madvise(at, pages(bytes), MADV_WIPEONFORK) == 0;
  return at;
}

uint64_t now_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000 + static_cast<uint64_t>(t.tv_nsec) / 1000000;
}

void sleep_ms(unsigned ms) {
  const KeepErrno keep;
  const timespec t{ms / 1000, static_cast<long>(ms % 1000) * 1000000};
  nanosleep(&t, nullptr);
}

void log_line(const char* format, ...) {
  const char* path = getenv("KUBE_VRAM_LOG");
  if (path == nullptr || *path == 0) return;
  const KeepErrno keep;
  char text[512];
  va_list args;
  va_start(args, format);
  const int head = snprintf(text, sizeof text, "kube-vram guard[%d]: ", static_cast<int>(getpid()));
  const int body = vsnprintf(text + head, sizeof text - static_cast<size_t>(head) - 1, format, args);
  va_end(args);
  if (body < 0) return;
  size_t length = static_cast<size_t>(head) + static_cast<size_t>(body);
  if (length > sizeof text - 2) length = sizeof text - 2;
  text[length++] = '\n';
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (fd < 0) return;
  if (write(fd, text, length) < 0) {
    // A log that cannot be written is no reason to disturb the program.
  }
  close(fd);
}

}  // namespace kvram::guard
