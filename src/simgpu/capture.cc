#include "simgpu/capture.h"

#include <algorithm>

namespace kvram::simgpu {
namespace {

std::atomic<uint64_t> g_next_capture = 1;
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult refuse(Stream& stream) {
  invalidate_capture(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// A node behind what the stream captured last, which it replaces.
CUresult capture_node(Stream& stream, CUgraphNodeType type, NodeBody body) {
  std::shared_ptr<Capture> capture = stream.capture;
  if (!capture || capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::lock_guard lock(graph_mutex());
  NodePtr node;
  CUresult r = add_node(*capture->graph, stream.capture_ends, type, std::move(body), &node);
  if (r == CUDA_SUCCESS) stream.capture_ends = {node.get()};
  return r;
}

struct BodyOf {
  NodeBody& out;
  CUgraphNodeType& type;
  CUresult operator()(std::monostate) const { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }
  CUresult operator()(const CUDA_KERNEL_NODE_PARAMS_v2& kernel) const {
    type = CU_GRAPH_NODE_TYPE_KERNEL;
    return kernel_body(kernel, &out);
  }
  CUresult operator()(const CUDA_MEMCPY3D& copy) const {
    type = CU_GRAPH_NODE_TYPE_MEMCPY;
    return copy_body(copy, &out);
  }
  CUresult operator()(const CUDA_MEMSET_NODE_PARAMS& set) const {
    type = CU_GRAPH_NODE_TYPE_MEMSET;
    return set_body(set, &out);
  }
  CUresult operator()(const CUDA_HOST_NODE_PARAMS& host) const {
    type = CU_GRAPH_NODE_TYPE_HOST;
    return host_body(host, &out);
  }
};

// The stream that a handle means in the current context, if it captures.
StreamPtr capturing_stream(CUstream handle, bool per_thread, std::shared_ptr<Context>* context) {
  *context = current_context();
  StreamPtr stream;
  if (!*context || find_stream(**context, handle, per_thread, &stream) != CUDA_SUCCESS) return nullptr;
  return stream->capturing ? stream : nullptr;
}

void join(Stream& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  stream.capturing = true;
  stream.capture_ends.clear();
  std::lock_guard lock(capture->mutex);
  capture->joined.push_back(stream.weak_from_this());
}

CUresult begin(Stream& stream, CUstreamCaptureMode mode, GraphPtr graph, bool own, std::vector<GraphNode*> ends) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream.kind == Stream::Kind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = g_next_capture.fetch_add(1);
  capture->graph = std::move(graph);
  capture->own_graph = own;
  capture->mode = mode;
  capture->origin = &stream;
  join(stream, capture);
  stream.capture_ends = std::move(ends);
  return CUDA_SUCCESS;
}

void leave(Stream& stream) {
  stream.capturing = false;
  stream.capture.reset();
  stream.capture_ends.clear();
}

CUresult end(Stream& stream, CUgraph* out) {
  if (!stream.capturing) return CUDA_ERROR_ILLEGAL_STATE;
  std::shared_ptr<Capture> capture = stream.capture;
  if (capture->origin != &stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  std::vector<std::weak_ptr<Stream>> joined;
  {
    std::lock_guard lock(capture->mutex);
    joined = capture->joined;
  }
  bool unjoined = false;
  {
    std::lock_guard lock(graph_mutex());
    for (const std::weak_ptr<Stream>& weak : joined) {
      StreamPtr other = weak.lock();
      if (!other || other.get() == &stream) continue;
      // Forked work must have come back: what the other stream ends with has a node behind it that is not its own.
      for (const GraphNode* last : other->capture_ends) {
        bool met = std::find(stream.capture_ends.begin(), stream.capture_ends.end(), last) != stream.capture_ends.end();
        unjoined = unjoined || (last->to.empty() && !met);
      }
    }
  }
  for (const std::weak_ptr<Stream>& weak : joined) {
    if (StreamPtr other = weak.lock()) leave(*other);
  }
  if (out != nullptr) *out = nullptr;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (capture->own_graph) graphs().add(capture->graph);
  *out = capture->graph->handle();
  return CUDA_SUCCESS;
}

struct Info {
  CUstreamCaptureStatus* status;
  cuuint64_t* id;
  CUgraph* graph;
  const CUgraphNode** nodes;
  const CUgraphEdgeData** edges;
  size_t* count;
};

CUresult info(Stream& stream, const Info& out) {
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Capture> capture = stream.capture;
  *out.status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!capture) return CUDA_SUCCESS;
  *out.status = capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph != nullptr) *out.graph = capture->graph->handle();
  // Handles are the nodes' addresses; the list stays valid until the stream captures more.
  if (out.nodes != nullptr) *out.nodes = reinterpret_cast<const CUgraphNode*>(stream.capture_ends.data());
  if (out.edges != nullptr) *out.edges = nullptr;
  if (out.count != nullptr) *out.count = stream.capture_ends.size();
  return CUDA_SUCCESS;
}

CUresult update(Stream& stream, CUgraphNode* handles, size_t count, unsigned flags) {
  if (!stream.capturing) return CUDA_ERROR_ILLEGAL_STATE;
  std::lock_guard lock(graph_mutex());
  std::vector<GraphNode*> nodes;
  if (CUresult r = nodes_of(*stream.capture->graph, handles, count, &nodes); r != CUDA_SUCCESS) return r;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream.capture_ends.clear();
  stream.capture_ends.insert(stream.capture_ends.end(), nodes.begin(), nodes.end());
  return CUDA_SUCCESS;
}

CUresult begin_to_graph(Stream& stream, CUgraph handle, const CUgraphNode* nodes, size_t count,
                        CUstreamCaptureMode mode) {
  GraphPtr graph = graphs().find(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> ends;
  {
    std::lock_guard lock(graph_mutex());
    if (CUresult r = nodes_of(*graph, nodes, count, &ends); r != CUDA_SUCCESS) return r;
  }
  return begin(stream, mode, std::move(graph), false, std::move(ends));
}

}  // namespace

void invalidate_capture(Stream& stream) {
  if (stream.capture) stream.capture->invalid = true;
}

CUresult capture_work(Stream& stream, const Work& work) {
  NodeBody body;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUresult r = std::visit(BodyOf{body, type}, work.node);
  if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return refuse(stream);
  return r == CUDA_SUCCESS ? capture_node(stream, type, std::move(body)) : r;
}

CUresult capture_event_record(Stream& stream, Event& event, bool external) {
  if (external) return capture_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, EventBody{event.handle()});
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::lock_guard lock(event.mutex);
  event.capture = stream.capture;
  event.capture_ends = stream.capture_ends;
  return CUDA_SUCCESS;
}

CUresult capture_event_wait(Stream& stream, Event& event, bool external) {
  if (external && stream.capturing) {
    return capture_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, EventBody{event.handle()});
  }
  std::lock_guard lock(event.mutex);
  std::shared_ptr<Capture> capture = event.capture.lock();
  if (!capture) {  // an event of real work inside a capture
    invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream.kind == Stream::Kind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!stream.capturing) join(stream, capture);
  if (stream.capture != capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  for (GraphNode* node : event.capture_ends) {
    auto& ends = stream.capture_ends;
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
  }
  return CUDA_SUCCESS;
}

bool is_capturing(CUstream handle, bool per_thread) {
  std::shared_ptr<Context> context;
  return capturing_stream(handle, per_thread, &context) != nullptr;
}

std::optional<CUresult> capture_alloc(CUstream handle, bool per_thread, uint64_t bytes, CUdeviceptr* at) {
  std::shared_ptr<Context> context;
  StreamPtr stream = capturing_stream(handle, per_thread, &context);
  if (!stream) return std::nullopt;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = context->device->ordinal;
  NodeBody body;
  if (CUresult r = alloc_body(*context, props, bytes, &body); r != CUDA_SUCCESS) return r;
  CUdeviceptr made = std::get<AllocBody>(body).params.dptr;
  CUresult r = capture_node(*stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, std::move(body));
  if (r == CUDA_SUCCESS) *at = made;
  return r;
}

std::optional<CUresult> capture_free(CUstream handle, bool per_thread, CUdeviceptr at) {
  std::shared_ptr<Context> context;
  StreamPtr stream = capturing_stream(handle, per_thread, &context);
  if (!stream) return std::nullopt;
  if (!find_graph_memory(at)) return refuse(*stream);
  return capture_node(*stream, CU_GRAPH_NODE_TYPE_MEM_FREE, FreeBody{at});
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_PT_EXPORT(cuStreamBeginCapture, _ptsz, (CUstream handle),
             return with_stream(handle, pt, [](Context&, Stream& stream) {
               return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, make_graph(), true, {});
             });)
KV_PT_EXPORT(cuStreamBeginCapture_v2, _ptsz, (CUstream handle, CUstreamCaptureMode mode),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return begin(stream, mode, make_graph(), true, {}); });)
KV_PT_EXPORT(cuStreamBeginCaptureToGraph, _ptsz,
             (CUstream handle, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData*, size_t count,
              CUstreamCaptureMode mode),
             return with_stream(handle, pt, [&](Context&, Stream& stream) {
               return begin_to_graph(stream, graph, nodes, count, mode);
             });)
KV_PT_EXPORT(cuStreamEndCapture, _ptsz, (CUstream handle, CUgraph* graph),
             return with_stream(handle, pt, [&](Context&, Stream& stream) { return end(stream, graph); });)
KV_PT_EXPORT(cuStreamIsCapturing, _ptsz, (CUstream handle, CUstreamCaptureStatus* status),
             return with_stream(handle, pt, [&](Context&, Stream& stream) {
               return info(stream, Info{status, nullptr, nullptr, nullptr, nullptr, nullptr});
             });)
KV_PT_EXPORT(cuStreamGetCaptureInfo, _ptsz, (CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id),
             return with_stream(handle, pt, [&](Context&, Stream& stream) {
               return info(stream, Info{status, id, nullptr, nullptr, nullptr, nullptr});
             });)
KV_PT_EXPORT(cuStreamGetCaptureInfo_v2, _ptsz,
             (CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
              size_t* count),
             return with_stream(handle, pt, [&](Context&, Stream& stream) {
               return info(stream, Info{status, id, graph, nodes, nullptr, count});
             });)
KV_PT_EXPORT(cuStreamGetCaptureInfo_v3, _ptsz,
             (CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
              const CUgraphEdgeData** edges, size_t* count),
             return with_stream(handle, pt, [&](Context&, Stream& stream) {
               return info(stream, Info{status, id, graph, nodes, edges, count});
             });)
KV_PT_EXPORT(cuStreamUpdateCaptureDependencies, _ptsz,
             (CUstream handle, CUgraphNode* nodes, size_t count, unsigned int flags),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return update(stream, nodes, count, flags); });)
KV_PT_EXPORT(cuStreamUpdateCaptureDependencies_v2, _ptsz,
             (CUstream handle, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count, unsigned int flags),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return update(stream, nodes, count, flags); });)
KV_CUDA_EXPORT cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return with_driver([&] {
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, t_mode);
    return CUDA_SUCCESS;
  });
}
