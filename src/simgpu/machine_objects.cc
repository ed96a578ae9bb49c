// Memory shared between processes: who holds it, and when it ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "simgpu/machine.h"
#include "simgpu/machine_file.h"

namespace kvram::simgpu {
namespace {

// An exported descriptor carries its object in its file position, which all copies of it share, wherever they are sent.
off_t encode(uint32_t index, uint64_t generation) { return static_cast<off_t>(generation * kMaxObjects + index); }

void set_bit(Object& object, uint32_t slot) {
  __atomic_fetch_or(&object.refs[slot / 64], 1ULL << (slot % 64), __ATOMIC_RELEASE);
}

// Gives a range of a file's pages back.
void punch(int fd, uint64_t from, uint64_t to) {
  constexpr uint64_t kPage = 4096;
  from = (from + kPage - 1) / kPage * kPage;
  to = to / kPage * kPage;
  if (from < to) {
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from), static_cast<off_t>(to - from));
  }
}

}  // namespace

bool Machine::create_object(const NewObject& wanted, uint32_t* index) {
  Lock lock(*file_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (uint32_t i = 0; i < kMaxObjects; ++i) {
      Object& object = file_->object[i];
      if (object.state != kObjectFree) continue;
      object.kind = wanted.kind;
      object.generation = __atomic_add_fetch(&file_->next_id, 1, __ATOMIC_RELAXED);
      object.gpu = wanted.gpu;
      object.owner = slot_;
      object.bytes = wanted.bytes;
      object.arena = wanted.arena;
      object.offset = wanted.offset;
      object.length = wanted.length;
      std::copy(std::begin(wanted.extra), std::end(wanted.extra), object.extra);
      std::memset(object.refs, 0, sizeof object.refs);
      set_bit(object, slot_);
      if (file_->objects_used <= i) file_->objects_used = i + 1;
      __atomic_store_n(&object.state, kObjectLive, __ATOMIC_RELEASE);
      // Killed here, the bytes stand in both places, and both end with this process.
      __atomic_fetch_sub(&own().resident[wanted.gpu], wanted.bytes, __ATOMIC_RELAXED);
      *index = i;
      return true;
    }
    reap_locked();
  }
  return false;
}

bool Machine::hold_object(uint32_t index, uint64_t generation) {
  if (index >= kMaxObjects) return false;
  Lock lock(*file_);
  Object& object = file_->object[index];
  if (object.state != kObjectLive || object.generation != generation) return false;
  if (!object_held_locked(index)) {
    end_object_locked(index);
    return false;
  }
  set_bit(object, slot_);
  return true;
}

void Machine::drop_object(uint32_t index) {
  Lock lock(*file_);
  Object& object = file_->object[index];
  __atomic_fetch_and(&object.refs[slot_ / 64], ~(1ULL << (slot_ % 64)), __ATOMIC_RELEASE);
  if (!object_held_locked(index)) end_object_locked(index);
}

bool Machine::object_held_locked(uint32_t index) {
  Object& object = file_->object[index];
  for (uint32_t w = 0; w < kMaxSlots / 64; ++w) {
    for (uint64_t bits = __atomic_load_n(&object.refs[w], __ATOMIC_ACQUIRE); bits != 0; bits &= bits - 1) {
      if (alive(w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)))) return true;
    }
  }
  struct flock seen{};
  seen.l_type = F_WRLCK;
  seen.l_whence = SEEK_SET;
  seen.l_start = index;
  seen.l_len = 1;
  return fcntl(objects_fd_, F_OFD_GETLK, &seen) != 0 || seen.l_type != F_UNLCK;
}

void Machine::end_object_locked(uint32_t index) {
  Object& object = file_->object[index];
  uint64_t arena = object.arena;
  __atomic_store_n(&object.bytes, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&object.state, kObjectFree, __ATOMIC_RELEASE);
  if (arena != 0) sweep_arena_locked(arena, kMaxSlots);
}

// Gives back what is no longer held of an arena whose process is gone. A living process looks after its own.
void Machine::sweep_arena_locked(uint64_t arena, uint32_t dead_slot) {
  for (uint32_t s = 0; s < file_->slots_used; ++s) {
    if (s != dead_slot && file_->slot[s].state == kSlotLive && file_->slot[s].arena == arena) return;
  }
  std::vector<std::pair<uint64_t, uint64_t>> kept;
  for (uint32_t i = 0; i < file_->objects_used; ++i) {
    const Object& object = file_->object[i];
    if (object.state == kObjectLive && object.arena == arena && object_held_locked(i)) {
      kept.emplace_back(object.offset, object.offset + object.length);
    }
  }
  std::string path = arena_path(arena);
  if (kept.empty()) {
    unlink(path.c_str());
    return;
  }
  int fd = open_shared(path, O_RDWR);
  struct stat st{};
  if (fd < 0) return;
  std::sort(kept.begin(), kept.end());
  uint64_t at = 0;
  for (const auto& [from, to] : kept) {
    if (from > at) punch(fd, at, from);
    at = std::max(at, to);
  }
  if (fstat(fd, &st) == 0) punch(fd, at, static_cast<uint64_t>(st.st_size));
  close(fd);
}

int Machine::export_object(uint32_t index) {
  int fd = open_shared(folder_ + "/objects", O_RDONLY);
  if (fd < 0) return -1;
  struct flock hold{};
  hold.l_type = F_RDLCK;
  hold.l_whence = SEEK_SET;
  hold.l_start = index;
  hold.l_len = 1;
  if (fcntl(fd, F_OFD_SETLK, &hold) != 0 || lseek(fd, encode(index, object(index).generation), SEEK_SET) < 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool Machine::import_object(int fd, uint32_t* index) {
  struct stat given{};
  struct stat ours{};
  if (fstat(fd, &given) != 0 || fstat(objects_fd_, &ours) != 0) return false;
  if (given.st_ino != ours.st_ino || given.st_dev != ours.st_dev) return false;
  off_t position = lseek(fd, 0, SEEK_CUR);
  if (position < static_cast<off_t>(kMaxObjects)) return false;
  *index = static_cast<uint32_t>(position % kMaxObjects);
  return hold_object(*index, static_cast<uint64_t>(position) / kMaxObjects);
}

}  // namespace kvram::simgpu
