#include "team.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "driver.h"

namespace chaos {

Steps::Steps() {
  if (pipe2(up_, O_CLOEXEC) != 0 || pipe2(down_, O_CLOEXEC) != 0) fail("pipe", std::strerror(errno));
}

void Steps::reach() const {
  char byte = '.';
  (void)!write(up_[1], &byte, 1);
  while (read(down_[0], &byte, 1) < 0 && errno == EINTR) {
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

void Steps::release(int n) {
  for (int i = 0; i < n; ++i) (void)!write(down_[1], ".", 1);
}

}  // namespace chaos
