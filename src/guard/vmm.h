// Memory made by cuMemCreate lives until its last handle and its last mapping are gone; the charge lives as long. One
// lock, which the wrappers hold over the driver's call too, so that no handle value is reused in between.
#pragma once
#include <stdint.h>

#include "guard/ptr_table.h"
#include "guard/sys.h"

namespace kvram::guard {

struct Memory {
  uint64_t units;  // 0: imported, somebody else pays
  uint32_t gpu;
  uint32_t exported;
  uint32_t refs;  // handles' references and mappings
  Memory* next;   // in the list of free ones
};

struct Mapping {
  uint64_t address;
  uint64_t bytes;
  Memory* memory;
  uint64_t team;  // a multicast handle, with `address` the offset in it; 0: an address range
};

// All zero is empty. The caller holds lock() over each call.
class Vmm {
 public:
  Lock& lock() { return lock_; }
  // A new handle of new memory. False: no memory to remember it.
  bool created(uint64_t handle, uint32_t gpu, uint64_t units);
  Memory* of_handle(uint64_t handle);
  Memory* of_address(uint64_t address);
  // One more reference to the handle, which means this memory.
  void retained(uint64_t handle, Memory* memory);
  void mapped(uint64_t address, uint64_t bytes, Memory* memory, uint64_t team = 0);
  // The driver has done it: forget a reference. True when that was the memory's last one; *out says what to give back.
  bool released(uint64_t handle, Memory* out);
  // The same for one mapping inside the range; call until it is false. *out.units is 0 while something else refers to
  // it.
  bool unmapped(uint64_t address, uint64_t bytes, Memory* out, uint64_t team = 0);

 private:
  Memory* make(uint32_t gpu, uint64_t units);
  bool drop(Memory* memory, Memory* out);
  uint32_t first_at_or_after(uint64_t team, uint64_t address) const;
  Lock lock_;
  PtrTable handles_;
  Mapping* mappings_;  // sorted by team and address
  uint32_t count_;
  uint32_t capacity_;
  Memory* free_;
};

}  // namespace kvram::guard
