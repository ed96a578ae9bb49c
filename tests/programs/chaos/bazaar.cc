#include "bazaar.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "driver.h"

namespace chaos {

Bazaar::Bazaar(int processes, bool open) : open_(open) {
  for (int i = 0; i < processes; ++i) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
      fail("socketpair", std::strerror(errno));
    }
    inboxes_.push_back({pair[0], pair[1]});
  }
}

bool Bazaar::send(int to, const Offer& offer, int fd) const {
  iovec part{const_cast<Offer*>(&offer), sizeof offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return sendmsg(inboxes_[static_cast<size_t>(to)].write, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool Bazaar::receive_for(int process, Offer* offer, int* fd) const {
  iovec part{offer, sizeof *offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *fd = -1;
  if (recvmsg(inboxes_[static_cast<size_t>(process)].read, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) !=
      static_cast<ssize_t>(sizeof *offer)) {
    return false;
  }
  if (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    std::memcpy(fd, CMSG_DATA(c), sizeof *fd);
  }
  return true;
}

void Bazaar::drain(int process) const {
  Offer offer;
  int fd;
  while (receive_for(process, &offer, &fd)) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace chaos
