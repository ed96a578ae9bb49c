// Descriptors and packets. The program may close descriptors that are not its own (daemons close all above 2), and open
// others under the same numbers: nothing is sent to one before its identity is checked.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace kvram::guard {

// A descriptor and what it referred to. All zero: none.
class OpenFile {
 public:
  void set(int fd);  // negative: none
  void copy(const OpenFile& other) { *this = other; }
  void forget() { *this = OpenFile{}; }
  int valid() const;  // the descriptor, or -1 when it is no longer ours
  void close();       // only if it is still ours

 private:
  int number_;  // descriptor + 1
  uint64_t device_;
  uint64_t inode_;
};

// The daemon's socket: embedded in this copy of the library, else KUBE_VRAM_SOCKET, else null.
const char* socket_path();
// A connected SEQPACKET socket, close-on-exec and non-blocking, or -1. Paths longer than sun_path work too.
int connect_unix(const char* path);
// fd: a descriptor to pass along, or -1. False: not sent.
bool send_packet(int socket, const void* data, size_t bytes, int fd, uint64_t deadline_ms);
// Bytes of the next packet, cut at `bytes`; negative: none until the deadline, or the peer is gone. Passed descriptors
// go to fds (close-on-exec); the caller closes them.
long receive_packet(int socket, void* data, size_t bytes, int (&fds)[2], uint64_t deadline_ms);
uint64_t file_bytes(int fd);  // 0: none
// A shared mapping that a forked child lacks, or null.
void* map_file(int fd, size_t bytes, bool writable);
int dup_fd(int fd);  // close-on-exec
void close_fd(int fd);

}  // namespace kvram::guard
