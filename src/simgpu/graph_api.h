// Bodies of nodes as the entry points of graphs share them.
#pragma once
#include "simgpu/graph.h"

namespace kvram::simgpu {

// The caller holds graph_mutex.
CUresult body_of(Context& context, CUgraphNodeParams& params, NodeBody* out);
CUresult child_body(const Graph& child, NodeBody* out);
CUresult event_body(CUevent event, NodeBody* out);
CUresult free_body(CUdeviceptr at, NodeBody* out);

}  // namespace kvram::simgpu
