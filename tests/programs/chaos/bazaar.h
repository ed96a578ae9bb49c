// Where sibling processes offer each other memory: one datagram inbox per process, made before the first fork.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <vector>

namespace chaos {

struct Offer {
  uint32_t kind;  // 1: CUipcMemHandle, 2: a file descriptor of a VMM allocation
  int32_t gpu;
  uint64_t size;
  CUipcMemHandle ipc;
};

class Bazaar {
 public:
  // `open`: processes do offer each other memory.
  explicit Bazaar(int processes, bool open = true);
  bool open() const { return open_; }
  // Which of the processes this one is; call it in the child.
  void settle(int self) { self_ = self; }
  int processes() const { return static_cast<int>(inboxes_.size()); }
  int self() const { return self_; }
  // Never blocks; false if nobody took it. `fd` -1: none. The caller keeps its descriptor.
  bool send(int to, const Offer& offer, int fd) const;
  // The next offer to this process; false if there is none. The caller closes `*fd`.
  bool receive(Offer* offer, int* fd) const { return receive_for(self_, offer, fd); }
  // Throws away all offers to `process`.
  void drain(int process) const;

 private:
  struct Inbox {
    int read;
    int write;
  };
  bool receive_for(int process, Offer* offer, int* fd) const;
  std::vector<Inbox> inboxes_;
  int self_ = 0;
  bool open_;
};

}  // namespace chaos
