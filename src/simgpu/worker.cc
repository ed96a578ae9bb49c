// The thread that goes through queued work of all streams of the process. Started when the first work is queued.
#include <pthread.h>
#include <csignal>

#include <algorithm>
#include <ctime>
#include <thread>

#include "simgpu/stream.h"

namespace kvram::simgpu {
namespace {

struct Worker {
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<StreamPtr> streams;
  bool started = false;
};

Worker& worker() {
  static auto* const one = new Worker;  // never destroyed: the thread runs until the process ends
  return *one;
}

// Leaves the streams that are done to their owners.
void drop_empty(Worker& w) {
  std::lock_guard lock(w.mutex);
  std::erase_if(w.streams, [](const StreamPtr& stream) {
    std::lock_guard inner(stream->state->mutex);
    return stream->queue.empty();
  });
}

void run() {
  Worker& w = worker();
  for (;;) {
    std::vector<StreamPtr> now;
    {
      std::unique_lock lock(w.mutex);
      w.wake.wait(lock, [&] { return !w.streams.empty(); });
      now = w.streams;
    }
    bool moved = false;
    for (const StreamPtr& stream : now) {
      uint64_t eta_ns = 0;
      while (step_stream(*stream, &eta_ns)) moved = true;
    }
    now.clear();
    drop_empty(w);
    if (moved) continue;
    timespec rest{0, 100000};
    nanosleep(&rest, nullptr);
  }
}

}  // namespace

void wake_worker(StreamPtr stream) {
  Worker& w = worker();
  std::lock_guard lock(w.mutex);
  if (std::find(w.streams.begin(), w.streams.end(), stream) == w.streams.end()) w.streams.push_back(std::move(stream));
  if (!w.started) {
    // The program's signals are for its own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(run).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    w.started = true;
  }
  w.wake.notify_one();
}

}  // namespace kvram::simgpu
