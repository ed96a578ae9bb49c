#include "guard/vmm.h"

#include <string.h>

namespace kvram::guard {

Memory* Vmm::make(uint32_t gpu, uint64_t units) {
  if (free_ == nullptr) {
    constexpr size_t kChunk = 16384;
    Memory* fresh = static_cast<Memory*>(map_pages(kChunk));
    if (fresh == nullptr) return nullptr;
    for (size_t i = 0; i < kChunk / sizeof(Memory); ++i) {
      fresh[i].next = free_;
      free_ = &fresh[i];
    }
  }
  Memory* memory = free_;
  free_ = memory->next;
  *memory = Memory{units, gpu, 0, 0, nullptr};
  return memory;
}

bool Vmm::drop(Memory* memory, Memory* out) {
  if (--memory->refs != 0) return false;
  *out = *memory;
  memory->next = free_;
  free_ = memory;
  return true;
}

bool Vmm::created(uint64_t handle, uint32_t gpu, uint64_t units) {
  Memory* memory = make(gpu, units);
  if (memory == nullptr) return false;
  retained(handle, memory);
  return memory->refs != 0;
}

Memory* Vmm::of_handle(uint64_t handle) {
  Entry e;
  return handles_.find(Kind::kHandle, handle, &e) ? reinterpret_cast<Memory*>(e.owner) : nullptr;
}

void Vmm::retained(uint64_t handle, Memory* memory) {
  Entry e{};
  if (handles_.find(Kind::kHandle, handle, &e) && reinterpret_cast<Memory*>(e.owner) == memory) {
    ++e.units;
    handles_.update(e);
  } else {
    e = Entry{handle, Kind::kHandle, memory->gpu, 1, 0, reinterpret_cast<uint64_t>(memory), 0};
    if (!handles_.put(e)) return;
  }
  ++memory->refs;
}

bool Vmm::released(uint64_t handle, Memory* out) {
  Entry e;
  if (!handles_.find(Kind::kHandle, handle, &e)) return false;
  if (--e.units == 0) {
    handles_.take(Kind::kHandle, handle, &e);
  } else {
    handles_.update(e);
  }
  return drop(reinterpret_cast<Memory*>(e.owner), out);
}

uint32_t Vmm::first_at_or_after(uint64_t team, uint64_t address) const {
  uint32_t low = 0;
  uint32_t high = count_;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const Mapping& m = mappings_[middle];
    if (m.team < team || (m.team == team && m.address < address)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void Vmm::mapped(uint64_t address, uint64_t bytes, Memory* memory, uint64_t team) {
  if (count_ == capacity_) {
    const uint32_t capacity = capacity_ == 0 ? 128 : capacity_ * 2;
    Mapping* grown = static_cast<Mapping*>(map_pages(static_cast<size_t>(capacity) * sizeof(Mapping)));
    if (grown == nullptr) {
      ++memory->refs;  // cannot be remembered, so it stays charged
      return;
    }
    if (count_ != 0) memcpy(grown, mappings_, static_cast<size_t>(count_) * sizeof(Mapping));
    unmap_pages(mappings_, static_cast<size_t>(capacity_) * sizeof(Mapping));
    mappings_ = grown;
    capacity_ = capacity;
  }
  const uint32_t at = first_at_or_after(team, address);
  memmove(&mappings_[at + 1], &mappings_[at], static_cast<size_t>(count_ - at) * sizeof(Mapping));
  mappings_[at] = Mapping{address, bytes, memory, team};
  ++count_;
  ++memory->refs;
}

Memory* Vmm::of_address(uint64_t address) {
  const uint32_t at = first_at_or_after(0, address + 1);
  if (at == 0) return nullptr;
  const Mapping& m = mappings_[at - 1];
  return m.team == 0 && address - m.address < m.bytes ? m.memory : nullptr;
}

bool Vmm::unmapped(uint64_t address, uint64_t bytes, Memory* out, uint64_t team) {
  const uint32_t at = first_at_or_after(team, address);
  if (at == count_ || mappings_[at].team != team || mappings_[at].address - address >= bytes) return false;
  Memory* memory = mappings_[at].memory;
  memmove(&mappings_[at], &mappings_[at + 1], static_cast<size_t>(count_ - at - 1) * sizeof(Mapping));
  --count_;
  *out = Memory{};
  drop(memory, out);
  return true;
}

}  // namespace kvram::guard
