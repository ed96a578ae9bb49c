// Arrays: opaque images in device memory, here in plain row order.
#pragma once
#include "simgpu/memory.h"

namespace kvram::simgpu {

struct Array {
  CUDA_ARRAY3D_DESCRIPTOR desc{};
  Device* device = nullptr;
  Context* context = nullptr;
  std::shared_ptr<Backing> backing;
  char* base = nullptr;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;    // per slice
  uint64_t slices = 1;  // depth, or layers
  bool level = false;   // of a mipmapped array: not to be destroyed by itself
};

// Null for a handle that is none.
std::shared_ptr<Array> find_array(CUarray handle);
// The arrays of a context go with it.
void destroy_arrays_of(Context* context);

}  // namespace kvram::simgpu
