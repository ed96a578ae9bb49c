// Nodes: what each kind holds, adding them, reading and changing their parameters.
#include <algorithm>
#include <cstring>

#include "simgpu/event.h"
#include "simgpu/graph.h"
#include "simgpu/graph_api.h"
#include "simgpu/launch.h"
#include "simgpu/memory.h"

namespace kvram::simgpu {

CUresult kernel_body(const CUDA_KERNEL_NODE_PARAMS_v2& params, NodeBody* out) {
  CUfunction handle = params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  FunctionPtr function = functions().find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  Launch launch{{params.gridDimX, params.gridDimY, params.gridDimZ},
                {params.blockDimX, params.blockDimY, params.blockDimZ},
                params.sharedMemBytes,
                params.kernelParams,
                params.extra};
  if (CUresult r = check_launch(*function, launch); r != CUDA_SUCCESS) return r;
  auto body = std::make_shared<KernelBody>();
  body->params = params;
  // The program's arguments need not outlive the call.
  if (params.kernelParams != nullptr && function->kernel.params_known) {
    for (size_t i = 0; i < function->kernel.params.size(); ++i) {
      const auto* from = static_cast<const unsigned char*>(params.kernelParams[i]);
      if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
      body->arguments.emplace_back(from, from + function->kernel.params[i].bytes);
    }
    for (auto& argument : body->arguments) body->pointers.push_back(argument.data());
    body->params.kernelParams = body->pointers.data();
  }
  *out = std::move(body);
  return CUDA_SUCCESS;
}

CUresult copy_body(const CUDA_MEMCPY3D& copy, NodeBody* out) {
  if (CUresult r = check_copy(copy); r != CUDA_SUCCESS) return r;
  *out = CopyBody{copy};
  return CUDA_SUCCESS;
}

CUresult set_body(const CUDA_MEMSET_NODE_PARAMS& set, NodeBody* out) {
  if (CUresult r = check_set(set); r != CUDA_SUCCESS) return r;
  *out = SetBody{set};
  return CUDA_SUCCESS;
}

CUresult host_body(const CUDA_HOST_NODE_PARAMS& host, NodeBody* out) {
  if (host.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = HostBody{host};
  return CUDA_SUCCESS;
}

CUresult alloc_body(Context& context, const CUmemPoolProps& props, uint64_t bytes, NodeBody* out) {
  if (bytes == 0 || props.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  Device* device = Driver::get().device(props.location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  AllocBody body;
  if (CUresult r = make_graph_memory(context, *device, bytes, &body.memory); r != CUDA_SUCCESS) return r;
  body.params.poolProps = props;
  body.params.bytesize = bytes;
  body.params.dptr = body.memory->at;
  *out = std::move(body);
  return CUDA_SUCCESS;
}

CUresult body_of(Context& context, CUgraphNodeParams& params, NodeBody* out) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
      std::memcpy(&kernel, &params.kernel, std::min(sizeof kernel, sizeof params.kernel));
      return kernel_body(kernel, out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return copy_body(params.memcpy.copyParams, out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS set{};
      std::memcpy(&set, &params.memset, sizeof set);
      return set_body(set, out);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return host_body(CUDA_HOST_NODE_PARAMS{params.host.fn, params.host.userData}, out);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      GraphPtr child = graphs().find(params.graph.graph);
      return child ? child_body(*child, out) : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_body(params.eventWait.event, out);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_body(params.eventRecord.event, out);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUresult r = alloc_body(context, params.alloc.poolProps, params.alloc.bytesize, out);
      if (r == CUDA_SUCCESS) params.alloc.dptr = std::get<AllocBody>(*out).params.dptr;
      return r;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return free_body(params.free.dptr, out);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult child_body(const Graph& child, NodeBody* out) {
  GraphPtr copy = clone_graph(child);
  copy->child = true;
  graphs().add(copy);
  *out = ChildBody{std::move(copy)};
  return CUDA_SUCCESS;
}

CUresult event_body(CUevent event, NodeBody* out) {
  if (!events().find(event)) return CUDA_ERROR_INVALID_HANDLE;
  *out = EventBody{event};
  return CUDA_SUCCESS;
}

CUresult free_body(CUdeviceptr at, NodeBody* out) {
  if (!find_graph_memory(at)) return CUDA_ERROR_INVALID_VALUE;
  *out = FreeBody{at};
  return CUDA_SUCCESS;
}

namespace {

// Adds a node whose body `make` gives, behind the nodes that the program names.
template <typename F>
CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* needed, size_t count, CUgraphNodeType type, F&& make,
             const char* call) {
  return with_context(
      [&](Context& context) {
        GraphPtr graph = graphs().find(handle);
        if (!graph || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        std::vector<GraphNode*> from;
        if (CUresult r = nodes_of(*graph, needed, count, &from); r != CUDA_SUCCESS) return r;
        NodeBody body;
        if (CUresult r = make(context, &body); r != CUDA_SUCCESS) return r;
        NodePtr node;
        CUresult r = add_node(*graph, from, type, std::move(body), &node);
        if (r == CUDA_SUCCESS) *out = node->handle();
        return r;
      },
      call);
}

CUresult add_any(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count, CUgraphNodeParams* params,
                 const char* call) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto make = [&](Context& context, NodeBody* body) { return body_of(context, *params, body); };
  return add(out, graph, needed, count, params->type, make, call);
}

CUDA_KERNEL_NODE_PARAMS_v2 widened(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS_v2 out{};
  std::memcpy(&out, &params, sizeof params);  // the second form only has fields behind those of the first
  return out;
}

// Reads a node's body of one kind.
template <typename Body, typename F>
CUresult read_node(CUgraphNode handle, F&& read, const char* call) {
  return with_driver(
      [&] {
        NodePtr node = graph_nodes().find(handle);
        if (!node) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        const auto* body = std::get_if<Body>(&node->body);
        return body != nullptr ? read(*body) : CUDA_ERROR_INVALID_VALUE;
      },
      call);
}

// Puts another body of the same kind into a node.
template <typename F>
CUresult change_node(CUgraphNode handle, CUgraphNodeType type, F&& make, const char* call) {
  return with_driver(
      [&] {
        NodePtr node = graph_nodes().find(handle);
        if (!node || node->type != type) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        NodeBody body;
        CUresult r = make(&body);
        if (r == CUDA_SUCCESS) node->body = std::move(body);
        return r;
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

#define KV_ADD(type, ...)                                                                                       \
  return add(                                                                                                   \
      out, graph, needed, count, type, [&]([[maybe_unused]] Context& context, NodeBody* body) { __VA_ARGS__; }, \
      __func__)

KV_CUDA_EXPORT cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                       const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_KERNEL, return kernel_body(*params, body));
}
KV_CUDA_EXPORT cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_KERNEL, return kernel_body(widened(*params), body));
}
KV_CUDA_EXPORT cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                    const CUDA_MEMCPY3D* copy, CUcontext) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_MEMCPY, return copy_body(*copy, body));
}
KV_CUDA_EXPORT cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                    const CUDA_MEMSET_NODE_PARAMS* set, CUcontext) {
  if (set == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_MEMSET, return set_body(*set, body));
}
KV_CUDA_EXPORT cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                  const CUDA_HOST_NODE_PARAMS* host) {
  if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_HOST, return host_body(*host, body));
}
KV_CUDA_EXPORT cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count) {
  KV_ADD(CU_GRAPH_NODE_TYPE_EMPTY, (void)body; return CUDA_SUCCESS);
}
KV_CUDA_EXPORT cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                        CUgraph child_handle) {
  GraphPtr child = graphs().find(child_handle);
  if (!child) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_GRAPH, return child_body(*child, body));
}
KV_CUDA_EXPORT cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                         CUevent event) {
  KV_ADD(CU_GRAPH_NODE_TYPE_EVENT_RECORD, return event_body(event, body));
}
KV_CUDA_EXPORT cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                       CUevent event) {
  KV_ADD(CU_GRAPH_NODE_TYPE_WAIT_EVENT, return event_body(event, body));
}
KV_CUDA_EXPORT cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                      CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_ADD(CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUresult r = alloc_body(context, params->poolProps, params->bytesize, body);
         if (r == CUDA_SUCCESS) params->dptr = std::get<AllocBody>(*body).params.dptr; return r);
}
KV_CUDA_EXPORT cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                                     CUdeviceptr at) {
  KV_ADD(CU_GRAPH_NODE_TYPE_MEM_FREE, return free_body(at, body));
}

KV_CUDA_EXPORT cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, size_t count,
                              CUgraphNodeParams* params) {
  return add_any(out, graph, needed, count, params, __func__);
}
KV_CUDA_EXPORT cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, const CUgraphEdgeData*,
                                 size_t count, CUgraphNodeParams* params) {
  return add_any(out, graph, needed, count, params, __func__);
}
KV_CUDA_EXPORT cuGraphAddNode_v3(CUgraphNode* out, CUgraph graph, const CUgraphNode* needed, const CUgraphEdgeData*,
                                 size_t count, CUgraphNodeParams* params) {
  return add_any(out, graph, needed, count, params, __func__);
}

#define KV_READ(Body, out, expression)                   \
  if ((out) == nullptr) return CUDA_ERROR_INVALID_VALUE; \
  return read_node<Body>(                                \
      node,                                              \
      [&](const Body& body) {                            \
        *(out) = expression;                             \
        return CUDA_SUCCESS;                             \
      },                                                 \
      __func__)

KV_CUDA_EXPORT cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  KV_READ(std::shared_ptr<KernelBody>, params, body->params);
}
KV_CUDA_EXPORT cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return read_node<std::shared_ptr<KernelBody>>(
      node,
      [&](const std::shared_ptr<KernelBody>& body) {
        std::memcpy(params, &body->params, sizeof *params);
        return CUDA_SUCCESS;
      },
      __func__);
}
KV_CUDA_EXPORT cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  KV_READ(CopyBody, params, body.copy);
}
KV_CUDA_EXPORT cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  KV_READ(SetBody, params, body.set);
}
KV_CUDA_EXPORT cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  KV_READ(HostBody, params, body.host);
}
KV_CUDA_EXPORT cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  KV_READ(AllocBody, params, body.params);
}
KV_CUDA_EXPORT cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* at) { KV_READ(FreeBody, at, body.at); }
KV_CUDA_EXPORT cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  KV_READ(EventBody, event, body.event);
}
KV_CUDA_EXPORT cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) { KV_READ(EventBody, event, body.event); }
KV_CUDA_EXPORT cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  KV_READ(ChildBody, graph, body.graph->handle());
}

#define KV_CHANGE(type, expression) return change_node(node, type, [&](NodeBody* body) { return expression; }, __func__)

KV_CUDA_EXPORT cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_CHANGE(CU_GRAPH_NODE_TYPE_KERNEL, kernel_body(*params, body));
}
KV_CUDA_EXPORT cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_CHANGE(CU_GRAPH_NODE_TYPE_KERNEL, kernel_body(widened(*params), body));
}
KV_CUDA_EXPORT cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_CHANGE(CU_GRAPH_NODE_TYPE_MEMCPY, copy_body(*params, body));
}
KV_CUDA_EXPORT cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_CHANGE(CU_GRAPH_NODE_TYPE_MEMSET, set_body(*params, body));
}
KV_CUDA_EXPORT cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KV_CHANGE(CU_GRAPH_NODE_TYPE_HOST, host_body(*params, body));
}
KV_CUDA_EXPORT cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  KV_CHANGE(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_body(event, body));
}
KV_CUDA_EXPORT cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  KV_CHANGE(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_body(event, body));
}
