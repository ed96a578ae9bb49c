// Entry points of graphs as structures: making, cloning, edges, questions.
#include "simgpu/graph_api.h"

#include <algorithm>

namespace kvram::simgpu {
namespace {

template <typename F>
CUresult with_graph(CUgraph handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        GraphPtr graph = graphs().find(handle);
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        return body(*graph);
      },
      call);
}
template <typename F>
CUresult with_node(CUgraphNode handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        NodePtr node = graph_nodes().find(handle);
        if (!node) return CUDA_ERROR_INVALID_VALUE;
        std::lock_guard lock(graph_mutex());
        return body(*node);
      },
      call);
}

// *count is the room on entry and the number on return; entries beyond it are null. Without an array: the number alone.
template <typename List>
CUresult put_nodes(const List& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i]->handle() : nullptr;
  }
  *count = out != nullptr ? std::min(*count, nodes.size()) : nodes.size();
  return CUDA_SUCCESS;
}

CUresult edges(const Graph& graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  size_t found = 0;
  for (const NodePtr& node : graph.nodes) {
    for (GraphNode* next : node->to) {
      if (from != nullptr && found < *count) {
        from[found] = node->handle();
        to[found] = next->handle();
        if (data != nullptr) data[found] = CUgraphEdgeData{};
      }
      ++found;
    }
  }
  *count = from != nullptr ? std::min(*count, found) : found;
  return CUDA_SUCCESS;
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count, bool add,
                      const char* call) {
  return with_graph(
      handle,
      [&](Graph& graph) {
        std::vector<GraphNode*> a;
        std::vector<GraphNode*> b;
        if (CUresult r = nodes_of(graph, from, count, &a); r != CUDA_SUCCESS) return r;
        if (CUresult r = nodes_of(graph, to, count, &b); r != CUDA_SUCCESS) return r;
        for (size_t i = 0; i < count; ++i) {
          bool done = add ? add_edge(a[i], b[i]) == CUDA_SUCCESS : remove_edge(a[i], b[i]);
          if (!done) return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
      },
      call);
}

HandleTable<UserObject>& user_objects() {
  static auto* const table = new HandleTable<UserObject>;
  return *table;
}

CUresult release_object(CUuserObject handle, unsigned count) {
  std::shared_ptr<UserObject> object = user_objects().find(handle);
  if (!object || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (object->refs.fetch_sub(count) == count) {
    user_objects().remove(handle);
    if (object->destroy != nullptr) object->destroy(object->data);
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuGraphCreate(CUgraph* out, unsigned int flags) {
  return with_driver([&] {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    GraphPtr graph = make_graph();
    graphs().add(graph);
    *out = graph->handle();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphDestroy(CUgraph handle) {
  return with_driver([&] {
    GraphPtr graph = graphs().find(handle);
    if (!graph || graph->child) return CUDA_ERROR_INVALID_VALUE;
    graphs().remove(handle);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphClone(CUgraph* out, CUgraph original) {
  return with_graph(original, [&](Graph& graph) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    GraphPtr copy = clone_graph(graph);
    graphs().add(copy);
    *out = copy->handle();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return with_graph(clone, [&](Graph& graph) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const NodePtr& node : graph.nodes) {
      if (node->original == reinterpret_cast<GraphNode*>(original)) {
        *out = node->handle();
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph(handle, [&](Graph& graph) { return put_nodes(graph.nodes, nodes, count); });
}
KV_CUDA_EXPORT cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph(handle, [&](Graph& graph) {
    std::vector<NodePtr> roots;
    for (const NodePtr& node : graph.nodes) {
      if (node->from.empty()) roots.push_back(node);
    }
    return put_nodes(roots, nodes, count);
  });
}
KV_CUDA_EXPORT cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return with_graph(handle, [&](Graph& graph) { return edges(graph, from, to, nullptr, count); });
}
KV_CUDA_EXPORT cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                                  size_t* count) {
  return with_graph(handle, [&](Graph& graph) { return edges(graph, from, to, data, count); });
}
KV_CUDA_EXPORT cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(graph, from, to, count, true, __func__);
}
KV_CUDA_EXPORT cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                         const CUgraphEdgeData*, size_t count) {
  return change_edges(graph, from, to, count, true, __func__);
}
KV_CUDA_EXPORT cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(graph, from, to, count, false, __func__);
}
KV_CUDA_EXPORT cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                            const CUgraphEdgeData*, size_t count) {
  return change_edges(graph, from, to, count, false, __func__);
}
KV_CUDA_EXPORT cuGraphGetId(CUgraph handle, unsigned int* id) {
  return with_graph(handle, [&](Graph& graph) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = graph.id;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuGraphDestroyNode(CUgraphNode handle) {
  return with_node(handle, [](GraphNode& node) {
    bool memory = node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (memory) return CUDA_ERROR_NOT_SUPPORTED;  // as the driver has it
    remove_node(&node);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return with_node(handle, [&](GraphNode& node) {
    if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = node.type;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return with_node(handle, [&](GraphNode& node) { return put_nodes(node.from, nodes, count); });
}
KV_CUDA_EXPORT cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data,
                                             size_t* count) {
  return with_node(handle, [&](GraphNode& node) {
    if (data != nullptr && count != nullptr) std::fill_n(data, *count, CUgraphEdgeData{});
    return put_nodes(node.from, nodes, count);
  });
}
KV_CUDA_EXPORT cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return with_node(handle, [&](GraphNode& node) { return put_nodes(node.to, nodes, count); });
}
KV_CUDA_EXPORT cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data,
                                               size_t* count) {
  return with_node(handle, [&](GraphNode& node) {
    if (data != nullptr && count != nullptr) std::fill_n(data, *count, CUgraphEdgeData{});
    return put_nodes(node.to, nodes, count);
  });
}
KV_CUDA_EXPORT cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph* graph) {
  return with_node(handle, [&](GraphNode& node) {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph = node.graph->handle();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphNodeGetLocalId(CUgraphNode handle, unsigned int* id) {
  return with_node(handle, [&](GraphNode& node) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = node.id;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned int refs,
                                  unsigned int flags) {
  return with_driver([&] {
    if (out == nullptr || destroy == nullptr || refs == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto object = std::make_shared<UserObject>();
    object->destroy = destroy;
    object->data = data;
    object->refs = refs;
    *out = reinterpret_cast<CUuserObject>(user_objects().add(std::move(object)));
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuUserObjectRetain(CUuserObject handle, unsigned int count) {
  return with_driver([&] {
    std::shared_ptr<UserObject> object = user_objects().find(handle);
    if (!object || count == 0) return CUDA_ERROR_INVALID_VALUE;
    object->refs.fetch_add(count);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuUserObjectRelease(CUuserObject handle, unsigned int count) {
  return with_driver([&] { return release_object(handle, count); });
}
KV_CUDA_EXPORT cuGraphRetainUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count,
                                       unsigned int flags) {
  return with_graph(handle, [&](Graph& graph) {
    std::shared_ptr<UserObject> object = user_objects().find(object_handle);
    if (!object || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->refs.fetch_add(count);
    graph.objects[object] += count;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGraphReleaseUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count) {
  CUresult r = with_graph(handle, [&](Graph& graph) {
    auto it = graph.objects.find(user_objects().find(object_handle));
    if (it == graph.objects.end() || it->second < count) return CUDA_ERROR_INVALID_VALUE;
    it->second -= count;
    if (it->second == 0) graph.objects.erase(it);
    return CUDA_SUCCESS;
  });
  return r == CUDA_SUCCESS ? release_object(object_handle, count) : r;
}
