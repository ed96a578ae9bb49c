#include "simgpu/stream.h"

#include <algorithm>

#include "simgpu/capture.h"
#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

// The default streams of a thread, by context. A context that is gone leaves an empty entry behind.
struct ThreadStreams {
  std::vector<std::pair<uint64_t, std::weak_ptr<Stream>>> list;
};
thread_local ThreadStreams t_streams;

std::atomic<uint64_t> g_next_stream_id = 1;

StreamPtr make_stream(std::shared_ptr<StreamState> state, Stream::Kind kind) {
  auto stream = std::make_shared<Stream>();
  stream->state = std::move(state);
  stream->kind = kind;
  stream->id = g_next_stream_id.fetch_add(1);
  return stream;
}

StreamPtr per_thread_stream(Context& context) {
  for (auto& [id, weak] : t_streams.list) {
    if (id != context.id) continue;
    if (StreamPtr known = weak.lock()) return known;
  }
  StreamPtr stream = make_stream(context.streams, Stream::Kind::kPerThread);
  {
    std::lock_guard lock(context.streams->mutex);
    context.streams->streams.push_back(stream);
  }
  t_streams.list.emplace_back(context.id, stream);
  return stream;
}

// Can the work be placed now, as the first of its stream?
bool placeable(const Stream& stream, const Op& op) {
  if (op.host || op.ready) return false;
  if (!op.wait) return true;
  return op.wait->placed.load(std::memory_order_acquire) && (op.wait->gpu == stream.state->gpu || op.wait->reached());
}

Tag start_of(const Stream& stream, const Op& op) {
  bool same_gpu = op.wait && op.wait->gpu == stream.state->gpu;
  return same_gpu ? std::max(stream.tail, op.wait->tag) : stream.tail;
}

// Under the mutex: moves the stream's end.
void place(Stream& stream, const Op& op) {
  StreamState& state = *stream.state;
  Tag now = 0;
  stream.tail = clock_append(state.gpu, start_of(stream, op), op.gpu_ns, &now);
  if (!op.mark) return;
  op.mark->place(state.gpu, stream.tail, now);
  // Times of events are read from the clock's history, which does not reach back for ever: taken down while it does.
  while (!state.unresolved.empty()) {
    MomentPtr first = state.unresolved.front().lock();
    if (first && first->tag > now) break;
    if (first) first->when();
    state.unresolved.pop_front();
  }
  if (op.mark->real_ns.load() == 0) state.unresolved.push_back(op.mark);
}

// Under the mutex. `stream` comes behind what `other` has now.
void follow(Stream& stream, Stream& other, std::vector<StreamPtr>& wake) {
  if (other.queue.empty()) {
    stream.tail = std::max(stream.tail, other.tail);
    return;
  }
  Op mark;
  mark.mark = std::make_shared<Moment>();
  Op wait;
  wait.wait = mark.mark;
  other.queue.push_back(std::move(mark));
  if (stream.queue.empty()) wake.push_back(stream.shared_from_this());
  stream.queue.push_back(std::move(wait));
}

// Under the mutex: the legacy default stream waits for all streams that did not opt out, and they for it.
void follow_default_rules(Stream& stream, std::vector<StreamPtr>& wake) {
  StreamState& state = *stream.state;
  if (stream.kind == Stream::Kind::kLegacy) {
    for (const StreamPtr& other : state.streams) {
      if (other->blocking() && !other->capture) follow(stream, *other, wake);
    }
  } else if (stream.blocking() && state.legacy) {
    follow(stream, *state.legacy, wake);
  }
}

CUresult refuse_while_capturing(Stream& stream) {
  if (!stream.capture) return CUDA_SUCCESS;
  invalidate_capture(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult take_failure(Stream& stream) {
  CUresult failure = stream.failure;
  stream.failure = CUDA_SUCCESS;
  return failure;
}

}  // namespace

bool Moment::reached() {
  if (!placed.load(std::memory_order_acquire)) return false;
  return real_ns.load() != 0 || clock_reached(gpu, tag);
}

uint64_t Moment::when() {
  uint64_t known = real_ns.load();
  if (known != 0) return known;
  known = clock_reached_at(gpu, tag);
  real_ns.store(known);
  return known;
}

void Moment::place(uint32_t on, Tag at, Tag now) {
  gpu = on;
  tag = at;
  if (at <= now) real_ns.store(real_now_ns());
  placed.store(true, std::memory_order_release);
}

HandleTable<Stream>& streams() {
  static auto* const table = new HandleTable<Stream>;
  return *table;
}

CUresult find_stream(Context& context, CUstream handle, bool per_thread, StreamPtr* out) {
  if (!context.streams) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    bool own = handle == CU_STREAM_PER_THREAD || (handle == nullptr && per_thread);
    *out = own ? per_thread_stream(context) : context.streams->legacy;
    return CUDA_SUCCESS;
  }
  *out = streams().find(handle);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult enqueue(Stream& stream, Op op) {
  std::vector<StreamPtr> wake;
  CUresult result = CUDA_SUCCESS;
  {
    std::unique_lock lock(stream.state->mutex);
    follow_default_rules(stream, wake);
    if (stream.queue.empty() && placeable(stream, op)) {
      if (op.effect) {
        lock.unlock();
        result = op.effect();
        lock.lock();
      }
      place(stream, op);
    } else {
      stream.queue.push_back(std::move(op));
      wake.push_back(stream.shared_from_this());
    }
  }
  for (StreamPtr& one : wake) wake_worker(std::move(one));
  return result;
}

bool step_stream(Stream& stream, uint64_t* eta_ns) {
  std::unique_lock lock(stream.state->mutex);
  if (stream.queue.empty()) return false;
  Op& head = stream.queue.front();
  *eta_ns = 200000;
  if (head.wait && !(head.wait->placed.load() && (head.wait->gpu == stream.state->gpu || head.wait->reached()))) {
    return false;
  }
  if (head.host || head.ready) {
    if (!clock_reached(stream.state->gpu, start_of(stream, head))) return false;
    if (head.ready && !head.ready()) return false;
  }
  // It stays at the front while its effect runs, so that nobody takes the stream for empty.
  Op op = std::move(head);
  if (op.effect) {
    lock.unlock();
    CUresult result = op.effect();
    lock.lock();
    if (result != CUDA_SUCCESS) stream.failure = result;
  }
  place(stream, op);
  if (!stream.queue.empty()) stream.queue.pop_front();  // empty: its context went meanwhile
  stream.state->moved.notify_all();
  return true;
}

CUresult wait_stream(Stream& stream) {
  StreamState& state = *stream.state;
  std::vector<StreamPtr> wake;
  std::unique_lock lock(state.mutex);
  if (CUresult r = refuse_while_capturing(stream); r != CUDA_SUCCESS) return r;
  if (stream.kind == Stream::Kind::kLegacy) follow_default_rules(stream, wake);
  if (!wake.empty()) {
    lock.unlock();
    for (StreamPtr& one : wake) wake_worker(std::move(one));
    lock.lock();
  }
  while (!stream.queue.empty()) {
    state.moved.wait_for(lock, std::chrono::milliseconds(50));
    if (gpu_lost(state.gpu)) return CUDA_ERROR_UNKNOWN;
  }
  Tag tail = stream.tail;
  CUresult failure = take_failure(stream);
  lock.unlock();
  if (!clock_wait(state.gpu, tail)) return CUDA_ERROR_UNKNOWN;
  trim_pools_at_sync(*state.device);
  return failure;
}

CUresult query_stream(Stream& stream) {
  StreamState& state = *stream.state;
  std::lock_guard lock(state.mutex);
  if (CUresult r = refuse_while_capturing(stream); r != CUDA_SUCCESS) return r;
  if (!stream.queue.empty() || !clock_reached(state.gpu, stream.tail)) return CUDA_ERROR_NOT_READY;
  return take_failure(stream);
}

CUresult submit_work(CUstream handle, bool per_thread, Work work) {
  std::shared_ptr<Context> context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  StreamPtr stream;
  if (CUresult r = find_stream(*context, handle, per_thread, &stream); r != CUDA_SUCCESS) return r;
  if (stream->capturing) return capture_work(*stream, work);
  Op op;
  op.gpu_ns = work.gpu_ns;
  op.effect = std::move(work.effect);
  return enqueue(*stream, std::move(op));
}

CUresult submit_and_wait(CUstream handle, bool per_thread, Work work) {
  std::shared_ptr<Context> context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  StreamPtr stream;
  if (CUresult r = find_stream(*context, handle, per_thread, &stream); r != CUDA_SUCCESS) return r;
  Op op;
  op.gpu_ns = work.gpu_ns;
  CUresult done = CUDA_SUCCESS;
  op.effect = std::move(work.effect);
  {
    std::lock_guard lock(stream->state->mutex);
    if (CUresult r = refuse_while_capturing(*stream); r != CUDA_SUCCESS) return r;
  }
  done = enqueue(*stream, std::move(op));
  CUresult waited = wait_stream(*stream);
  return done != CUDA_SUCCESS ? done : waited;
}

CUresult drain_context(Context* context) {
  if (context == nullptr || !context->streams) return CUDA_SUCCESS;
  std::vector<StreamPtr> all;
  {
    std::lock_guard lock(context->streams->mutex);
    all = context->streams->streams;
    all.push_back(context->streams->legacy);
  }
  CUresult result = CUDA_SUCCESS;
  for (const StreamPtr& stream : all) {
    if (stream->capturing) continue;
    if (CUresult r = wait_stream(*stream); r != CUDA_SUCCESS) result = r;
  }
  return result;
}

void forget_context_streams(Context* context) {
  if (context == nullptr || !context->streams) return;
  std::shared_ptr<StreamState> state = context->streams;
  std::vector<StreamPtr> gone;
  {
    std::lock_guard lock(state->mutex);
    gone.swap(state->streams);
    if (state->legacy) gone.push_back(std::move(state->legacy));
    for (const StreamPtr& stream : gone) stream->queue.clear();
  }
  for (const StreamPtr& stream : gone) {
    streams().remove(stream.get());
    if (stream->charged != 0) uncharge(*state->device, stream->charged);
    stream->charged = 0;
  }
  context->streams.reset();
}

uint64_t copy_ns(uint64_t bytes, bool over_pcie) {
  return std::max<uint64_t>(2000, over_pcie ? bytes / 25 : bytes / 1000);
}

CUresult make_streams_of(Context& context) {
  auto state = std::make_shared<StreamState>();
  state->context = &context;
  state->device = context.device;
  state->gpu = context.device->gpu;
  state->legacy = make_stream(state, Stream::Kind::kLegacy);
  context.streams = std::move(state);
  return CUDA_SUCCESS;
}

CUresult create_stream(Context& context, unsigned flags, int priority, CUstream* out) {
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!context.streams) return CUDA_ERROR_INVALID_CONTEXT;
  uint64_t cost = context.device->info->costs.stream_bytes;
  if (CUresult r = charge(*context.device, cost); r != CUDA_SUCCESS) return r;
  StreamPtr stream = make_stream(context.streams, Stream::Kind::kExplicit);
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  stream->charged = cost;
  {
    std::lock_guard lock(context.streams->mutex);
    context.streams->streams.push_back(stream);
  }
  *out = reinterpret_cast<CUstream>(streams().add(stream));
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream handle) {
  StreamPtr stream = streams().remove(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  StreamState& state = *stream->state;
  {
    std::lock_guard lock(state.mutex);
    if (stream->capture) invalidate_capture(*stream);
    std::erase(state.streams, stream);
    // What it has queued still runs: the worker holds the stream until then.
  }
  uncharge(*state.device, stream->charged);
  stream->charged = 0;
  return CUDA_SUCCESS;
}

}  // namespace kvram::simgpu
