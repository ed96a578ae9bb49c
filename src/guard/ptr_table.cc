#include "guard/ptr_table.h"

#include <string.h>

namespace kvram::guard {
namespace {
uint64_t mix(Kind kind, uint64_t key) {
  uint64_t h = (key ^ static_cast<uint64_t>(kind) << 58) * 0x9e3779b97f4a7c15ULL;
  h ^= h >> 32;
  return h * 0xd6e8feb86659fd93ULL;
}
}  // namespace

PtrTable::Shard& PtrTable::shard_of(Kind kind, uint64_t key) { return shards_[mix(kind, key) >> 58]; }

// The slot that holds the key, or the empty one where it belongs.
uint32_t PtrTable::locate(const Shard& shard, Kind kind, uint64_t key) {
  const uint32_t mask = shard.capacity - 1;
  uint32_t at = static_cast<uint32_t>(mix(kind, key)) & mask;
  while (shard.slots[at].kind != Kind::kNone && (shard.slots[at].key != key || shard.slots[at].kind != kind)) {
    at = (at + 1) & mask;
  }
  return at;
}

bool PtrTable::grow(Shard& shard) {
  const uint32_t capacity = shard.capacity == 0 ? 64 : shard.capacity * 2;
  if (capacity == 0) return false;
  void* memory = map_pages(static_cast<size_t>(capacity) * sizeof(Entry));
  if (memory == nullptr) return false;
  const Shard old = shard;
  shard.slots = static_cast<Entry*>(memory);
  shard.capacity = capacity;
  for (uint32_t i = 0; i < old.capacity; ++i) {
    const Entry& e = old.slots[i];
    if (e.kind != Kind::kNone) shard.slots[locate(shard, e.kind, e.key)] = e;
  }
  unmap_pages(old.slots, static_cast<size_t>(old.capacity) * sizeof(Entry));
  return true;
}

bool PtrTable::put(const Entry& entry) {
  Shard& shard = shard_of(entry.kind, entry.key);
  const Guarded hold(shard.lock);
  if (shard.count + 1 > shard.capacity / 4 * 3 && !grow(shard) && shard.count + 1 >= shard.capacity) return false;
  const uint32_t at = locate(shard, entry.kind, entry.key);
  if (shard.slots[at].kind == Kind::kNone) ++shard.count;
  shard.slots[at] = entry;
  return true;
}

// Closes the gap, so that no search stops early: entries that would be found through it move up.
void PtrTable::remove(Shard& shard, uint32_t at) {
  const uint32_t mask = shard.capacity - 1;
  uint32_t gap = at;
  for (uint32_t next = (gap + 1) & mask; shard.slots[next].kind != Kind::kNone; next = (next + 1) & mask) {
    const uint32_t home = static_cast<uint32_t>(mix(shard.slots[next].kind, shard.slots[next].key)) & mask;
    if (((next - home) & mask) >= ((next - gap) & mask)) {
      shard.slots[gap] = shard.slots[next];
      gap = next;
    }
  }
  shard.slots[gap].kind = Kind::kNone;
  --shard.count;
}

bool PtrTable::take(Kind kind, uint64_t key, Entry* out) {
  Shard& shard = shard_of(kind, key);
  const Guarded hold(shard.lock);
  if (shard.count == 0) return false;
  const uint32_t at = locate(shard, kind, key);
  if (shard.slots[at].kind == Kind::kNone) return false;
  *out = shard.slots[at];
  remove(shard, at);
  return true;
}

bool PtrTable::find(Kind kind, uint64_t key, Entry* out) {
  Shard& shard = shard_of(kind, key);
  const Guarded hold(shard.lock);
  if (shard.count == 0) return false;
  const uint32_t at = locate(shard, kind, key);
  if (shard.slots[at].kind == Kind::kNone) return false;
  *out = shard.slots[at];
  return true;
}

bool PtrTable::update(const Entry& entry) {
  Shard& shard = shard_of(entry.kind, entry.key);
  const Guarded hold(shard.lock);
  if (shard.count == 0) return false;
  const uint32_t at = locate(shard, entry.kind, entry.key);
  if (shard.slots[at].kind == Kind::kNone) return false;
  shard.slots[at] = entry;
  return true;
}

bool PtrTable::take_of_context(uint64_t context, uint32_t* cursor, Entry* out) {
  for (; *cursor < kShards; ++*cursor) {
    Shard& shard = shards_[*cursor];
    const Guarded hold(shard.lock);
    for (uint32_t i = 0; shard.count != 0 && i < shard.capacity; ++i) {
      if (shard.slots[i].kind == Kind::kNone || shard.slots[i].context != context) continue;
      *out = shard.slots[i];
      remove(shard, i);
      return true;
    }
  }
  return false;
}

uint64_t PtrTable::size() {
  uint64_t n = 0;
  for (Shard& shard : shards_) {
    const Guarded hold(shard.lock);
    n += shard.count;
  }
  return n;
}

}  // namespace kvram::guard
