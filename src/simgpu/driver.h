// The simulated driver inside one process: devices, contexts, the way an entry point is written, and the seams between
// its parts.
//
// An entry point is written as
//   KV_CUDA_EXPORT cuStreamCreate(CUstream* out, unsigned flags) {
//     return with_context([&](Context& c) { ...; return CUDA_SUCCESS; });
//   }
// The folder is compiled with __CUDA_API_VERSION_INTERNAL, so that the compiler checks the type of every version. Names
// that have no body are weak stubs made by hack/gen_sim_stubs.py: they return CUDA_ERROR_NOT_SUPPORTED and count.
#pragma once
#include <cuda.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "simgpu/control.h"
#include "simgpu/machine.h"
#include "simgpu/work.h"

#define KV_CUDA_EXPORT extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

namespace kvram::simgpu {

// Live handles of one kind. A handle is the object's address; an unknown or dead one is found out, never followed.
template <typename T>
class HandleTable {
 public:
  T* add(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    T* key = object.get();
    map_[key] = std::move(object);
    return key;
  }
  std::shared_ptr<T> find(const void* handle) const {
    std::shared_lock lock(mutex_);
    auto it = map_.find(handle);
    return it == map_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    auto it = map_.find(handle);
    if (it == map_.end()) return nullptr;
    auto object = std::move(it->second);
    map_.erase(it);
    return object;
  }
  // Copies of all, for work without the lock.
  std::vector<std::shared_ptr<T>> all() const {
    std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> out;
    out.reserve(map_.size());
    for (const auto& [key, object] : map_) out.push_back(object);
    return out;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> map_;
};

struct Device;
struct StreamState;  // stream.cc
struct ModuleState;  // module.cc

struct Context : std::enable_shared_from_this<Context> {
  Device* device = nullptr;
  uint64_t id = 0;
  bool primary = false;
  bool green = false;  // made by cuCtxFromGreenCtx
  unsigned flags = 0;
  unsigned api_version = 0;
  std::atomic<bool> destroyed = false;
  std::mutex mutex;  // guards limits and caches below
  uint64_t limits[16] = {};
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  std::atomic<uint64_t> charged = 0;  // of the context itself and its limits, not of what is made in it
  std::shared_ptr<StreamState> streams;
  std::shared_ptr<ModuleState> modules;
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

struct Pool;  // pool.h

struct Device {
  int ordinal = 0;   // as the program sees it, after CUDA_VISIBLE_DEVICES
  uint32_t gpu = 0;  // in the machine
  const GpuInfo* info = nullptr;
  std::mutex mutex;  // guards the primary context
  std::shared_ptr<Context> primary;
  int primary_refs = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<Pool> default_pool;
  std::shared_ptr<Pool> current_pool;
  std::shared_ptr<Pool> graph_pool;  // behind graph memory nodes: reserved is resident
};

class Driver {
 public:
  // Opened by cuInit; nothing works before. Never destroyed: the process's end gives everything back.
  static Driver& get();
  Machine& machine() { return *machine_; }
  int device_count() const { return static_cast<int>(devices_.size()); }
  Device* device(int ordinal) {
    return ordinal >= 0 && ordinal < device_count() ? devices_[static_cast<size_t>(ordinal)].get() : nullptr;
  }
  HandleTable<Context>& contexts() { return contexts_; }
  // cuInit. CUDA_ERROR_NO_DEVICE when there is no machine to use; error() then has a sentence.
  CUresult init();
  const std::string& error() const { return error_; }

 private:
  std::unique_ptr<Machine> machine_;
  std::vector<std::unique_ptr<Device>> devices_;
  HandleTable<Context> contexts_;
  std::string error_;
};

// CUDA_SUCCESS; CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child of an initialised process.
CUresult ready();
// The calling thread's context; null if none.
std::shared_ptr<Context> current_context();
// The context of a handle (or the primary context that cuDevicePrimaryCtxRetain gave), null if it is none.
std::shared_ptr<Context> find_context(CUcontext handle);
void set_current_context(std::shared_ptr<Context> context);  // replaces the top of the thread's stack; null pops it
// Takes device memory for this process: modules, streams, graphs, contexts. CUDA_ERROR_OUT_OF_MEMORY if not free.
CUresult charge(Device& device, uint64_t bytes);
void uncharge(Device& device, uint64_t bytes);

// After a context is made / before its handle goes: streams, modules and events of it are dropped and their bytes given
// back (hooks.cc).
CUresult context_created(Context& context);
void context_destroyed(Context& context);

// A fault asked for (control.h): sleeps, hangs or gives its code; CUDA_ERROR_UNKNOWN on a lost GPU, as the driver does
// for one that fell off the bus. `context` may be null.
inline CUresult fault_check(Context* context, const char* call) {
  if (faults_armed()) [[unlikely]] {
    if (int code = fault_at(call)) return static_cast<CUresult>(code);
  }
  return context != nullptr && gpu_lost(context->device->gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

// ---- how entry points begin ----

template <typename F>
CUresult with_driver(F&& body, const char* call = __builtin_FUNCTION()) {
  if (CUresult r = ready(); r != CUDA_SUCCESS) return r;
  if (CUresult r = fault_check(nullptr, call); r != CUDA_SUCCESS) return r;
  return body();
}
template <typename F>
CUresult with_context(F&& body, const char* call = __builtin_FUNCTION()) {
  if (CUresult r = ready(); r != CUDA_SUCCESS) return r;
  std::shared_ptr<Context> context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (CUresult r = fault_check(context.get(), call); r != CUDA_SUCCESS) return r;
  return body(*context);
}

}  // namespace kvram::simgpu
