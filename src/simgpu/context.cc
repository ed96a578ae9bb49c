// Contexts: primary and explicit, the stack of each thread, limits.
#include "simgpu/context.h"

#include <algorithm>
#include <vector>

#include "lease/cost.h"
#include "simgpu/array.h"
#include "simgpu/memory.h"
#include "simgpu/pool.h"

namespace kvram::simgpu {
namespace {

thread_local std::vector<std::shared_ptr<Context>> t_stack;

constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;

void set_default_limits(Context& c) {
  c.limits[CU_LIMIT_STACK_SIZE] = lease::kDefaultStackBytes;
  c.limits[CU_LIMIT_PRINTF_FIFO_SIZE] = lease::kDefaultFifoBytes;
  c.limits[CU_LIMIT_MALLOC_HEAP_SIZE] = lease::kDefaultHeapBytes;
  c.limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  c.limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  c.limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  c.limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

uint64_t next_context_id() {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(1);
}

// Charges the context's own cost and lets the other parts add theirs.
CUresult start_context(const std::shared_ptr<Context>& c) {
  const Costs& costs = c->device->info->costs;
  uint64_t cost = c->green ? costs.green_context_bytes : costs.context_bytes;
  if (CUresult r = charge(*c->device, cost); r != CUDA_SUCCESS) return r;
  c->charged = cost;
  set_default_limits(*c);
  c->destroyed = false;
  CUresult r = context_created(*c);
  if (r != CUDA_SUCCESS) {
    c->destroyed = true;
    uncharge(*c->device, c->charged.exchange(0));
  }
  return r;
}

}  // namespace

std::shared_ptr<Context> current_context() { return t_stack.empty() ? nullptr : t_stack.back(); }

void set_current_context(std::shared_ptr<Context> context) {
  if (!t_stack.empty()) t_stack.pop_back();
  if (context) t_stack.push_back(std::move(context));
}

std::shared_ptr<Context> find_context(CUcontext handle) { return Driver::get().contexts().find(handle); }

CUresult make_context(Device& device, unsigned flags, unsigned api_version, std::shared_ptr<Context>* out) {
  if ((flags & ~kContextFlags) != 0 || (flags & CU_CTX_SCHED_MASK) == 3) return CUDA_ERROR_INVALID_VALUE;
  auto c = std::make_shared<Context>();
  c->device = &device;
  c->id = next_context_id();
  c->flags = flags;
  c->api_version = api_version;
  if (CUresult r = start_context(c); r != CUDA_SUCCESS) return r;
  Driver::get().contexts().add(c);
  *out = std::move(c);
  return CUDA_SUCCESS;
}

CUresult make_green_context(Device& device, std::shared_ptr<Context>* out) {
  auto c = std::make_shared<Context>();
  c->device = &device;
  c->id = next_context_id();
  c->green = true;
  c->api_version = 3020;
  if (CUresult r = start_context(c); r != CUDA_SUCCESS) return r;
  Driver::get().contexts().add(c);
  *out = std::move(c);
  return CUDA_SUCCESS;
}

void end_context(const std::shared_ptr<Context>& c) {
  if (c->destroyed.exchange(true)) return;
  drain_context(c.get());
  context_destroyed(*c);
  forget_context_streams(c.get());
  destroy_arrays_of(c.get());
  for (Block& block : remove_blocks_of(c.get())) dispose(std::move(block));
  trim_pools_at_sync(*c->device);
  uncharge(*c->device, c->charged.exchange(0));
  if (!c->primary) Driver::get().contexts().remove(c.get());
}

CUresult retain_primary(Device& device, std::shared_ptr<Context>* out) {
  std::lock_guard lock(device.mutex);
  if (!device.primary) {
    auto c = std::make_shared<Context>();
    c->device = &device;
    c->id = next_context_id();
    c->primary = true;
    c->destroyed = true;
    c->api_version = 3020;
    device.primary = c;
    Driver::get().contexts().add(c);
  }
  if (device.primary_refs == 0) {
    device.primary->flags = device.primary_flags;
    if (CUresult r = start_context(device.primary); r != CUDA_SUCCESS) return r;
  }
  ++device.primary_refs;
  *out = device.primary;
  return CUDA_SUCCESS;
}

CUresult release_primary(Device& device) {
  std::shared_ptr<Context> ended;
  {
    std::lock_guard lock(device.mutex);
    if (device.primary_refs == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device.primary_refs == 0) ended = device.primary;
  }
  if (ended) end_context(ended);
  return CUDA_SUCCESS;
}

namespace {

template <typename F>
CUresult with_device(CUdevice ordinal, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        Device* device = Driver::get().device(ordinal);
        return device != nullptr ? body(*device) : CUDA_ERROR_INVALID_DEVICE;
      },
      call);
}

CUresult create(CUcontext* out, unsigned flags, CUdevice ordinal, unsigned api, const char* call) {
  return with_device(
      ordinal,
      [&](Device& device) {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::shared_ptr<Context> c;
        if (CUresult r = make_context(device, flags, api, &c); r != CUDA_SUCCESS) return r;
        *out = c->handle();
        t_stack.push_back(std::move(c));
        return CUDA_SUCCESS;
      },
      call);
}

CUresult destroy(CUcontext handle, const char* call) {
  return with_driver(
      [&] {
        auto c = find_context(handle);
        if (!c || c->destroyed || c->primary || c->green) return CUDA_ERROR_INVALID_CONTEXT;
        // A context that is current to the caller is popped; other threads find it destroyed.
        if (!t_stack.empty() && t_stack.back() == c) t_stack.pop_back();
        end_context(c);
        return CUDA_SUCCESS;
      },
      call);
}

CUresult push(CUcontext handle, const char* call) {
  return with_driver(
      [&] {
        auto c = find_context(handle);
        if (!c || c->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
        t_stack.push_back(std::move(c));
        return CUDA_SUCCESS;
      },
      call);
}

CUresult pop(CUcontext* out, const char* call) {
  return with_driver(
      [&] {
        if (t_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
        if (out != nullptr) *out = t_stack.back()->handle();
        t_stack.pop_back();
        return CUDA_SUCCESS;
      },
      call);
}

CUresult synchronize(Context& c) {
  CUresult r = drain_context(&c);
  trim_pools_at_sync(*c.device);
  return r;
}

CUresult set_limit(Context& c, CUlimit limit, size_t value) {
  bool known = limit >= 0 && limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
  if (!known) return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
  auto sms = static_cast<uint64_t>(c.device->info->sms);
  auto threads = static_cast<uint64_t>(c.device->info->threads_per_sm);
  if (limit == CU_LIMIT_STACK_SIZE && value > 512ULL * 1024) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(c.mutex);
  constexpr uint64_t kDefaults[] = {lease::kDefaultStackBytes, lease::kDefaultFifoBytes, lease::kDefaultHeapBytes};
  auto growth = [&](uint64_t v) -> uint64_t {
    if (limit > CU_LIMIT_MALLOC_HEAP_SIZE) return 0;
    uint64_t now = lease::limit_cost(limit, v, sms, threads);
    uint64_t base = lease::limit_cost(limit, kDefaults[limit], sms, threads);
    return now > base ? now - base : 0;
  };
  uint64_t before = growth(c.limits[limit]);
  uint64_t after = growth(value);
  if (after > before) {
    if (CUresult r = charge(*c.device, after - before); r != CUDA_SUCCESS) return r;
    c.charged += after - before;
  } else {
    uncharge(*c.device, before - after);
    c.charged -= before - after;
  }
  c.limits[limit] = value;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3010, __func__);
}
KV_CUDA_EXPORT cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3020, __func__);
}
KV_CUDA_EXPORT cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3020, __func__);
}
KV_CUDA_EXPORT cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3020, __func__);
}
KV_CUDA_EXPORT cuCtxDestroy_v2(CUcontext handle) { return destroy(handle, __func__); }
KV_CUDA_EXPORT cuCtxDestroy(CUcontext handle) { return destroy(handle, __func__); }
KV_CUDA_EXPORT cuCtxPushCurrent_v2(CUcontext handle) { return push(handle, __func__); }
KV_CUDA_EXPORT cuCtxPushCurrent(CUcontext handle) { return push(handle, __func__); }
KV_CUDA_EXPORT cuCtxPopCurrent_v2(CUcontext* out) { return pop(out, __func__); }
KV_CUDA_EXPORT cuCtxPopCurrent(CUcontext* out) { return pop(out, __func__); }

KV_CUDA_EXPORT cuCtxSetCurrent(CUcontext handle) {
  return with_driver([&] {
    std::shared_ptr<Context> c;
    if (handle != nullptr) {
      c = find_context(handle);
      if (!c || c->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    }
    set_current_context(std::move(c));
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetCurrent(CUcontext* out) {
  return with_driver([&] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto c = current_context();
    *out = c ? c->handle() : nullptr;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetDevice(CUdevice* out) {
  return with_context([&](Context& c) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = c.device->ordinal;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetDevice_v2(CUdevice* out, CUcontext handle) {
  return with_driver([&] {
    auto c = handle == nullptr ? current_context() : find_context(handle);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = c->device->ordinal;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetFlags(unsigned* out) {
  return with_context([&](Context& c) { return out ? (*out = c.flags, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuCtxSetFlags(unsigned flags) {
  return with_context([&](Context& c) {
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
    c.flags = flags;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetId(CUcontext handle, unsigned long long* out) {
  return with_driver([&] {
    auto c = handle == nullptr ? current_context() : find_context(handle);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    return out ? (*out = c->id, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuCtxSynchronize() {
  return with_context([&](Context& c) { return synchronize(c); });
}
KV_CUDA_EXPORT cuCtxSynchronize_v2(CUcontext handle) {
  return with_driver([&] {
    auto c = handle == nullptr ? current_context() : find_context(handle);
    return c && !c->destroyed ? synchronize(*c) : CUDA_ERROR_INVALID_CONTEXT;
  });
}
KV_CUDA_EXPORT cuCtxSetLimit(CUlimit limit, size_t value) {
  return with_context([&](Context& c) { return set_limit(c, limit, value); });
}
KV_CUDA_EXPORT cuCtxGetLimit(size_t* out, CUlimit limit) {
  return with_context([&](Context& c) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    std::lock_guard lock(c.mutex);
    *out = c.limits[limit];
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetApiVersion(CUcontext handle, unsigned* out) {
  return with_driver([&] {
    auto c = handle == nullptr ? current_context() : find_context(handle);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    return out ? (*out = c->api_version, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&](Context&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuCtxGetCacheConfig(CUfunc_cache* out) {
  return with_context(
      [&](Context& c) { return out ? (*out = c.cache_config, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuCtxSetCacheConfig(CUfunc_cache config) {
  return with_context([&](Context& c) { return c.cache_config = config, CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuCtxGetSharedMemConfig(CUsharedconfig* out) {
  return with_context(
      [&](Context& c) { return out ? (*out = c.shared_config, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return with_context([&](Context& c) { return c.shared_config = config, CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuCtxResetPersistingL2Cache() {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  return with_context([&](Context& c) {
    auto peer = find_context(handle);
    if (!peer || peer->device == c.device) return CUDA_ERROR_INVALID_CONTEXT;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuCtxDisablePeerAccess(CUcontext handle) {
  return with_context([&](Context&) { return find_context(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; });
}
KV_CUDA_EXPORT cuCtxGetExecAffinity(CUexecAffinityParam* out, CUexecAffinityType type) {
  return with_context([&](Context& c) {
    if (out == nullptr || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
    out->type = type;
    out->param.smCount.val = static_cast<unsigned>(c.device->info->sms);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Context> c;
    CUresult r = retain_primary(device, &c);
    if (r == CUDA_SUCCESS) *out = c->handle();
    return r;
  });
}

namespace {

CUresult reset_primary(Device& device) {
  std::shared_ptr<Context> c;
  {
    std::lock_guard lock(device.mutex);
    if (device.primary_refs == 0) return CUDA_SUCCESS;
    device.primary_refs = 0;
    c = device.primary;
  }
  end_context(c);
  return CUDA_SUCCESS;
}

CUresult set_primary_flags(Device& device, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device.mutex);
  device.primary_flags = flags;
  if (device.primary) device.primary->flags = flags;
  return CUDA_SUCCESS;
}

}  // namespace

KV_CUDA_EXPORT cuDevicePrimaryCtxRelease_v2(CUdevice device) { return with_device(device, release_primary); }
KV_CUDA_EXPORT cuDevicePrimaryCtxRelease(CUdevice device) { return with_device(device, release_primary); }
KV_CUDA_EXPORT cuDevicePrimaryCtxReset_v2(CUdevice device) { return with_device(device, reset_primary); }
KV_CUDA_EXPORT cuDevicePrimaryCtxReset(CUdevice device) { return with_device(device, reset_primary); }
KV_CUDA_EXPORT cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return with_device(device, [&](Device& d) { return set_primary_flags(d, flags); });
}
KV_CUDA_EXPORT cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return with_device(device, [&](Device& d) { return set_primary_flags(d, flags); });
}
KV_CUDA_EXPORT cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return with_device(device, [&](Device& d) {
    std::lock_guard lock(d.mutex);
    if (flags != nullptr) *flags = d.primary_flags;
    if (active != nullptr) *active = d.primary_refs > 0 ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
