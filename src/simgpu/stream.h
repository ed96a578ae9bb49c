// Streams inside one process. A stream is a point on its GPU's clock (the end of what was put on it) and, where its
// next work cannot be placed yet, a queue that the process's worker thread goes through.
//
// Most work is placed at once: a launch or a copy only moves the stream's end. What has to wait for more than GPU time
// (a host function, a value in memory, an event of work that is queued itself) is queued, and so is everything behind
// it. Copies and fills have their effect when they are placed: earlier than the GPU would, never later than promised.
#pragma once
#include <condition_variable>
#include <deque>

#include "simgpu/driver.h"
#include "simgpu/gpu_clock.h"

namespace kvram::simgpu {

// A point in some stream's work, known once the work before it is placed.
struct Moment {
  std::atomic<bool> placed = false;
  uint32_t gpu = 0;
  Tag tag = 0;
  std::atomic<uint64_t> real_ns = 0;  // 0: not known yet
  bool reached();
  uint64_t when();  // real time, only once reached
  void place(uint32_t on, Tag at, Tag now);
};
using MomentPtr = std::shared_ptr<Moment>;

struct Op {
  uint64_t gpu_ns = 0;
  std::function<CUresult()> effect;
  std::function<bool()> ready;  // not before this is true; looked at by the worker
  MomentPtr wait;               // not before this
  MomentPtr mark;               // placed behind the work
  bool host = false;            // the effect runs in the worker, with all before it done
};

struct Capture;    // capture.h
struct GraphNode;  // graph.h

struct Stream : std::enable_shared_from_this<Stream> {
  enum class Kind { kExplicit, kLegacy, kPerThread };
  std::shared_ptr<StreamState> state;
  Kind kind = Kind::kExplicit;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  uint64_t charged = 0;
  CUstreamAttrValue sync_policy{};
  // Under the state's mutex:
  Tag tail = 0;
  std::deque<Op> queue;
  CUresult failure = CUDA_SUCCESS;   // of a queued effect, returned by the next wait
  std::shared_ptr<Capture> capture;  // while it captures
  std::atomic<bool> capturing = false;
  std::vector<GraphNode*> capture_ends;

  bool blocking() const {
    return kind == Kind::kPerThread || (kind == Kind::kExplicit && (flags & CU_STREAM_NON_BLOCKING) == 0);
  }
  CUstream handle() { return reinterpret_cast<CUstream>(this); }
};
using StreamPtr = std::shared_ptr<Stream>;

// Of one context.
struct StreamState {
  Context* context = nullptr;
  Device* device = nullptr;
  uint32_t gpu = 0;
  std::mutex mutex;
  std::condition_variable moved;  // a queued piece of work was placed
  StreamPtr legacy;
  std::vector<StreamPtr> streams;  // explicit and per-thread
  std::deque<std::weak_ptr<Moment>> unresolved;
};

HandleTable<Stream>& streams();

CUresult make_streams_of(Context& context);
CUresult destroy_stream(CUstream handle);

// The stream that a handle means in a context; CUDA_ERROR_INVALID_HANDLE if none.
CUresult find_stream(Context& context, CUstream handle, bool per_thread, StreamPtr* out);
CUresult enqueue(Stream& stream, Op op);
// CUDA_ERROR_UNKNOWN if the GPU was lost, the error of a failed queued effect, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
// (and the capture is invalid) while it captures.
CUresult wait_stream(Stream& stream);
// CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or as wait_stream.
CUresult query_stream(Stream& stream);
// One step of the queue, for the worker: true if something was placed; else how long to wait for it in *eta_ns.
bool step_stream(Stream& stream, uint64_t* eta_ns);
// The worker will look after the stream until its queue is empty.
void wake_worker(StreamPtr stream);

// Defines an entry point and its per-thread variant; `pt` tells the body which one was called.
#define KV_PT_EXPORT(name, suffix, params, ...) \
  KV_CUDA_EXPORT name params {                  \
    [[maybe_unused]] constexpr bool pt = false; \
    __VA_ARGS__                                 \
  }                                             \
  KV_CUDA_EXPORT name##suffix params {          \
    [[maybe_unused]] constexpr bool pt = true;  \
    __VA_ARGS__                                 \
  }

// The body runs with the current context and the stream that the handle means there.
template <typename F>
CUresult with_stream(CUstream handle, bool per_thread, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_context(
      [&](Context& context) {
        StreamPtr stream;
        if (CUresult r = find_stream(context, handle, per_thread, &stream); r != CUDA_SUCCESS) return r;
        return body(context, *stream);
      },
      call);
}

}  // namespace kvram::simgpu
