#include "simgpu/machine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simgpu/control.h"
#include "simgpu/machine_file.h"

namespace kvram::simgpu {
namespace {

// Serialises opening, creating and joining a machine; released by the kernel when the process dies.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : fd_(open_shared(folder + "/create", O_RDWR | O_CREAT)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct flock byte_lock(short type, uint32_t byte) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }

}  // namespace

std::string spec_from_environment() {
  const char* text = std::getenv("KUBE_VRAM_SIM");
  return text == nullptr ? "" : text;
}

Machine::Lock::Lock(MachineFile& file) : file_(file) {
  // Whatever the dead holder did is whole words, valid at every step.
  if (pthread_mutex_lock(&file_.mutex) == EOWNERDEAD) pthread_mutex_consistent(&file_.mutex);
}
Machine::Lock::~Lock() { pthread_mutex_unlock(&file_.mutex); }

Machine::~Machine() {
  if (objects_fd_ >= 0) close(objects_fd_);
  if (file_ != nullptr) munmap(file_, sizeof(MachineFile));
}

Result<std::unique_ptr<Machine>> Machine::open(const std::string& folder, const std::string& spec, bool join) {
  std::unique_ptr<Machine> machine(new Machine);
  machine->folder_ = folder;
  machine->image_ = image_token();
  if (auto made = make_folder(folder); !made) return std::unexpected(made.error());
  FolderLock lock(folder);
  machine->slots_fd_ = slots_descriptor(folder);
  machine->objects_fd_ = open_shared(folder + "/objects", O_RDWR | O_CREAT);
  if (!lock.ok() || machine->slots_fd_ < 0 || machine->objects_fd_ < 0) {
    return fail(ErrorCode::kSimMachine,
                "The files of the simulated machine in " + folder + " cannot be opened: " + std::strerror(errno) + ".");
  }
  if (auto found = machine->find_or_create(spec); !found) return std::unexpected(found.error());
  if (join) {
    if (auto joined = machine->take_slot(); !joined) return std::unexpected(joined.error());
  }
  return machine;
}

Result<void> Machine::find_or_create(const std::string& text) {
  MachineSpec spec;
  if (!text.empty()) {
    auto parsed = parse_spec(text);
    if (!parsed) return std::unexpected(parsed.error());
    spec = std::move(*parsed);
    if (spec.text.size() >= kSpecBytes) return fail(ErrorCode::kBadSimSpec, "The list of simulated GPUs is too long.");
  }
  file_ = map_machine(folder_);
  if (file_ != nullptr && (text.empty() || spec.text == file_->spec)) return {};
  if (text.empty()) {
    return fail(ErrorCode::kSimMachine, "There is no simulated machine in " + folder_ +
                                            ": name its GPUs with --sim or KUBE_VRAM_SIM, for example 2xA10.");
  }
  MachineFile* old = file_;
  if (old != nullptr) {
    for (uint32_t s = 0; s < old->slots_used && s < kMaxSlots; ++s) {
      if (old->slot[s].state != kSlotLive || !alive(s)) continue;
      return fail(ErrorCode::kSimMachine, "The simulated machine in " + folder_ + " has " + old->spec +
                                              " and is in use by process " + std::to_string(old->slot[s].pid) + "; " +
                                              spec.text +
                                              " was asked for. End its programs first, or choose another "
                                              "folder with KUBE_VRAM_SIM_DIR.");
    }
  }
  auto made = create_machine(folder_, spec.text, spec.gpus.data(), static_cast<uint32_t>(spec.gpus.size()));
  if (!made) return std::unexpected(made.error());
  file_ = *made;
  if (old != nullptr) {
    __atomic_store_n(&old->replaced, 1, __ATOMIC_RELEASE);
    munmap(old, sizeof(MachineFile));
  }
  return {};
}

Result<void> Machine::take_slot() {
  Lock lock(*file_);
  reap_locked();
  for (uint32_t s = 0; s < kMaxSlots; ++s) {
    Slot& slot = file_->slot[s];
    if (slot.state != kSlotFree) continue;
    struct flock own = byte_lock(F_WRLCK, s);
    if (fcntl(slots_fd_, F_SETLK, &own) != 0) continue;
    for (uint64_t& bytes : slot.resident) __atomic_store_n(&bytes, 0, __ATOMIC_RELAXED);
    slot.pid = getpid();
    slot.start_time = process_start_time();
    slot.image = image_;
    slot.arena = 0;
    std::snprintf(slot.command, sizeof slot.command, "%s", program_invocation_short_name);
    if (file_->slots_used <= s) __atomic_store_n(&file_->slots_used, s + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&slot.state, kSlotLive, __ATOMIC_RELEASE);
    slot_ = s;
    return {};
  }
  return fail(ErrorCode::kSimMachine,
              "The simulated machine already serves " + std::to_string(kMaxSlots) + " processes, its most.");
}

uint64_t Machine::next_id() {
  Lock lock(*file_);
  return __atomic_add_fetch(&file_->next_id, 1, __ATOMIC_RELAXED);
}

uint64_t Machine::sum_used(uint32_t g) const {
  uint64_t sum = 0;
  for (uint32_t s = 0; s < file_->slots_used; ++s) {
    if (file_->slot[s].state == kSlotLive) sum += load(file_->slot[s].resident[g]);
  }
  for (uint32_t i = 0; i < file_->objects_used; ++i) {
    const Object& object = file_->object[i];
    if (object.state == kObjectLive && object.gpu == g) sum += load(object.bytes);
  }
  return sum;
}

bool Machine::take_locked(uint32_t g, uint64_t bytes, uint64_t* counter) {
  uint64_t room = capacity(g);
  uint64_t withheld = std::min(withheld_bytes(g), room);
  room -= withheld;
  if (bytes > room) return false;
  if (sum_used(g) > room - bytes) {
    if (reap_locked() == 0 || sum_used(g) > room - bytes) return false;
  }
  __atomic_fetch_add(counter, bytes, __ATOMIC_RELAXED);
  return true;
}

bool Machine::charge(uint32_t g, uint64_t bytes) {
  if (bytes == 0) return true;
  Lock lock(*file_);
  return take_locked(g, bytes, &own().resident[g]);
}

void Machine::uncharge(uint32_t g, uint64_t bytes) { __atomic_fetch_sub(&own().resident[g], bytes, __ATOMIC_RELAXED); }

bool Machine::charge_object(uint32_t index, uint64_t bytes) {
  if (bytes == 0) return true;
  Lock lock(*file_);
  return take_locked(file_->object[index].gpu, bytes, &file_->object[index].bytes);
}

void Machine::uncharge_object(uint32_t index, uint64_t bytes) {
  __atomic_fetch_sub(&file_->object[index].bytes, bytes, __ATOMIC_RELAXED);
}

uint64_t Machine::used(uint32_t g) {
  Lock lock(*file_);
  reap_locked();
  return sum_used(g);
}

uint64_t Machine::free_bytes(uint32_t g) {
  uint64_t taken = used(g);
  return taken < capacity(g) ? capacity(g) - taken : 0;
}

bool Machine::holder_alive(uint32_t s, int32_t* pid) {
  const Slot& slot = file_->slot[s];
  *pid = slot.pid;
  // A process does not see its own locks. Another library of this process may hold the slot: same pid, and the same
  // program image, or it would be what this process was before exec.
  if (s == slot_ || (slot.pid == getpid() && slot.image == image_)) return true;
  struct flock seen = byte_lock(F_WRLCK, s);
  if (fcntl(slots_fd_, F_GETLK, &seen) != 0) return true;  // cannot tell: keep what it holds
  if (seen.l_type == F_UNLCK) return false;
  if (seen.l_pid > 0) *pid = seen.l_pid;  // as seen from this process's pid namespace
  return true;
}

bool Machine::alive(uint32_t slot) {
  int32_t pid = 0;
  return __atomic_load_n(&file_->slot[slot].state, __ATOMIC_ACQUIRE) == kSlotLive && holder_alive(slot, &pid);
}

int Machine::reap() {
  Lock lock(*file_);
  return reap_locked();
}

int Machine::reap_locked() {
  int found = 0;
  for (uint32_t s = 0; s < file_->slots_used; ++s) {
    if (file_->slot[s].state != kSlotLive || alive(s)) continue;
    bury_locked(s);
    ++found;
  }
  // Shared memory whose last holder was a descriptor that has been closed since.
  for (uint32_t i = 0; i < file_->objects_used; ++i) {
    if (file_->object[i].state != kObjectLive || object_held_locked(i)) continue;
    end_object_locked(i);
    ++found;
  }
  uint32_t slots = file_->slots_used;
  while (slots > 0 && file_->slot[slots - 1].state == kSlotFree) --slots;
  __atomic_store_n(&file_->slots_used, slots, __ATOMIC_RELEASE);
  while (file_->objects_used > 0 && file_->object[file_->objects_used - 1].state == kObjectFree) --file_->objects_used;
  return found;
}

// Every step can be repeated: a reaper killed half-way leaves the slot for the next.
void Machine::bury_locked(uint32_t s) {
  Slot& slot = file_->slot[s];
  for (uint32_t i = 0; i < file_->objects_used; ++i) {
    __atomic_fetch_and(&file_->object[i].refs[s / 64], ~(1ULL << (s % 64)), __ATOMIC_RELAXED);
  }
  uint64_t arena = slot.arena;
  for (uint64_t& bytes : slot.resident) __atomic_store_n(&bytes, 0, __ATOMIC_RELAXED);
  if (arena != 0) sweep_arena_locked(arena, s);
  slot.arena = 0;
  __atomic_store_n(&slot.state, kSlotFree, __ATOMIC_RELEASE);
}

std::vector<ProcessUse> Machine::processes(uint32_t g) {
  Lock lock(*file_);
  reap_locked();
  std::vector<ProcessUse> out;
  std::vector<uint64_t> shared(file_->slots_used, 0);
  for (uint32_t i = 0; i < file_->objects_used; ++i) {
    const Object& object = file_->object[i];
    if (object.state != kObjectLive || object.gpu != g) continue;
    uint32_t shown = kMaxSlots;
    if ((load(object.refs[object.owner / 64]) >> (object.owner % 64) & 1) != 0) shown = object.owner;
    for (uint32_t w = 0; w < kMaxSlots / 64 && shown == kMaxSlots; ++w) {
      if (uint64_t bits = load(object.refs[w])) shown = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
    }
    if (shown < shared.size()) shared[shown] += load(object.bytes);
  }
  for (uint32_t s = 0; s < file_->slots_used; ++s) {
    const Slot& slot = file_->slot[s];
    if (slot.state != kSlotLive) continue;
    uint64_t bytes = load(slot.resident[g]) + shared[s];
    int32_t pid = 0;
    if (bytes == 0 || !holder_alive(s, &pid)) continue;
    out.push_back(ProcessUse{s, pid, std::string(slot.command, strnlen(slot.command, sizeof slot.command)), bytes});
  }
  return out;
}

}  // namespace kvram::simgpu
