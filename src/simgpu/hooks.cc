// What comes and goes with a context: its streams, modules and the memory of its graphs.
#include "simgpu/graph.h"
#include "simgpu/module.h"
#include "simgpu/stream.h"

namespace kvram::simgpu {

CUresult context_created(Context& context) {
  if (CUresult r = make_modules_of(context); r != CUDA_SUCCESS) return r;
  return make_streams_of(context);
}

void context_destroyed(Context& context) {
  forget_context_streams(&context);
  forget_context_modules(context);
  forget_context_graph_memory(context);
}

}  // namespace kvram::simgpu
