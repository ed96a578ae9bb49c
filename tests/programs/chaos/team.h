// How the processes of one chaos run keep step: each says that it has reached a point, and waits until all may go on.
#pragma once
#include <sys/types.h>

#include <sys/types.h>
#include <atomic>

namespace chaos {

class Steps {
 public:
  Steps();
  // In a worker process: announce, and wait for the leader.
  void reach();
  // In the leader: true when `n` have arrived, false after `ms` milliseconds.
  bool arrived(int n, int ms);
  void release();

 private:
  int up_[2];
  // How often the leader let go, shared with the workers: a worker that is quick cannot take what was meant for
  // another.
  std::atomic<int>* released_;
  pid_t leader_;
  int reached_ = 0;
  int seen_ = 0;
};

}  // namespace chaos
