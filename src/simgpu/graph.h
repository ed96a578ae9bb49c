// Graphs: nodes and edges as the program builds or captures them, and their executable form. One lock guards the
// structure of all graphs; a launch works on the executable's own copy.
#pragma once
#include <map>
#include <optional>

#include "simgpu/stream.h"

namespace kvram::simgpu {

struct Graph;

// Memory of an allocation node. The address is fixed with the node; bytes are taken from the device's graph pool when a
// launch comes to the node, and given back by a free node, an ordinary free, or the next launch that frees by itself.
struct GraphMemory {
  Device* device = nullptr;
  CUdeviceptr at = 0;
  uint64_t bytes = 0;
  const Context* context = nullptr;  // only compared
  std::mutex mutex;
  bool live = false;
  bool gone = false;  // its address went with the context
  ~GraphMemory();
};
using GraphMemoryPtr = std::shared_ptr<GraphMemory>;

struct KernelBody {
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  std::vector<std::vector<unsigned char>> arguments;  // copies, which params.kernelParams points at
  std::vector<void*> pointers;
};
struct CopyBody {
  CUDA_MEMCPY3D copy{};
};
struct SetBody {
  CUDA_MEMSET_NODE_PARAMS set{};
};
struct HostBody {
  CUDA_HOST_NODE_PARAMS host{};
};
struct ChildBody {
  std::shared_ptr<Graph> graph;
};
struct EventBody {
  CUevent event = nullptr;
};
struct AllocBody {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  GraphMemoryPtr memory;
};
struct FreeBody {
  CUdeviceptr at = 0;
};
using NodeBody = std::variant<std::monostate, std::shared_ptr<KernelBody>, CopyBody, SetBody, HostBody, ChildBody,
                              EventBody, AllocBody, FreeBody>;

struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Graph* graph = nullptr;
  unsigned id = 0;
  NodeBody body;
  std::vector<GraphNode*> from;  // what it waits for
  std::vector<GraphNode*> to;
  GraphNode* original = nullptr;  // of a clone; only compared
  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};
using NodePtr = std::shared_ptr<GraphNode>;

struct UserObject {
  CUhostFn destroy = nullptr;
  void* data = nullptr;
  std::atomic<unsigned> refs = 0;
};

struct Graph {
  std::vector<NodePtr> nodes;
  unsigned id = 0;
  unsigned next_node = 0;
  bool child = false;  // owned by a node: not for cuGraphDestroy
  std::map<std::shared_ptr<UserObject>, unsigned> objects;
  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  ~Graph();
};
using GraphPtr = std::shared_ptr<Graph>;

// One step of an executable, in an order in which it can run.
struct ExecNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  NodeBody body;
  std::vector<size_t> from;           // indices of earlier steps
  const GraphNode* source = nullptr;  // only compared
  bool enabled = true;
};
struct GraphExec {
  std::mutex mutex;
  std::vector<ExecNode> nodes;
  Device* device = nullptr;
  std::weak_ptr<Context> context;
  uint64_t flags = 0;
  unsigned id = 0;
  uint64_t charged = 0;
  ~GraphExec();
};
using ExecPtr = std::shared_ptr<GraphExec>;

std::mutex& graph_mutex();
HandleTable<Graph>& graphs();
HandleTable<GraphNode>& graph_nodes();
HandleTable<GraphExec>& graph_execs();

// ---- structure (graph.cc); the caller holds graph_mutex ----
GraphPtr make_graph();
CUresult add_node(Graph& graph, const std::vector<GraphNode*>& from, CUgraphNodeType type, NodeBody body, NodePtr* out);
// Edges must be of one graph and new, and must not close a circle: CUDA_ERROR_INVALID_VALUE.
CUresult add_edge(GraphNode* from, GraphNode* to);
bool remove_edge(GraphNode* from, GraphNode* to);
void remove_node(GraphNode* node);
GraphPtr clone_graph(const Graph& graph);
// The nodes behind an array of handles; CUDA_ERROR_INVALID_VALUE if one is none of this graph.
CUresult nodes_of(const Graph& graph, const CUgraphNode* handles, size_t count, std::vector<GraphNode*>* out);
// In an order in which they can run, children in place of their node.
std::vector<ExecNode> flatten(const Graph& graph);

// ---- bodies (graph_nodes.cc) ----
CUresult kernel_body(const CUDA_KERNEL_NODE_PARAMS_v2& params, NodeBody* out);
CUresult copy_body(const CUDA_MEMCPY3D& copy, NodeBody* out);
CUresult set_body(const CUDA_MEMSET_NODE_PARAMS& set, NodeBody* out);
CUresult host_body(const CUDA_HOST_NODE_PARAMS& host, NodeBody* out);
CUresult alloc_body(Context& context, const CUmemPoolProps& props, uint64_t bytes, NodeBody* out);

// ---- memory (graph_memory.cc) ----
CUresult make_graph_memory(Context& context, Device& device, uint64_t bytes, GraphMemoryPtr* out);
GraphMemoryPtr find_graph_memory(CUdeviceptr at);
// Takes its bytes from the graph pool; CUDA_ERROR_INVALID_VALUE if it has them already.
CUresult take_graph_memory(const GraphMemoryPtr& memory);
// False if it has none.
bool give_graph_memory(const GraphMemoryPtr& memory);
// All memory of graphs that were made in a context ends with it.
void forget_context_graph_memory(const Context& context);

// ---- running (graph_exec.cc) ----
CUresult instantiate(Context& context, const Graph& graph, uint64_t flags, CUgraphExec* out);
CUresult launch_exec(const ExecPtr& exec, Stream& stream);

}  // namespace kvram::simgpu
