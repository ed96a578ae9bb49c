#include "simgpu/graph.h"

#include <algorithm>
#include <unordered_map>

namespace kvram::simgpu {
namespace {

std::atomic<unsigned> g_next_graph = 1;

bool reaches(const GraphNode* from, const GraphNode* to) {
  std::vector<const GraphNode*> open = {from};
  std::map<const GraphNode*, bool> seen;
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (node == to) return true;
    if (std::exchange(seen[node], true)) continue;
    open.insert(open.end(), node->to.begin(), node->to.end());
  }
  return false;
}

// Nodes with all they wait for before them.
std::vector<GraphNode*> ordered(const Graph& graph) {
  std::unordered_map<const GraphNode*, size_t> waits;
  std::vector<GraphNode*> out;
  for (const NodePtr& node : graph.nodes) {
    waits[node.get()] = node->from.size();
    if (node->from.empty()) out.push_back(node.get());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    for (GraphNode* next : out[i]->to) {
      if (--waits[next] == 0) out.push_back(next);
    }
  }
  return out;
}

// Appends the steps of a graph behind `before`; returns the indices of its last steps.
std::vector<size_t> append(const Graph& graph, const std::vector<size_t>& before, std::vector<ExecNode>& out) {
  std::unordered_map<const GraphNode*, std::vector<size_t>> ends;
  std::vector<size_t> last;
  for (GraphNode* node : ordered(graph)) {
    std::vector<size_t> from;
    for (const GraphNode* needed : node->from) from.insert(from.end(), ends[needed].begin(), ends[needed].end());
    if (node->from.empty()) from = before;
    if (const auto* child = std::get_if<ChildBody>(&node->body)) {
      ends[node] = append(*child->graph, from, out);
      if (ends[node].empty()) ends[node] = from;
    } else {
      out.push_back(ExecNode{node->type, node->body, from, node, true});
      ends[node] = {out.size() - 1};
    }
    if (node->to.empty()) last.insert(last.end(), ends[node].begin(), ends[node].end());
  }
  return last;
}

}  // namespace

std::mutex& graph_mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
HandleTable<Graph>& graphs() {
  static auto* const table = new HandleTable<Graph>;
  return *table;
}
HandleTable<GraphNode>& graph_nodes() {
  static auto* const table = new HandleTable<GraphNode>;
  return *table;
}
HandleTable<GraphExec>& graph_execs() {
  static auto* const table = new HandleTable<GraphExec>;
  return *table;
}

Graph::~Graph() {
  for (const NodePtr& node : nodes) graph_nodes().remove(node.get());
  for (auto& [object, count] : objects) {
    if (object->refs.fetch_sub(count) == count && object->destroy != nullptr) object->destroy(object->data);
  }
}

GraphPtr make_graph() {
  auto graph = std::make_shared<Graph>();
  graph->id = g_next_graph.fetch_add(1);
  return graph;
}

CUresult add_node(Graph& graph, const std::vector<GraphNode*>& from, CUgraphNodeType type, NodeBody body,
                  NodePtr* out) {
  auto node = std::make_shared<GraphNode>();
  node->type = type;
  node->graph = &graph;
  node->id = graph.next_node++;
  node->body = std::move(body);
  for (GraphNode* needed : from) {
    if (std::find(node->from.begin(), node->from.end(), needed) != node->from.end()) continue;
    node->from.push_back(needed);
    needed->to.push_back(node.get());
  }
  graph_nodes().add(node);
  graph.nodes.push_back(node);
  if (out != nullptr) *out = std::move(node);
  return CUDA_SUCCESS;
}

CUresult add_edge(GraphNode* from, GraphNode* to) {
  if (from == to || from->graph != to->graph || reaches(to, from)) return CUDA_ERROR_INVALID_VALUE;
  if (std::find(to->from.begin(), to->from.end(), from) != to->from.end()) return CUDA_ERROR_INVALID_VALUE;
  to->from.push_back(from);
  from->to.push_back(to);
  return CUDA_SUCCESS;
}

bool remove_edge(GraphNode* from, GraphNode* to) {
  if (std::erase(to->from, from) == 0) return false;
  std::erase(from->to, to);
  return true;
}

void remove_node(GraphNode* node) {
  for (GraphNode* other : node->from) std::erase(other->to, node);
  for (GraphNode* other : node->to) std::erase(other->from, node);
  NodePtr keep = graph_nodes().remove(node);
  std::erase(node->graph->nodes, keep);
}

GraphPtr clone_graph(const Graph& graph) {
  GraphPtr copy = make_graph();
  std::unordered_map<const GraphNode*, GraphNode*> made;
  for (GraphNode* node : ordered(graph)) {
    std::vector<GraphNode*> from;
    for (const GraphNode* needed : node->from) from.push_back(made[needed]);
    NodeBody body = node->body;
    if (auto* child = std::get_if<ChildBody>(&body)) {
      child->graph = clone_graph(*child->graph);
      child->graph->child = true;
      graphs().add(child->graph);
    }
    NodePtr clone;
    add_node(*copy, from, node->type, std::move(body), &clone);
    clone->original = node;
    made[node] = clone.get();
  }
  return copy;
}

CUresult nodes_of(const Graph& graph, const CUgraphNode* handles, size_t count, std::vector<GraphNode*>* out) {
  if (handles == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    NodePtr node = graph_nodes().find(handles[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    out->push_back(node.get());
  }
  return CUDA_SUCCESS;
}

std::vector<ExecNode> flatten(const Graph& graph) {
  std::vector<ExecNode> out;
  append(graph, {}, out);
  return out;
}

}  // namespace kvram::simgpu
