// How the processes of one chaos run keep step: each says that it has reached a point, and waits until all may go on.
#pragma once
#include <sys/types.h>

namespace chaos {

class Steps {
 public:
  Steps();
  // In a worker process: announce, and wait for the leader.
  void reach() const;
  // In the leader: true when `n` have arrived, false after `ms` milliseconds.
  bool arrived(int n, int ms);
  void release(int n);

 private:
  int up_[2];
  int down_[2];
  int seen_ = 0;
};

}  // namespace chaos
