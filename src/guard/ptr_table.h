// What the guard knows of each live block, handle and object: a hash table in shards, grown by doubling, in memory
// straight from the kernel. All zero is empty. Any thread; find, put and take are short and take one shard's lock.
#pragma once
#include <stdint.h>

#include "guard/sys.h"

namespace kvram::guard {

// What a key is. Handles of different kinds may have the same value.
enum class Kind : uint32_t {
  kNone = 0,
  kLinear,  // device pointer: freed by cuMemFree
  kAsync,   // device pointer from a pool; `owner` is the pool's key
  kArray,   // CUarray, CUmipmappedArray
  kModule,  // CUmodule, CUlibrary
  kStream,
  kExec,     // CUgraphExec; `owner` points to its GraphMemory or is 0
  kContext,  // explicit CUcontext; `owner` counts attachments
  kGreen,
  kLimit,   // CUcontext and CUlimit; `owner` is the default's cost in units
  kHandle,  // CUmemGenericAllocationHandle; `owner` points to its Memory, `units` counts references
};

struct Entry {
  uint64_t key;
  Kind kind;
  uint32_t gpu;
  uint64_t units;
  uint64_t context;  // destroying it frees the block; 0: none
  uint64_t owner;
  uint64_t exported;  // another process may keep the memory alive
};

class PtrTable {
 public:
  // False when there is no memory to remember the entry: it stays charged until the process ends.
  bool put(const Entry& entry);
  // Removes and returns; false when unknown.
  bool take(Kind kind, uint64_t key, Entry* out);
  bool find(Kind kind, uint64_t key, Entry* out);
  // Replaces units, owner and exported of an entry that is there.
  bool update(const Entry& entry);
  // Removes one entry of a context (0: any of the kind) into *out; false when there is none. Call until it is false.
  bool take_of_context(uint64_t context, uint32_t* cursor, Entry* out);
  uint64_t size();

 private:
  static constexpr uint32_t kShards = 64;
  struct alignas(64) Shard {
    Lock lock;
    uint32_t capacity;  // power of two, or 0
    uint32_t count;
    Entry* slots;
  };
  static bool grow(Shard& shard);
  static uint32_t locate(const Shard& shard, Kind kind, uint64_t key);
  static void remove(Shard& shard, uint32_t at);
  Shard& shard_of(Kind kind, uint64_t key);
  Shard shards_[kShards];
};

}  // namespace kvram::guard
