// Device memory of one process: the table of blocks, the arena they lie in, copies and fills with real data.
#pragma once
#include "simgpu/driver.h"

namespace kvram::simgpu {

enum class BlockKind { kLinear, kManaged, kAsync, kGraph, kModule, kHost, kRegistered, kIpc, kVmm, kArray };

struct Block {
  CUdeviceptr base = 0;
  size_t size = 0;    // as asked for
  size_t span = 0;    // what it takes of the arena
  uint64_t cost = 0;  // bytes charged for it alone
  BlockKind kind = BlockKind::kLinear;
  Device* device = nullptr;
  std::weak_ptr<Context> context;
  unsigned flags = 0;
  uint64_t id = 0;      // CU_POINTER_ATTRIBUTE_BUFFER_ID
  int64_t object = -1;  // shared object, once exported or opened
  std::shared_ptr<Pool> pool;
  CUdeviceptr user_pointer = 0;
};

// Memory without a charge (module globals, whose cost is in the module): zeroed, found by pointer look-ups.
// CUDA_ERROR_OUT_OF_MEMORY when the arena is full. free_block for the counterpart.
CUresult allocate_uncharged(Context& context, size_t bytes, BlockKind kind, CUdeviceptr* out);
void free_uncharged(CUdeviceptr base);
// The block that holds an address; false if none does. Copies, so that no lock stays held.
bool find_block(CUdeviceptr address, Block* out);
// Are all of [address, address+bytes) bytes that a copy or kernel may touch (one block or one mapped VMM range)?
bool device_range_valid(CUdeviceptr address, size_t bytes);

// Checks a copy (ranges, arrays, pitches) without doing it; what cuMemcpy3D returns for a bad one.
CUresult check_copy(const CUDA_MEMCPY3D& copy);
// Does it now, on this thread. Both are also the bodies of graph copy and fill nodes.
void run_copy(const CUDA_MEMCPY3D& copy);
CUresult check_set(const CUDA_MEMSET_NODE_PARAMS& set);
void run_set(const CUDA_MEMSET_NODE_PARAMS& set);
// Bytes moved by a copy.
uint64_t copy_bytes(const CUDA_MEMCPY3D& copy);

}  // namespace kvram::simgpu
