#include "guard/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "guard/sys.h"
#include "lease/embed.h"

namespace kvram::guard {
namespace {
// Found by its magic and filled in by the daemon in the copy that it makes; volatile, because the compiler must not
// believe the empty path.
__attribute__((used, section(".data"))) volatile lease::Embedded g_embedded = {KVRAM_EMBED_MAGIC, {0}};

bool wait_for(int fd, short events, uint64_t deadline_ms) {
  for (;;) {
    const uint64_t now = now_ms();
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, now >= deadline_ms ? 0 : static_cast<int>(deadline_ms - now));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}
}  // namespace

void OpenFile::set(int fd) {
  struct stat st{};
  *this = OpenFile{};
  if (fd < 0 || fstat(fd, &st) != 0) return;
  number_ = fd + 1;
  device_ = st.st_dev;
  inode_ = st.st_ino;
}

int OpenFile::valid() const {
  struct stat st{};
  if (number_ == 0 || fstat(number_ - 1, &st) != 0) return -1;
  return st.st_dev == device_ && st.st_ino == inode_ ? number_ - 1 : -1;
}

void OpenFile::close() {
  close_fd(valid());
  forget();
}

const char* socket_path() {
  // The daemon patches the file, not the running image, so a plain pointer to it is safe.
  const char* embedded = const_cast<const char*>(g_embedded.socket_path);
  if (g_embedded.socket_path[0] != 0) return embedded;
  return getenv("KUBE_VRAM_SOCKET");
}

int connect_unix(const char* path) {
  if (path == nullptr || *path == 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  int folder = -1;
  if (strlen(path) < sizeof address.sun_path) {
    strcpy(address.sun_path, path);
  } else {
    char parent[512];
    const char* slash = strrchr(path, '/');
    if (slash == nullptr || static_cast<size_t>(slash - path) >= sizeof parent) return -1;
    memcpy(parent, path, static_cast<size_t>(slash - path));
    parent[slash - path] = 0;
    folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    if (snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", folder, slash) >=
        static_cast<int>(sizeof address.sun_path)) {
      close_fd(folder);
      return -1;
    }
  }
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool connected = fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close_fd(folder);
  if (connected) return fd;
  close_fd(fd);
  return -1;
}

bool send_packet(int socket, const void* data, size_t bytes, int fd, uint64_t deadline_ms) {
  if (socket < 0) return false;
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes)) return true;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(socket, POLLOUT, deadline_ms)) return false;
  }
}

long receive_packet(int socket, void* data, size_t bytes, int (&fds)[2], uint64_t deadline_ms) {
  fds[0] = fds[1] = -1;
  if (socket < 0) return -1;
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)];
  for (;;) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && wait_for(socket, POLLIN, deadline_ms)) continue;
    if (n <= 0) return -1;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      memcpy(fds, CMSG_DATA(c), sizeof(int) * (count < 2 ? count : 2));
    }
    return static_cast<long>(n);
  }
}

uint64_t file_bytes(int fd) {
  struct stat st{};
  return fd >= 0 && fstat(fd, &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

void* map_file(int fd, size_t bytes, bool writable) {
  void* at = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, bytes, MADV_DONTFORK);
  return at;
}

int dup_fd(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }
void close_fd(int fd) {
  if (fd >= 0) ::close(fd);
}

}  // namespace kvram::guard
