// Device memory of one process: the table of blocks, the arena they lie in, copies and fills with real data.
#pragma once
#include <functional>
#include <initializer_list>
#include <vector>

#include "lease/cost.h"
#include "simgpu/arena.h"
#include "simgpu/driver.h"

namespace kvram::simgpu {

enum class BlockKind { kLinear, kManaged, kAsync, kGraph, kModule, kHost, kRegistered, kIpc, kVmm, kArray };

struct Block {
  CUdeviceptr base = 0;
  size_t size = 0;  // as asked for
  BlockKind kind = BlockKind::kLinear;
  Device* device = nullptr;
  Context* context = nullptr;  // that made it; its memory goes with it
  unsigned flags = 0;
  uint64_t id = 0;         // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool freeing = false;    // a stream-ordered free is on its way
  uint64_t pool_cost = 0;  // what it takes of its pool
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Backing> backing;  // null for host memory
  int opens = 0;                     // cuIpcOpenMemHandle calls that gave it
};

// The process's table of blocks. Thread-safe, O(log n).
void add_block(Block block);
// Takes the block that begins at `base` out of the table; false if none does (or it is of none of `kinds`).
bool remove_block(CUdeviceptr base, std::initializer_list<BlockKind> kinds, Block* out);
// Changes a block in place, under the table's lock: `change` returns what update_block returns; false if there is none.
bool update_block(CUdeviceptr base, const std::function<bool(Block&)>& change);
// Blocks of a context (its memory goes with it).
std::vector<Block> remove_blocks_of(Context* context);
uint64_t next_buffer_id();
// Linear memory of any kind, charged as cuMemAlloc does.
CUresult allocate_linear(Context& context, size_t bytes, BlockKind kind, unsigned flags, CUdeviceptr* out);
// Gives back what a block holds; frees into its pool where it has one.
void dispose(Block block);

// Memory without a charge (module globals, whose cost is in the module): zeroed, found by pointer look-ups.
// CUDA_ERROR_OUT_OF_MEMORY when the arena is full. free_block for the counterpart.
CUresult allocate_uncharged(Context& context, size_t bytes, BlockKind kind, CUdeviceptr* out);
void free_uncharged(CUdeviceptr base);
// The block that holds an address; false if none does. Copies, so that no lock stays held.
bool find_block(CUdeviceptr address, Block* out);
// Are all of [address, address+bytes) bytes that a copy or kernel may touch (one block or mapped VMM ranges)?
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
