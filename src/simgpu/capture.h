// Stream capture: work on a stream becomes nodes of a graph instead of being done.
#pragma once
#include "simgpu/event.h"
#include "simgpu/graph.h"

namespace kvram::simgpu {

struct Capture {
  uint64_t id = 0;
  GraphPtr graph;
  bool own_graph = true;  // false: the program gave the graph
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  Stream* origin = nullptr;                   // only compared
  std::vector<std::weak_ptr<Stream>> joined;  // streams in it, the origin too
  std::atomic<bool> invalid = false;
  std::mutex mutex;
};

// The work as a node behind what the stream captured last. Work that has no node:
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid.
CUresult capture_work(Stream& stream, const Work& work);
CUresult capture_event_record(Stream& stream, Event& event, bool external);
CUresult capture_event_wait(Stream& stream, Event& event, bool external);
// Nothing more is captured; the program learns of it when it ends the capture.
void invalidate_capture(Stream& stream);

}  // namespace kvram::simgpu
