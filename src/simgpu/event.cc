#include "simgpu/event.h"

#include <ctime>

#include "simgpu/capture.h"
#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

MomentPtr moment_of(Event& event) {
  std::lock_guard lock(event.mutex);
  return event.moment;
}

// The body runs with the event of the handle.
template <typename F>
CUresult with_event(CUevent handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        EventPtr event = events().find(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        return body(*event);
      },
      call);
}

CUresult record(CUevent handle, Stream& stream, unsigned flags) {
  EventPtr event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
  if (stream.capturing) return capture_event_record(stream, *event, external);
  return external ? CUDA_ERROR_INVALID_VALUE : record_event(*event, stream);
}

CUresult wait(CUevent handle, Stream& stream, unsigned flags) {
  EventPtr event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
  if (stream.capturing || !event->capture.expired()) return capture_event_wait(stream, *event, external);
  return external ? CUDA_ERROR_INVALID_VALUE : wait_event(*event, stream);
}

CUresult elapsed(float* out, CUevent start_handle, CUevent end_handle) {
  EventPtr start = events().find(start_handle);
  EventPtr end = events().find(end_handle);
  if (!start || !end) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  MomentPtr from = moment_of(*start);
  MomentPtr to = moment_of(*end);
  if (!from || !to) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->reached() || !to->reached()) return CUDA_ERROR_NOT_READY;
  auto difference = static_cast<double>(static_cast<int64_t>(to->when() - from->when()));
  *out = static_cast<float>(difference / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

HandleTable<Event>& events() {
  static auto* const table = new HandleTable<Event>;
  return *table;
}

CUresult record_event(Event& event, Stream& stream) {
  auto moment = std::make_shared<Moment>();
  {
    std::lock_guard lock(event.mutex);
    event.moment = moment;
    event.capture.reset();
    event.capture_ends.clear();
  }
  Op op;
  op.mark = std::move(moment);
  return enqueue(stream, std::move(op));
}

CUresult wait_event(Event& event, Stream& stream) {
  MomentPtr moment = moment_of(event);
  if (!moment) return CUDA_SUCCESS;
  Op op;
  op.wait = std::move(moment);
  return enqueue(stream, std::move(op));
}

CUresult query_event(Event& event) {
  if (!event.capture.expired()) return CUDA_ERROR_CAPTURED_EVENT;
  MomentPtr moment = moment_of(event);
  return !moment || moment->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronize_event(Event& event) {
  if (!event.capture.expired()) return CUDA_ERROR_CAPTURED_EVENT;
  MomentPtr moment = moment_of(event);
  if (!moment) return CUDA_SUCCESS;
  while (!moment->placed.load(std::memory_order_acquire)) {
    if (std::shared_ptr<Context> context = event.context.lock(); context && gpu_lost(context->device->gpu)) {
      return CUDA_ERROR_UNKNOWN;
    }
    timespec rest{0, 50000};
    nanosleep(&rest, nullptr);
  }
  if (moment->real_ns.load() == 0 && !clock_wait(moment->gpu, moment->tag)) return CUDA_ERROR_UNKNOWN;
  if (std::shared_ptr<Context> context = event.context.lock()) trim_pools_at_sync(*context->device);
  return CUDA_SUCCESS;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuEventCreate(CUevent* out, unsigned int flags) {
  return with_context([&](Context& context) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = context.weak_from_this();
    event->flags = flags;
    *out = reinterpret_cast<CUevent>(events().add(event));
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuEventDestroy_v2(CUevent event) {
  return with_driver([&] { return events().remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}
KV_CUDA_EXPORT cuEventDestroy(CUevent event) {
  return with_driver([&] { return events().remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

KV_PT_EXPORT(cuEventRecord, _ptsz, (CUevent event, CUstream handle),
             return with_stream(handle, pt, [&](Context&, Stream& stream) { return record(event, stream, 0); });)
KV_PT_EXPORT(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned int flags),
             return with_stream(handle, pt, [&](Context&, Stream& stream) { return record(event, stream, flags); });)
KV_PT_EXPORT(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned int flags),
             return with_stream(handle, pt, [&](Context&, Stream& stream) { return wait(event, stream, flags); });)

KV_CUDA_EXPORT cuEventQuery(CUevent handle) {
  return with_event(handle, [](Event& event) { return query_event(event); });
}
KV_CUDA_EXPORT cuEventSynchronize(CUevent handle) {
  return with_event(handle, [](Event& event) { return synchronize_event(event); });
}
KV_CUDA_EXPORT cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return with_driver([&] { return elapsed(milliseconds, start, end); });
}
KV_CUDA_EXPORT cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return with_driver([&] { return elapsed(milliseconds, start, end); });
}
