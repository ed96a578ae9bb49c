// Executable graphs: what a launch does.
#include <algorithm>
#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/graph_api.h"
#include "simgpu/memory.h"
#include "simgpu/module.h"
#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

std::atomic<unsigned> g_next_exec = 1;

uint64_t duration(const ExecNode& node) {
  if (!node.enabled) return 0;
  if (const auto* kernel = std::get_if<std::shared_ptr<KernelBody>>(&node.body)) {
    const CUDA_KERNEL_NODE_PARAMS_v2& params = (*kernel)->params;
    const void* handle = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
    FunctionPtr function = functions().find(handle);
    return function ? function->kernel.gpu_ns : 0;
  }
  if (const auto* copy = std::get_if<CopyBody>(&node.body)) return copy_ns(copy_bytes(copy->copy), true);
  if (const auto* set = std::get_if<SetBody>(&node.body)) {
    return copy_ns(set->set.width * std::max<size_t>(1, set->set.height) * set->set.elementSize, false);
  }
  return 0;
}

void run_body(const ExecNode& node) {
  if (!node.enabled) return;
  if (const auto* copy = std::get_if<CopyBody>(&node.body)) run_copy(copy->copy);
  if (const auto* set = std::get_if<SetBody>(&node.body)) run_set(set->set);
}

// Has a step that needs the stream's queue, or an event of its own.
bool needs_steps(const std::vector<ExecNode>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const ExecNode& node) {
    return node.enabled &&
           (std::holds_alternative<HostBody>(node.body) || std::holds_alternative<EventBody>(node.body));
  });
}

// Branches run side by side: the longest way through.
uint64_t longest_way(const std::vector<ExecNode>& nodes) {
  std::vector<uint64_t> end(nodes.size(), 0);
  uint64_t longest = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t needed : nodes[i].from) end[i] = std::max(end[i], end[needed]);
    end[i] += duration(nodes[i]);
    longest = std::max(longest, end[i]);
  }
  return longest;
}

// Memory in the order of the steps. When the pool cannot have what is needed, all is as before.
CUresult move_memory(const std::vector<ExecNode>& nodes, bool free_first) {
  std::vector<GraphMemoryPtr> taken;
  std::vector<GraphMemoryPtr> given;
  CUresult result = CUDA_SUCCESS;
  for (const ExecNode& node : nodes) {
    const auto* alloc = std::get_if<AllocBody>(&node.body);
    if (alloc != nullptr && free_first) give_graph_memory(alloc->memory);
  }
  for (const ExecNode& node : nodes) {
    if (const auto* alloc = std::get_if<AllocBody>(&node.body)) {
      result = take_graph_memory(alloc->memory);
      if (result == CUDA_SUCCESS) taken.push_back(alloc->memory);
    } else if (const auto* release = std::get_if<FreeBody>(&node.body)) {
      GraphMemoryPtr memory = find_graph_memory(release->at);
      if (memory && give_graph_memory(memory)) {
        given.push_back(std::move(memory));
      } else {
        result = CUDA_ERROR_INVALID_VALUE;
      }
    }
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS) return result;
  for (const GraphMemoryPtr& memory : taken) give_graph_memory(memory);
  for (const GraphMemoryPtr& memory : given) {
    bool own = std::find(taken.begin(), taken.end(), memory) != taken.end();
    if (!own) take_graph_memory(memory);  // its chunks are still the pool's
  }
  return result;
}

CUresult enqueue_step(const ExecNode& node, Stream& stream) {
  if (!node.enabled) return CUDA_SUCCESS;
  if (const auto* event = std::get_if<EventBody>(&node.body)) {
    EventPtr found = events().find(event->event);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    bool record = node.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    return record ? record_event(*found, stream) : wait_event(*found, stream);
  }
  Op op;
  op.gpu_ns = duration(node);
  if (const auto* host = std::get_if<HostBody>(&node.body)) {
    op.host = true;
    op.effect = [call = host->host] {
      call.fn(call.userData);
      return CUDA_SUCCESS;
    };
  } else if (std::holds_alternative<CopyBody>(node.body) || std::holds_alternative<SetBody>(node.body)) {
    op.effect = [node] {
      run_body(node);
      return CUDA_SUCCESS;
    };
  }
  return enqueue(stream, std::move(op));
}

// The largest sum of memory that a launch holds at one time.
uint64_t peak_bytes(const std::vector<ExecNode>& nodes) {
  uint64_t now = 0;
  uint64_t peak = 0;
  for (const ExecNode& node : nodes) {
    if (const auto* alloc = std::get_if<AllocBody>(&node.body)) {
      if (!alloc->memory->live) now += alloc->memory->bytes;
    } else if (const auto* release = std::get_if<FreeBody>(&node.body)) {
      GraphMemoryPtr memory = find_graph_memory(release->at);
      if (memory) now -= std::min(now, memory->bytes);
    }
    peak = std::max(peak, now);
  }
  return peak;
}

// Backs the memory of a launch ahead of it.
CUresult upload(GraphExec& exec) {
  std::lock_guard lock(exec.mutex);
  uint64_t peak = peak_bytes(exec.nodes);
  if (peak == 0 || !exec.device->graph_pool) return CUDA_SUCCESS;
  if (CUresult r = exec.device->graph_pool->take(peak); r != CUDA_SUCCESS) return r;
  exec.device->graph_pool->give(peak);
  return CUDA_SUCCESS;
}

template <typename F>
CUresult with_exec(CUgraphExec handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        ExecPtr exec = graph_execs().find(handle);
        if (!exec) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(exec->mutex);
        return body(*exec);
      },
      call);
}

ExecNode* step_of(GraphExec& exec, CUgraphNode node) {
  for (ExecNode& step : exec.nodes) {
    if (step.source == reinterpret_cast<GraphNode*>(node)) return &step;
  }
  return nullptr;
}

template <typename F>
CUresult change_step(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, F&& make, const char* call) {
  return with_exec(
      handle,
      [&](GraphExec& exec) {
        ExecNode* step = step_of(exec, node);
        if (step == nullptr || step->type != type) return CUDA_ERROR_INVALID_VALUE;
        NodeBody body;
        CUresult r = make(&body);
        if (r == CUDA_SUCCESS) step->body = std::move(body);
        return r;
      },
      call);
}

bool same_shape(const std::vector<ExecNode>& a, const std::vector<ExecNode>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].type != b[i].type || a[i].from != b[i].from) return false;
  }
  return true;
}

CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResult* result, const char* call) {
  GraphPtr graph = graphs().find(graph_handle);
  if (!graph || result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_exec(
      handle,
      [&](GraphExec& exec) {
        std::lock_guard lock(graph_mutex());
        std::vector<ExecNode> wanted = flatten(*graph);
        *result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (!same_shape(exec.nodes, wanted)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        for (size_t i = 0; i < wanted.size(); ++i) {
          // The node that the program names stays the one of the graph it was made from.
          exec.nodes[i].body = std::move(wanted[i].body);
        }
        *result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
        return CUDA_SUCCESS;
      },
      call);
}

CUresult instantiate_handle(CUgraphExec* out, CUgraph handle, uint64_t flags, const char* call) {
  return with_context(
      [&](Context& context) {
        GraphPtr graph = graphs().find(handle);
        if (!graph || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        return instantiate(context, *graph, flags, out);
      },
      call);
}

}  // namespace

GraphExec::~GraphExec() {
  if (charged != 0) uncharge(*device, charged);
}

CUresult instantiate(Context& context, const Graph& graph, uint64_t flags, CUgraphExec* out) {
  auto exec = std::make_shared<GraphExec>();
  exec->device = context.device;
  exec->context = context.weak_from_this();
  exec->flags = flags;
  exec->id = g_next_exec.fetch_add(1);
  exec->nodes = flatten(graph);
  uint64_t cost = context.device->info->costs.graph_exec_bytes;
  if (CUresult r = charge(*context.device, cost); r != CUDA_SUCCESS) return r;
  exec->charged = cost;
  *out = reinterpret_cast<CUgraphExec>(graph_execs().add(std::move(exec)));
  return CUDA_SUCCESS;
}

CUresult launch_exec(const ExecPtr& exec, Stream& stream) {
  if (stream.capturing) {
    invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  std::vector<ExecNode> nodes;
  {
    std::lock_guard lock(exec->mutex);
    nodes = exec->nodes;
  }
  bool free_first = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  if (CUresult r = move_memory(nodes, free_first); r != CUDA_SUCCESS) return r;
  if (needs_steps(nodes)) {
    for (const ExecNode& node : nodes) {
      if (CUresult r = enqueue_step(node, stream); r != CUDA_SUCCESS) return r;
    }
    return CUDA_SUCCESS;
  }
  Op op;
  op.gpu_ns = longest_way(nodes);
  op.effect = [nodes = std::move(nodes)] {
    for (const ExecNode& node : nodes) run_body(node);
    return CUDA_SUCCESS;
  };
  return enqueue(stream, std::move(op));
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* bad, char* log, size_t room) {
  if (bad != nullptr) *bad = nullptr;
  if (log != nullptr && room != 0) *log = '\0';
  return instantiate_handle(out, graph, 0, __func__);
}
KV_CUDA_EXPORT cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* bad, char* log, size_t room) {
  if (bad != nullptr) *bad = nullptr;
  if (log != nullptr && room != 0) *log = '\0';
  return instantiate_handle(out, graph, 0, __func__);
}
KV_CUDA_EXPORT cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return instantiate_handle(out, graph, flags, __func__);
}
KV_PT_EXPORT(cuGraphInstantiateWithParams, _ptsz,
             (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
             if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
             CUresult r = instantiate_handle(out, graph, params->flags, __func__); params->hErrNode_out = nullptr;
             params->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
             bool send = r == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
             if (!send) return r; return upload(*graph_execs().find(*out));)

KV_PT_EXPORT(cuGraphLaunch, _ptsz, (CUgraphExec handle, CUstream stream_handle),
             return with_stream(stream_handle, pt, [&](Context&, Stream& stream) {
               ExecPtr exec = graph_execs().find(handle);
               return exec ? launch_exec(exec, stream) : CUDA_ERROR_INVALID_VALUE;
             });)
KV_PT_EXPORT(cuGraphUpload, _ptsz, (CUgraphExec handle, CUstream stream_handle),
             return with_stream(stream_handle, pt, [&](Context&, Stream&) {
               ExecPtr exec = graph_execs().find(handle);
               return exec ? upload(*exec) : CUDA_ERROR_INVALID_VALUE;
             });)

KV_CUDA_EXPORT cuGraphExecDestroy(CUgraphExec handle) {
  return with_driver([&] { return graph_execs().remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return with_exec(handle, [&](GraphExec& exec) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec.flags;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphExecGetId(CUgraphExec handle, unsigned int* id) {
  return with_exec(handle, [&](GraphExec& exec) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = exec.id;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  info->errorNode = nullptr;
  info->errorFromNode = nullptr;
  return update(exec, graph, &info->result, __func__);
}
KV_CUDA_EXPORT cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* bad, CUgraphExecUpdateResult* result) {
  if (bad != nullptr) *bad = nullptr;
  return update(exec, graph, result, __func__);
}

KV_CUDA_EXPORT cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  return with_exec(handle, [&](GraphExec& exec) {
    ExecNode* step = step_of(exec, node);
    bool can = step != nullptr && (step->type == CU_GRAPH_NODE_TYPE_KERNEL || step->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                                   step->type == CU_GRAPH_NODE_TYPE_MEMSET);
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    step->enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  return with_exec(handle, [&](GraphExec& exec) {
    ExecNode* step = step_of(exec, node);
    if (step == nullptr || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *enabled = step->enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto make = [&](NodeBody* body) { return kernel_body(*params, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, make, __func__);
}
KV_CUDA_EXPORT cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 wide{};
  std::memcpy(&wide, params, sizeof *params);
  return cuGraphExecKernelNodeSetParams_v2(exec, node, &wide);
}
KV_CUDA_EXPORT cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                              CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto make = [&](NodeBody* body) { return copy_body(*params, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, make, __func__);
}
KV_CUDA_EXPORT cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                                              CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto make = [&](NodeBody* body) { return set_body(*params, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, make, __func__);
}
KV_CUDA_EXPORT cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto make = [&](NodeBody* body) { return host_body(*params, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_HOST, make, __func__);
}
KV_CUDA_EXPORT cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  auto make = [&](NodeBody* body) { return event_body(event, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, make, __func__);
}
KV_CUDA_EXPORT cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  auto make = [&](NodeBody* body) { return event_body(event, body); };
  return change_step(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, make, __func__);
}
