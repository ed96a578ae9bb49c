#include "simgpu/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "simgpu/driver.h"
#include "simgpu/machine_file.h"

namespace kvram::simgpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPunchAfter = 64ULL << 20;
constexpr uint64_t kSmallestArena = 1ULL << 30;
constexpr uint64_t kLargestArena = 16ULL << 40;

}  // namespace

Arena* Arena::get() {
  static Arena* const arena = [] {
    Driver& driver = Driver::get();
    uint64_t size = 16ULL << 30;
    // Room for everything the GPUs can hold, and for the holes in between.
    for (int d = 0; d < driver.device_count(); ++d) size += 4 * driver.device(d)->info->total_bytes;
    auto* made = new Arena;
    for (size = std::min(size, kLargestArena); size >= kSmallestArena; size /= 2) {
      if (made->create(driver.machine(), size / kPage * kPage)) return made;
    }
    return static_cast<Arena*>(nullptr);
  }();
  return arena;
}

bool Arena::create(Machine& machine, uint64_t size) {
  machine_ = &machine;
  if (id_ == 0) id_ = machine.next_id();
  named_ = false;
  fd_ = open_shared(machine.folder(), O_TMPFILE | O_RDWR);
  if (fd_ < 0) {
    fd_ = open_shared(machine.arena_path(id_), O_RDWR | O_CREAT);
    named_ = true;
  }
  void* at = MAP_FAILED;
  if (fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(size)) == 0) {
    at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  }
  if (at == MAP_FAILED) {
    if (fd_ >= 0) close(fd_);
    return false;
  }
  madvise(at, size, MADV_DONTFORK);
  madvise(at, size, MADV_DONTDUMP);
  base_ = static_cast<char*>(at);
  size_ = size;
  free_[0] = size;
  free_by_size_.emplace(size, 0);
  machine.own().arena = id_;
  return true;
}

bool Arena::publish() {
  std::lock_guard lock(mutex_);
  if (named_) return true;
  std::string from = "/proc/self/fd/" + std::to_string(fd_);
  named_ = linkat(AT_FDCWD, from.c_str(), AT_FDCWD, machine_->arena_path(id_).c_str(), AT_SYMLINK_FOLLOW) == 0;
  return named_;
}

uint64_t Arena::allocate_locked(uint64_t bytes, uint64_t align) {
  for (auto it = free_by_size_.lower_bound({bytes, 0}); it != free_by_size_.end(); ++it) {
    auto [length, offset] = *it;
    uint64_t start = (offset + align - 1) / align * align;
    if (start + bytes > offset + length) continue;
    free_by_size_.erase(it);
    free_.erase(offset);
    if (start > offset) {
      free_[offset] = start - offset;
      free_by_size_.emplace(start - offset, offset);
    }
    if (uint64_t rest = offset + length - start - bytes; rest > 0) {
      free_[start + bytes] = rest;
      free_by_size_.emplace(rest, start + bytes);
    }
    return start;
  }
  return kNoRoom;
}

uint64_t Arena::allocate(uint64_t bytes, uint64_t align) {
  if (bytes == 0 || bytes > size_) return kNoRoom;
  std::lock_guard lock(mutex_);
  if (!lingering_.empty()) collect_lingering_locked();
  return allocate_locked(bytes, std::max(align, kAlign));
}

void Arena::release_locked(uint64_t offset, uint64_t bytes) {
  dirty_.emplace_back(offset, offset + bytes);
  dirty_bytes_ += bytes;
  auto next = free_.lower_bound(offset);
  uint64_t start = offset;
  uint64_t end = offset + bytes;
  if (next != free_.end() && next->first == end) {
    end += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      free_by_size_.erase({before->second, before->first});
      free_.erase(before);
    }
  }
  free_[start] = end - start;
  free_by_size_.emplace(end - start, start);
  if (dirty_bytes_ >= kPunchAfter) punch_dirty_locked();
}

void Arena::release(uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  release_locked(offset, bytes);
}

void Arena::release_later(uint64_t offset, uint64_t bytes, uint32_t object, uint64_t generation) {
  std::lock_guard lock(mutex_);
  lingering_.push_back(Lingering{offset, bytes, object, generation});
}

void Arena::collect_lingering_locked() {
  std::erase_if(lingering_, [&](const Lingering& l) {
    const Object& object = machine_->object(l.object);
    bool live = __atomic_load_n(&object.state, __ATOMIC_ACQUIRE) == kObjectLive && object.generation == l.generation;
    if (!live) release_locked(l.offset, l.bytes);
    return !live;
  });
}

// Gives back the pages of what was freed and is still free. Batched, because a call into the kernel costs more than an
// allocation.
void Arena::punch_dirty_locked() {
  std::sort(dirty_.begin(), dirty_.end());
  uint64_t done = 0;
  for (const auto& [from, to] : dirty_) {
    auto it = free_.upper_bound(std::max(from, done));
    if (it != free_.begin()) --it;
    for (; it != free_.end() && it->first < to; ++it) {
      uint64_t start = std::max({it->first, from, done});
      uint64_t end = std::min(it->first + it->second, to);
      // Whole pages of the free extent: a page shared with a neighbour in use stays.
      uint64_t first = std::max(start / kPage * kPage, (it->first + kPage - 1) / kPage * kPage);
      uint64_t last = std::min((end + kPage - 1) / kPage * kPage, (it->first + it->second) / kPage * kPage);
      if (first < last) madvise(base_ + first, last - first, MADV_REMOVE);
    }
    done = std::max(done, to);
  }
  dirty_.clear();
  dirty_bytes_ = 0;
}

// ---- shared objects and pieces of memory ----

namespace {

struct SharedTable {
  std::mutex mutex;
  std::map<std::pair<uint32_t, uint64_t>, std::weak_ptr<SharedRef>> refs;
};
SharedTable& shared_table() {
  static auto* const table = new SharedTable;
  return *table;
}

std::shared_ptr<SharedRef> find_ref_locked(SharedTable& table, uint32_t index, uint64_t generation) {
  auto it = table.refs.find({index, generation});
  return it == table.refs.end() ? nullptr : it->second.lock();
}

std::shared_ptr<SharedRef> add_ref_locked(SharedTable& table, uint32_t index, uint64_t generation) {
  auto ref = std::shared_ptr<SharedRef>(new SharedRef{index, generation});
  table.refs[{index, generation}] = ref;
  return ref;
}

}  // namespace

SharedRef::~SharedRef() {
  SharedTable& table = shared_table();
  std::lock_guard lock(table.mutex);
  auto it = table.refs.find({index, generation});
  if (it == table.refs.end() || !it->second.expired()) return;  // opened anew meanwhile: the bit is that one's
  table.refs.erase(it);
  Driver::get().machine().drop_object(index);
}

std::shared_ptr<SharedRef> shared_ref(uint32_t index, uint64_t generation) {
  SharedTable& table = shared_table();
  std::lock_guard lock(table.mutex);
  if (auto known = find_ref_locked(table, index, generation)) return known;
  return add_ref_locked(table, index, generation);
}

std::shared_ptr<SharedRef> hold_shared(uint32_t index, uint64_t generation) {
  SharedTable& table = shared_table();
  std::lock_guard lock(table.mutex);
  if (auto known = find_ref_locked(table, index, generation)) return known;
  if (!Driver::get().machine().hold_object(index, generation)) return nullptr;
  return add_ref_locked(table, index, generation);
}

std::shared_ptr<SharedRef> import_shared(int fd) {
  SharedTable& table = shared_table();
  std::lock_guard lock(table.mutex);
  uint32_t index = 0;
  Machine& machine = Driver::get().machine();
  if (!machine.import_object(fd, &index)) return nullptr;
  uint64_t generation = machine.object(index).generation;
  if (auto known = find_ref_locked(table, index, generation)) return known;
  return add_ref_locked(table, index, generation);
}

int make_backing(Device& device, uint64_t cost, uint64_t length, uint64_t align, std::shared_ptr<Backing>* out) {
  Arena* arena = Arena::get();
  if (arena == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult r = charge(device, cost); r != CUDA_SUCCESS) return r;
  uint64_t offset = arena->allocate(length, align);
  if (offset == Arena::kNoRoom) {
    uncharge(device, cost);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto backing = std::make_shared<Backing>();
  backing->device = &device;
  backing->cost = cost;
  backing->offset = offset;
  backing->length = length;
  backing->address = arena->base() + offset;
  backing->fd = arena->fd();
  *out = std::move(backing);
  return CUDA_SUCCESS;
}

Backing::~Backing() {
  if (foreign) {
    if (map_base != nullptr) munmap(map_base, map_length);
    if (fd >= 0) close(fd);
    return;
  }
  if (address == nullptr) return;
  if (!shared) {
    Arena::get()->release(offset, length);
    uncharge(*device, cost);
    return;
  }
  uint32_t index = shared->index;
  uint64_t generation = shared->generation;
  shared.reset();
  Arena::get()->release_later(offset, length, index, generation);
}

bool share_backing(Backing& backing, ObjectKind kind) {
  static std::mutex* const mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  if (backing.shared) return true;
  Arena* arena = Arena::get();
  if (!arena->publish()) return false;
  Machine& machine = Driver::get().machine();
  uint32_t index = 0;
  Machine::NewObject wanted{kind, backing.device->gpu, backing.cost, arena->id(), backing.offset, backing.length, {}};
  if (!machine.create_object(wanted, &index)) return false;
  backing.shared = shared_ref(index, machine.object(index).generation);
  return true;
}

std::shared_ptr<Backing> map_foreign(Device* device, uint64_t arena, uint64_t offset, uint64_t length,
                                     std::shared_ptr<SharedRef> shared) {
  int fd = open_shared(Driver::get().machine().arena_path(arena), O_RDWR);
  if (fd < 0) return nullptr;
  uint64_t first = offset / kPage * kPage;
  uint64_t end = (offset + length + kPage - 1) / kPage * kPage;
  void* at =
      mmap(nullptr, end - first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(first));
  if (at == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  madvise(at, end - first, MADV_DONTFORK);
  auto backing = std::make_shared<Backing>();
  backing->device = device;
  backing->offset = offset;
  backing->length = length;
  backing->foreign = true;
  backing->fd = fd;
  backing->map_base = static_cast<char*>(at);
  backing->map_length = end - first;
  backing->address = backing->map_base + (offset - first);
  backing->shared = std::move(shared);
  return backing;
}

}  // namespace kvram::simgpu
