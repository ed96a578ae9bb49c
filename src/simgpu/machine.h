// One machine's simulated GPUs, shared by all its processes through files in KUBE_VRAM_SIM_DIR:
//   machine   MachineFile, mapped by all
//   slots     a process is alive while it holds a POSIX lock on the byte of its slot (the kernel drops it at death and,
//             the descriptor being close-on-exec, at exec; a forked child does not have it)
//   objects   exported file descriptors hold an open-file lock on the byte of their object
//   arena-N   the memory of one process, sparse
// The descriptor of `slots` is never closed once open: closing any descriptor of it would drop the process's lock.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "simgpu/layout.h"
#include "simgpu/spec.h"

namespace kvram::simgpu {

// What one process holds on one GPU.
struct ProcessUse {
  uint32_t slot;
  int32_t pid;  // as this process sees it (host pid for a monitor on the host)
  std::string command;
  uint64_t bytes;
};

// KUBE_VRAM_SIM, "" if unset: use the machine that is there. The folder: sim_folder() of control.h.
std::string spec_from_environment();

class Machine {
 public:
  // Opens the machine in `folder`, creating it from `spec` when there is none. A spec that differs from a machine
  // with a live process: kSimMachine, naming both; without a live process the machine is made anew. An empty spec takes
  // the machine that is there. `join` takes a slot (the driver); without it the caller only watches (NVML).
  // Thread-safe. The result must not be used after fork in the child.
  static Result<std::unique_ptr<Machine>> open(const std::string& folder, const std::string& spec, bool join);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  MachineFile& file() { return *file_; }
  const std::string& folder() const { return folder_; }
  uint32_t gpu_count() const { return file_->gpus; }
  const GpuInfo& gpu(uint32_t g) const { return file_->gpu[g].info; }
  // Own slot; only after join.
  uint32_t slot() const { return slot_; }
  Slot& own() { return file_->slot[slot_]; }
  // True when another machine has taken this one's place in the folder (watchers: open again).
  bool replaced() const { return __atomic_load_n(&file_->replaced, __ATOMIC_ACQUIRE) != 0; }

  // Bytes a program can have in all: total - reserve.
  uint64_t capacity(uint32_t g) const { return gpu(g).total_bytes - gpu(g).reserve_bytes; }
  // Takes `bytes` of a GPU for the own slot; false and nothing taken when they are not free (the dead are reaped
  // first). Any thread.
  bool charge(uint32_t g, uint64_t bytes);
  void uncharge(uint32_t g, uint64_t bytes);
  // As charge/uncharge, on a shared object's counter.
  bool charge_object(uint32_t object, uint64_t bytes);
  void uncharge_object(uint32_t object, uint64_t bytes);
  // Bytes in use by all live processes and shared objects. Reaps the dead first.
  uint64_t used(uint32_t g);
  uint64_t free_bytes(uint32_t g);
  // Per live process with something (a context at least) on the GPU. Reaps the dead first.
  std::vector<ProcessUse> processes(uint32_t g);
  // Gives back what dead processes held. Returns how many were found.
  int reap();
  // Is the process in this slot alive (its lock is held, or it is this process itself)?
  bool alive(uint32_t slot);

  // Makes a shared object of what the own slot has charged as `bytes` (they move to the object); the own slot holds a
  // reference. False if the table is full.
  struct NewObject {
    ObjectKind kind;
    uint32_t gpu;
    uint64_t bytes;
    uint64_t arena;
    uint64_t offset;
    uint64_t length;
    uint64_t extra[4];
  };
  bool create_object(const NewObject& wanted, uint32_t* index);
  // Adds the own slot's reference to a live object of that generation; false if it is gone.
  bool hold_object(uint32_t index, uint64_t generation);
  // Drops the own slot's reference; the object ends with its last holder.
  void drop_object(uint32_t index);
  Object& object(uint32_t index) { return file_->object[index]; }
  // A descriptor (close-on-exec) that keeps the object alive while it, or any copy of it anywhere, is open. -1: errno.
  int export_object(uint32_t index);
  // The object of an exported descriptor, with a reference for the own slot; false if it is not one of this machine.
  bool import_object(int fd, uint32_t* index);

  std::string arena_path(uint64_t arena) const { return folder_ + "/arena-" + std::to_string(arena); }
  // A fresh number for an arena or generation.
  uint64_t next_id();

  // Locked section over the machine (robust: a holder's death is recovered).
  class Lock {
   public:
    explicit Lock(MachineFile& file);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    MachineFile& file_;
  };

 private:
  Machine() = default;
  Result<void> find_or_create(const std::string& spec);
  Result<void> take_slot();
  bool holder_alive(uint32_t slot, int32_t* pid);
  uint64_t sum_used(uint32_t g) const;
  bool take_locked(uint32_t g, uint64_t bytes, uint64_t* counter);
  int reap_locked();
  void bury_locked(uint32_t slot);
  bool object_held_locked(uint32_t index);
  void end_object_locked(uint32_t index);
  void sweep_arena_locked(uint64_t arena, uint32_t dead_slot);

  std::string folder_;
  MachineFile* file_ = nullptr;
  int slots_fd_ = -1;  // never closed
  int objects_fd_ = -1;
  uint32_t slot_ = UINT32_MAX;
  uint64_t image_ = 0;
};

}  // namespace kvram::simgpu
