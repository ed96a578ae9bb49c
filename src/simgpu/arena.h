// The device memory of one process: ranges of one sparse file, mapped once, so that a device pointer is a host address.
// Pages exist only once written; freed ranges give theirs back, in batches. The file has no name until a range of it is
// shared with another process, so it goes with its process.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "simgpu/machine.h"

namespace kvram::simgpu {

class Arena {
 public:
  static constexpr uint64_t kNoRoom = UINT64_MAX;
  static constexpr uint64_t kAlign = 512;

  // The process's arena, made at first use; null if the folder has no room for it.
  static Arena* get();

  // A range of `bytes` (a multiple of kAlign) at a multiple of `align`; kNoRoom if none. Contents are whatever an
  // earlier user of this process left. Thread-safe, O(log n).
  uint64_t allocate(uint64_t bytes, uint64_t align);
  void release(uint64_t offset, uint64_t bytes);
  // Releases the range once the shared object is gone: other processes still hold it.
  void release_later(uint64_t offset, uint64_t bytes, uint32_t object, uint64_t generation);
  // Makes the file reachable by name for other processes; false when that fails.
  bool publish();

  char* base() const { return base_; }
  int fd() const { return fd_; }
  uint64_t id() const { return id_; }
  uint64_t size() const { return size_; }

 private:
  struct Lingering {
    uint64_t offset;
    uint64_t bytes;
    uint32_t object;
    uint64_t generation;
  };
  bool create(Machine& machine, uint64_t size);
  uint64_t allocate_locked(uint64_t bytes, uint64_t align);
  void release_locked(uint64_t offset, uint64_t bytes);
  void collect_lingering_locked();
  void punch_dirty_locked();

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;                     // offset -> length
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // length, offset
  std::vector<std::pair<uint64_t, uint64_t>> dirty_;      // freed since the last punch
  uint64_t dirty_bytes_ = 0;
  std::vector<Lingering> lingering_;
  Machine* machine_ = nullptr;
  char* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t id_ = 0;
  int fd_ = -1;
  bool named_ = false;
};

struct Device;

// This process's one hold on a shared object; dropped when the last copy goes.
struct SharedRef {
  uint32_t index;
  uint64_t generation;
  ~SharedRef();
};
// The hold on an object that this process has made or been given; `fresh`: machine.hold/create/import has just set the
// process's bit. Later calls for the same object give the same hold.
std::shared_ptr<SharedRef> shared_ref(uint32_t index, uint64_t generation);
// As above for an object whose bit is not set yet; null if the object is gone.
std::shared_ptr<SharedRef> hold_shared(uint32_t index, uint64_t generation);
// The object of an exported descriptor; null if it is none.
std::shared_ptr<SharedRef> import_shared(int fd);

// A piece of device memory, wherever it is mapped: charged until the last holder (allocation, handle, mapping) goes.
struct Backing {
  Device* device = nullptr;
  uint64_t cost = 0;    // charged to the own slot, or moved to the object once shared
  uint64_t offset = 0;  // in the arena (own or foreign)
  uint64_t length = 0;
  char* address = nullptr;  // of the range in this process
  bool foreign = false;     // lies in another process's arena: mapped at map_base
  int fd = -1;
  char* map_base = nullptr;
  uint64_t map_length = 0;
  std::shared_ptr<SharedRef> shared;
  ~Backing();
};
// Charges and allocates. CUDA_ERROR_OUT_OF_MEMORY otherwise (as an int: no cuda.h here). cost 0: accounted elsewhere.
int make_backing(Device& device, uint64_t cost, uint64_t length, uint64_t align, std::shared_ptr<Backing>* out);
// Turns it into a shared object (once); false if that cannot be done.
bool share_backing(Backing& backing, ObjectKind kind);
// Maps a range of another process's arena. Null when it is gone.
std::shared_ptr<Backing> map_foreign(Device* device, uint64_t arena, uint64_t offset, uint64_t length,
                                     std::shared_ptr<SharedRef> shared);

}  // namespace kvram::simgpu
