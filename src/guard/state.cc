#include "guard/state.h"

#include <unistd.h>

namespace kvram::guard {

State* g_state;
int g_owner_pid;
namespace {
State g_fallback;  // where the kernel has no memory for one
}

int current_pid() { return static_cast<int>(getpid()); }

void make_state() {
  bool wiped = false;
  State* s = static_cast<State*>(map_wiped_on_fork(sizeof(State), &wiped));
  if (s == nullptr) s = &g_fallback;
  if (!wiped) g_owner_pid = current_pid();
  s->alive = 1;
  g_state = s;
}

State& revive_state() {
  if (g_owner_pid != 0 && g_owner_pid != current_pid()) {
    __builtin_memset(static_cast<void*>(g_state), 0, sizeof *g_state);
    g_owner_pid = current_pid();
  }
  uint32_t dead = 0;
  if (__atomic_compare_exchange_n(&g_state->alive, &dead, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    Client::close_inherited();
  }
  return *g_state;
}

int gpu_of_device(State& s, CUdevice device) {
  if (device < 0 || device >= kMaxDevices || !s.client.attach()) return kNoGpu;
  const uint8_t known = __atomic_load_n(&s.gpu_of_device[device], __ATOMIC_RELAXED);
  if (KV_LIKELY(known != 0)) return static_cast<int>(known) - 2;
  CUuuid uuid{};
  if (REAL(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS && REAL(cuDeviceGetUuid)(&uuid, device) != CUDA_SUCCESS) {
    return kNoGpu;
  }
  const int gpu = s.client.gpu_of_uuid(uuid.bytes);
  if (gpu >= 0) s.device_of_gpu[gpu] = static_cast<uint8_t>(device + 1);
  __atomic_store_n(&s.gpu_of_device[device], static_cast<uint8_t>(gpu >= 0 ? gpu + 2 : 1), __ATOMIC_RELAXED);
  return gpu >= 0 ? gpu : kNoGpu;
}

bool capturing(bool per_thread, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return REAL_T(per_thread, cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool here(State& s, Where* where) {
  CUcontext context = nullptr;
  if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == nullptr ||
      REAL(cuCtxGetDevice)(&where->device) != CUDA_SUCCESS) {
    return false;
  }
  where->context = bits(context);
  where->gpu = gpu_of_device(s, where->device);
  return true;
}

bool charge(State& s, int gpu, uint64_t units, const char* call, uint64_t asked) {
  if (KV_LIKELY(s.client.spend(gpu, units))) return true;
  if (units == 0) return true;
  if (s.pools.shrink(s, gpu) && s.client.spend(gpu, units)) return true;
  return s.client.refill_and_spend(gpu, units, call, asked);
}

CUresult undo(State& s, int gpu, uint64_t units, CUresult why, const char* call, uint64_t asked) {
  if (why == CUDA_ERROR_OUT_OF_MEMORY) s.client.physical_oom(gpu, asked, call);
  s.client.give_back(gpu, units);
  return why;
}

void settle(State& s, const Entry& entry) {
  if (entry.kind == Kind::kAsync) {
    if (Pool* pool = s.pools.of_key(entry.owner)) s.pools.block_freed(s, *pool);
    return;
  }
  if (entry.kind == Kind::kExec && entry.owner != 0) unmap_pages(reinterpret_cast<void*>(entry.owner), 4096);
  if (entry.exported != 0) {
    s.client.release_shared(static_cast<int>(entry.gpu), entry.units);
  } else {
    s.client.give_back(static_cast<int>(entry.gpu), entry.units);
  }
}

void give_back(State& s, const Memory& gone) {
  if (gone.exported != 0) {
    s.client.release_shared(static_cast<int>(gone.gpu), gone.units);
  } else {
    s.client.give_back(static_cast<int>(gone.gpu), gone.units);
  }
}

Detached::Detached(State& s, uint64_t context) : s_(s), entries_(nullptr), count_(0), capacity_(0) {
  Entry entry;
  uint32_t cursor = 0;
  while (context != 0 && s.table.take_of_context(context, &cursor, &entry)) {
    if (add(entry)) continue;
    s.table.put(entry);  // no memory: it stays charged until the process ends
    return;
  }
}

bool Detached::add(const Entry& entry) {
  if (count_ == capacity_) {
    const size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
    Entry* grown = static_cast<Entry*>(map_pages(capacity * sizeof(Entry)));
    if (grown == nullptr) return false;
    if (count_ != 0) __builtin_memcpy(static_cast<void*>(grown), entries_, count_ * sizeof(Entry));
    unmap_pages(entries_, capacity_ * sizeof(Entry));
    entries_ = grown;
    capacity_ = capacity;
  }
  entries_[count_++] = entry;
  return true;
}

void Detached::settle() {
  for (size_t i = 0; i < count_; ++i) guard::settle(s_, entries_[i]);
  count_ = 0;
}

Detached::~Detached() {
  for (size_t i = 0; i < count_; ++i) s_.table.put(entries_[i]);
  unmap_pages(entries_, capacity_ * sizeof(Entry));
}

}  // namespace kvram::guard
