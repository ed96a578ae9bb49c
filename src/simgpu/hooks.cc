// What comes and goes with a context: its streams and modules.
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
}

}  // namespace kvram::simgpu
