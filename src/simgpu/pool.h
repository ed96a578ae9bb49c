// Memory pools. A pool grows in steps of the GPU's pool_chunk_bytes and shrinks at synchronisation down to its release
// threshold; what it has reserved is resident, whether used or not. Where in a chunk an allocation lies is not
// modelled.
#pragma once
#include "simgpu/memory.h"

namespace kvram::simgpu {

struct Pool {
  Device* device = nullptr;
  CUmemPoolProps props{};
  std::mutex mutex;
  uint64_t reserved = 0;
  uint64_t reserved_high = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t threshold = 0;
  int reuse_event = 1;
  int reuse_opportunistic = 1;
  int reuse_internal = 1;
  bool is_default = false;
  bool destroyed = false;  // its last allocation gives the rest back
  bool imported = false;
  std::shared_ptr<SharedRef> object;  // carries its bytes, once exported or imported
  uint64_t max_size = 0;

  // Accounts for `bytes` in use, growing when needed. CUDA_ERROR_OUT_OF_MEMORY and nothing changed if it cannot. For
  // graph memory nodes: take at launch, give when the memory is freed; the address is allocate_uncharged's.
  CUresult take(uint64_t bytes);
  void give(uint64_t bytes);
  // Gives unused chunks back, keeping at least `keep` bytes reserved.
  void trim(uint64_t keep);
};

// All pools of the device shrink to their release threshold: called when the program synchronises (stream, event,
// context). Graph pools stay as they are until cuDeviceGraphMemTrim.
void trim_pools_at_sync(Device& device);

// The pool of a handle; null if it is none.
std::shared_ptr<Pool> find_pool(CUmemoryPool handle);
void add_pool(const std::shared_ptr<Pool>& pool);
void make_default_pools(Device& device);

}  // namespace kvram::simgpu
