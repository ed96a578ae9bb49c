// Events: a moment in a stream, or, of a stream that captures, a place in the graph that is being made.
#pragma once
#include "simgpu/stream.h"

namespace kvram::simgpu {

struct Event {
  std::weak_ptr<Context> context;
  unsigned flags = 0;
  std::mutex mutex;  // guards the rest
  MomentPtr moment;  // null: never recorded, which counts as done
  std::weak_ptr<Capture> capture;
  std::vector<GraphNode*> capture_ends;
  CUevent handle() { return reinterpret_cast<CUevent>(this); }
};
using EventPtr = std::shared_ptr<Event>;

HandleTable<Event>& events();

// The work that cuEventRecord and cuStreamWaitEvent put on a stream that does not capture.
CUresult record_event(Event& event, Stream& stream);
CUresult wait_event(Event& event, Stream& stream);
// CUDA_SUCCESS or CUDA_ERROR_NOT_READY.
CUresult query_event(Event& event);
CUresult synchronize_event(Event& event);

}  // namespace kvram::simgpu
