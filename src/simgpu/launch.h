// Kernel launches: what is checked, and the time they take.
#pragma once
#include "simgpu/module.h"
#include "simgpu/stream.h"

namespace kvram::simgpu {

struct Launch {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** params;
  void** extra;
};

// CUDA_ERROR_INVALID_VALUE for sizes the GPU does not take, missing parameters or too much shared memory.
CUresult check_launch(const Function& function, const Launch& launch);
CUresult launch_kernel(Context& context, Stream& stream, CUfunction handle, const Launch& launch);

}  // namespace kvram::simgpu
