#include "team.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "driver.h"

namespace chaos {

Steps::Steps() {
  if (pipe2(up_, O_CLOEXEC) != 0) fail("pipe", std::strerror(errno));
  void* shared = mmap(nullptr, sizeof *released_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("mmap", std::strerror(errno));
  released_ = new (shared) std::atomic<int>(0);
  leader_ = getpid();
}

void Steps::reach() {
  ++reached_;
  (void)!write(up_[1], ".", 1);
  while (*released_ < reached_) {
    if (getppid() != leader_) _exit(5);
    usleep(300);
  }
}

bool Steps::arrived(int n, int ms) {
  pollfd p{up_[0], POLLIN, 0};
  while (seen_ < n && poll(&p, 1, ms) > 0) {
    char byte;
    if (read(up_[0], &byte, 1) == 1) ++seen_;
  }
  if (seen_ < n) return false;
  seen_ = 0;
  return true;
}

void Steps::release() { ++*released_; }

}  // namespace chaos
