// Graphs: an instance costs a little at once, and the memory of its allocation nodes when it is launched or uploaded.
#include "guard/state.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

constexpr int kMaxDepth = 8;  // of graphs in graphs
constexpr size_t kMaxNodes = 1 << 20;

// What the allocation nodes of an instance take. Kept in one page of its own; most instances have none.
struct GraphMemory {
  uint64_t bytes[lease::kMaxGpus];
  uint32_t frees_all;  // what it allocates it frees again
};
static_assert(sizeof(GraphMemory) <= 4096);

struct Walk {
  State& s;
  GraphMemory* sum;  // made when the first allocation node is met
  uint64_t allocations;
  uint64_t frees;
};

void walk(Walk& w, CUgraph graph, int depth);

void visit(Walk& w, CUgraphNode node, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
  if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) ++w.frees;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    CUgraph inner = nullptr;
    if (REAL(cuGraphChildGraphNodeGetGraph)(node, &inner) == CUDA_SUCCESS) walk(w, inner, depth + 1);
  }
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  if (REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS) return;
  ++w.allocations;
  const int gpu = gpu_of_device(w.s, params.poolProps.location.id);
  if (gpu == kNoGpu) return;
  if (w.sum == nullptr) w.sum = static_cast<GraphMemory*>(map_pages(4096));
  if (w.sum != nullptr) {
    w.sum->bytes[gpu] = lease::add_saturating(w.sum->bytes[gpu], lease::linear_cost(params.bytesize));
  }
}

void walk(Walk& w, CUgraph graph, int depth) {
  size_t count = 0;
  if (depth > kMaxDepth || REAL(cuGraphGetNodes)(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  if (count > kMaxNodes) return;
  CUgraphNode* nodes = static_cast<CUgraphNode*>(map_pages(count * sizeof(CUgraphNode)));
  if (nodes == nullptr) return;
  size_t got = count;
  if (REAL(cuGraphGetNodes)(graph, nodes, &got) == CUDA_SUCCESS) {
    for (size_t i = 0; i < got && i < count; ++i) visit(w, nodes[i], depth);
  }
  unmap_pages(nodes, count * sizeof(CUgraphNode));
}

// Charges graph memory on one GPU and holds its pool for the launch. False: refused. A graph that frees what it
// allocates may still be running in that stream, and takes no more once it is done: then we wait for it first.
template <typename Wait>
bool reserve(State& s, const GraphMemory& memory, int gpu, Pool** held, Wait wait) {
  const CUdevice device = static_cast<CUdevice>(s.device_of_gpu[gpu]) - 1;
  Pool* pool = device >= 0 ? s.pools.get(PoolKind::kGraph, static_cast<uint64_t>(device), gpu) : nullptr;
  if (pool == nullptr) return false;
  pool->lock.lock();
  *held = pool;
  if (memory.frees_all != 0 && s.pools.busy(*pool)) {
    if (s.pools.charge_growth_locally(s, *pool, memory.bytes[gpu])) return true;
    wait();
  }
  return s.pools.charge_growth(s, *pool, memory.bytes[gpu], "cuGraphLaunch", memory.bytes[gpu]);
}

// The call may take what the graph's nodes allocate.
template <typename Call, typename Wait>
CUresult with_memory(State& s, const GraphMemory& memory, Call call, Wait wait) {
  Pool* held[lease::kMaxGpus] = {};
  CUresult r = CUDA_SUCCESS;
  for (unsigned g = 0; g < lease::kMaxGpus && r == CUDA_SUCCESS; ++g) {
    if (memory.bytes[g] != 0 && !reserve(s, memory, static_cast<int>(g), &held[g], wait)) r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  const bool called = r == CUDA_SUCCESS;
  if (called) r = call();
  for (unsigned g = 0; g < lease::kMaxGpus; ++g) {
    if (held[g] == nullptr) continue;
    if (called && r == CUDA_SUCCESS) s.client.succeeded(static_cast<int>(g), memory.bytes[g]);
    s.pools.true_up(s, *held[g]);
    held[g]->lock.unlock();
  }
  return r;
}

template <typename Call>
CUresult instantiate(const char* name, CUgraphExec* out, CUgraph graph, unsigned long long flags, Call call) {
  State& s = state();
  Where at;
  if (out == nullptr || !here(s, &at)) return call();
  if (at.gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  Walk w{s, nullptr, 0, 0};
  walk(w, graph, 0);
  if (w.sum != nullptr) {
    w.sum->frees_all = w.frees >= w.allocations || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  }
  const uint64_t bytes = s.client.cost(at.gpu).graph_exec_bytes;
  const Entry entry{0, Kind::kExec, static_cast<uint32_t>(at.gpu), lease::to_units(bytes), at.context, bits(w.sum), 0};
  const auto make = [&] { return account(s, name, entry, bytes, call, [out] { return *out; }); };
  const bool uploads = w.sum != nullptr && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  const CUresult r = uploads ? with_memory(s, *w.sum, make, [] {}) : make();
  if (r != CUDA_SUCCESS) unmap_pages(w.sum, 4096);
  return r;
}

template <typename Call, typename Wait>
CUresult launch(CUgraphExec exec, Call call, Wait wait) {
  State& s = state();
  Entry entry;
  if (KV_LIKELY(!s.table.find(Kind::kExec, bits(exec), &entry) || entry.owner == 0)) return call();
  return with_memory(s, *reinterpret_cast<const GraphMemory*>(entry.owner), call, wait);
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                                              size_t log_bytes) {
  return instantiate("cuGraphInstantiate", exec, graph, 0,
                     [=] { return REAL(cuGraphInstantiate)(exec, graph, error, log, log_bytes); });
}
KV_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                                                 size_t log_bytes) {
  return instantiate("cuGraphInstantiate_v2", exec, graph, 0,
                     [=] { return REAL(cuGraphInstantiate_v2)(exec, graph, error, log, log_bytes); });
}
KV_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate("cuGraphInstantiateWithFlags", exec, graph, flags,
                     [=] { return REAL(cuGraphInstantiateWithFlags)(exec, graph, flags); });
}
KV_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                        CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate("cuGraphInstantiateWithParams", exec, graph, params != nullptr ? params->flags : 0,
                     [=] { return REAL(cuGraphInstantiateWithParams)(exec, graph, params); });
}
KV_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                             CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate("cuGraphInstantiateWithParams_ptsz", exec, graph, params != nullptr ? params->flags : 0,
                     [=] { return REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params); });
}
KV_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  return discharge(state(), Kind::kExec, bits(exec), [=] { return REAL(cuGraphExecDestroy)(exec); });
}

KV_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(exec, [=] { return REAL(cuGraphLaunch)(exec, stream); }, [=] { REAL(cuStreamSynchronize)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(
      exec, [=] { return REAL(cuGraphLaunch_ptsz)(exec, stream); }, [=] { REAL(cuStreamSynchronize_ptsz)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return launch(exec, [=] { return REAL(cuGraphUpload)(exec, stream); }, [=] { REAL(cuStreamSynchronize)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(
      exec, [=] { return REAL(cuGraphUpload_ptsz)(exec, stream); }, [=] { REAL(cuStreamSynchronize_ptsz)(stream); });
}

KV_EXPORT CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  State& s = state();
  const int gpu = gpu_of_device(s, device);
  Pool* pool = gpu != kNoGpu ? s.pools.find(PoolKind::kGraph, static_cast<uint64_t>(device)) : nullptr;
  if (pool == nullptr) return REAL(cuDeviceGraphMemTrim)(device);
  const Guarded hold(pool->lock);
  const CUresult r = REAL(cuDeviceGraphMemTrim)(device);
  if (r != CUDA_SUCCESS) return r;
  s.pools.true_up(s, *pool);
  return r;
}
