// Memory that comes without a size: contexts, streams, modules, libraries and a context's limits.
#include <fcntl.h>
#include <sys/stat.h>

#include "guard/state.h"
#include "lease/module_image.h"

using namespace kvram::guard;
namespace lease = kvram::lease;

namespace {

// Sets the attribute once per (process, GPU): the primary context is charged with its first reference.
CUresult retain_primary(State& s, CUcontext* out, CUdevice device) {
  const int gpu = gpu_of_device(s, device);
  if (gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  Primary& p = s.primary[gpu];
  const Guarded hold(p.lock);
  const uint64_t bytes = p.units == 0 ? s.client.cost(gpu).context_bytes : 0;
  const uint64_t units = lease::to_units(bytes);
  if (!charge(s, gpu, units, "cuDevicePrimaryCtxRetain", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = REAL(cuDevicePrimaryCtxRetain)(out, device);
  if (r != CUDA_SUCCESS) return undo(s, gpu, units, r, "cuDevicePrimaryCtxRetain", bytes);
  p.units += units;
  p.context = bits(*out);
  ++p.references;
  return r;
}

// After a release or reset: when the driver has no primary context any more, its charge goes too.
void settle_primary(State& s, int gpu, CUdevice device) {
  Primary& p = s.primary[gpu];
  unsigned flags = 0;
  int active = 1;
  if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active != 0) return;
  s.client.give_back(gpu, p.units);
  p.units = 0;
  p.references = 0;
}

// One reference less, or (reset) all that was made in the context. With the last reference goes all of it as well.
template <typename Call>
CUresult leave_primary(CUdevice device, bool reset, Call call) {
  State& s = state();
  const int gpu = gpu_of_device(s, device);
  if (gpu == kNoGpu) return call();
  Primary& p = s.primary[gpu];
  const Guarded hold(p.lock);
  const bool last = p.references <= 1;
  Detached inside(s, reset || last ? p.context : 0);
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  if (!reset && p.references != 0) --p.references;
  settle_primary(s, gpu, device);
  if (reset || p.units == 0) inside.settle();
  s.pools.shrink(s, gpu);
  return r;
}

template <typename Call>
CUresult create_context(const char* name, CUcontext* out, CUdevice device, Call call) {
  State& s = state();
  const int gpu = gpu_of_device(s, device);
  if (out == nullptr) return call();
  if (gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t bytes = s.client.cost(gpu).context_bytes;
  const Entry entry{0, Kind::kContext, static_cast<uint32_t>(gpu), lease::to_units(bytes), 0, 1, 0};
  return account(s, name, entry, bytes, call, [out] { return *out; });
}

template <typename Call>
CUresult destroy_context(CUcontext context, Call call) {
  State& s = state();
  Entry entry;
  if (!s.table.take(Kind::kContext, bits(context), &entry)) return call();
  Detached inside(s, bits(context));
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    s.table.put(entry);
    return r;
  }
  inside.settle();
  settle(s, entry);
  s.pools.shrink(s, static_cast<int>(entry.gpu));
  return r;
}

// Something small of the current context that costs `bytes_of(cost model)`.
template <typename Handle, typename Bytes, typename Call>
CUresult create_in_context(const char* name, Kind kind, Handle* out, Bytes bytes_of, Call call) {
  State& s = state();
  Where at;
  if (out == nullptr || !here(s, &at)) return call();
  if (at.gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t bytes = bytes_of(s.client.cost(at.gpu));
  const Entry entry{0, kind, static_cast<uint32_t>(at.gpu), lease::to_units(bytes), at.context, 0, 0};
  return account(s, name, entry, bytes, call, [out] { return *out; });
}

uint64_t file_image_bytes(const char* path) {
  const KeepErrno keep;
  struct stat st{};
  return path != nullptr && stat(path, &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

template <typename Handle, typename Call>
CUresult load(const char* name, Handle* out, uint64_t image, Call call) {
  if (image == 0) return call();
  return create_in_context(
      name, Kind::kModule, out,
      [image](const lease::CostModel& cost) { return lease::round_up(image, cost.module_page_bytes); }, call);
}

uint64_t stream_bytes(const lease::CostModel& cost) { return cost.stream_bytes; }

}  // namespace

KV_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return REAL(cuDevicePrimaryCtxRetain)(context, device);
  return retain_primary(state(), context, device);
}
KV_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return leave_primary(device, false, [=] { return REAL(cuDevicePrimaryCtxRelease_v2)(device); });
}
KV_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  return leave_primary(device, false, [=] { return REAL(cuDevicePrimaryCtxRelease)(device); });
}
KV_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return leave_primary(device, true, [=] { return REAL(cuDevicePrimaryCtxReset_v2)(device); });
}
KV_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  return leave_primary(device, true, [=] { return REAL(cuDevicePrimaryCtxReset)(device); });
}

KV_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return create_context("cuCtxCreate", context, device, [=] { return REAL(cuCtxCreate)(context, flags, device); });
}
KV_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create_context("cuCtxCreate_v2", context, device,
                        [=] { return REAL(cuCtxCreate_v2)(context, flags, device); });
}
KV_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count,
                                          unsigned int flags, CUdevice device) {
  return create_context("cuCtxCreate_v3", context, device,
                        [=] { return REAL(cuCtxCreate_v3)(context, params, count, flags, device); });
}
KV_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags,
                                          CUdevice device) {
  return create_context("cuCtxCreate_v4", context, device,
                        [=] { return REAL(cuCtxCreate_v4)(context, params, flags, device); });
}
KV_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) {
  return destroy_context(context, [=] { return REAL(cuCtxDestroy_v2)(context); });
}
KV_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext context) {
  return destroy_context(context, [=] { return REAL(cuCtxDestroy)(context); });
}
KV_EXPORT CUresult CUDAAPI cuCtxAttach(CUcontext* context, unsigned int flags) {
  const CUresult r = REAL(cuCtxAttach)(context, flags);
  State& s = state();
  Entry entry;
  if (r == CUDA_SUCCESS && s.table.find(Kind::kContext, bits(*context), &entry)) {
    ++entry.owner;
    s.table.update(entry);
  }
  return r;
}
KV_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext context) {
  State& s = state();
  Entry entry;
  if (s.table.find(Kind::kContext, bits(context), &entry) && entry.owner > 1) {
    const CUresult r = REAL(cuCtxDetach)(context);
    if (r != CUDA_SUCCESS) return r;
    --entry.owner;
    s.table.update(entry);
    return r;
  }
  return destroy_context(context, [=] { return REAL(cuCtxDetach)(context); });
}

// A green context keeps the primary context of its device alive.
KV_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device,
                                            unsigned int flags) {
  State& s = state();
  const auto call = [=] { return REAL(cuGreenCtxCreate)(context, resources, device, flags); };
  const int gpu = gpu_of_device(s, device);
  if (context == nullptr) return call();
  if (gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  CUcontext primary = nullptr;
  CUresult r = retain_primary(s, &primary, device);
  if (r != CUDA_SUCCESS) return r;
  const uint64_t bytes = s.client.cost(gpu).green_context_bytes;
  const Entry entry{
      0, Kind::kGreen, static_cast<uint32_t>(gpu), lease::to_units(bytes), 0, static_cast<uint64_t>(device), 0};
  r = account(s, "cuGreenCtxCreate", entry, bytes, call, [=] { return *context; });
  if (r != CUDA_SUCCESS) {
    leave_primary(device, false, [=] { return REAL(cuDevicePrimaryCtxRelease_v2)(device); });
    return r;
  }
  REAL(cuDevicePrimaryCtxRelease_v2)(device);  // the green context has its own; what we counted now stands for that
  return r;
}
KV_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx context) {
  State& s = state();
  Entry entry;
  CUcontext seen_as = nullptr;
  if (!s.table.take(Kind::kGreen, bits(context), &entry)) return REAL(cuGreenCtxDestroy)(context);
  if (REAL(cuCtxFromGreenCtx)(&seen_as, context) != CUDA_SUCCESS) seen_as = nullptr;
  Detached inside(s, bits(seen_as));
  const CUresult r =
      leave_primary(static_cast<CUdevice>(entry.owner), false, [=] { return REAL(cuGreenCtxDestroy)(context); });
  if (r != CUDA_SUCCESS) {
    s.table.put(entry);
    return r;
  }
  inside.settle();
  settle(s, entry);
  return r;
}

KV_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int flags) {
  return create_in_context("cuStreamCreate", Kind::kStream, stream, stream_bytes,
                           [=] { return REAL(cuStreamCreate)(stream, flags); });
}
KV_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create_in_context("cuStreamCreateWithPriority", Kind::kStream, stream, stream_bytes,
                           [=] { return REAL(cuStreamCreateWithPriority)(stream, flags, priority); });
}
KV_EXPORT CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags,
                                                  int priority) {
  State& s = state();
  const auto call = [=] { return REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority); };
  Entry owner;
  CUcontext seen_as = nullptr;
  if (stream == nullptr || !s.table.find(Kind::kGreen, bits(green), &owner)) return call();
  if (REAL(cuCtxFromGreenCtx)(&seen_as, green) != CUDA_SUCCESS) seen_as = nullptr;
  const uint64_t bytes = s.client.cost(static_cast<int>(owner.gpu)).stream_bytes;
  const Entry entry{0, Kind::kStream, owner.gpu, lease::to_units(bytes), bits(seen_as), 0, 0};
  return account(s, "cuGreenCtxStreamCreate", entry, bytes, call, [=] { return *stream; });
}
KV_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) {
  return discharge(state(), Kind::kStream, bits(stream), [=] { return REAL(cuStreamDestroy_v2)(stream); });
}
KV_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  return discharge(state(), Kind::kStream, bits(stream), [=] { return REAL(cuStreamDestroy)(stream); });
}

KV_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  return load("cuModuleLoad", module, file_image_bytes(path), [=] { return REAL(cuModuleLoad)(module, path); });
}
KV_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return load("cuModuleLoadData", module, lease::module_image_bytes(image),
              [=] { return REAL(cuModuleLoadData)(module, image); });
}
KV_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                              CUjit_option* options, void** values) {
  return load("cuModuleLoadDataEx", module, lease::module_image_bytes(image),
              [=] { return REAL(cuModuleLoadDataEx)(module, image, count, options, values); });
}
KV_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load("cuModuleLoadFatBinary", module, lease::module_image_bytes(image),
              [=] { return REAL(cuModuleLoadFatBinary)(module, image); });
}
KV_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  return discharge(state(), Kind::kModule, bits(module), [=] { return REAL(cuModuleUnload)(module); });
}
KV_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* jit,
                                             void** jit_values, unsigned int jit_count, CUlibraryOption* options,
                                             void** values, unsigned int count) {
  return load("cuLibraryLoadData", library, lease::module_image_bytes(image), [=] {
    return REAL(cuLibraryLoadData)(library, image, jit, jit_values, jit_count, options, values, count);
  });
}
KV_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit,
                                                 void** jit_values, unsigned int jit_count, CUlibraryOption* options,
                                                 void** values, unsigned int count) {
  return load("cuLibraryLoadFromFile", library, file_image_bytes(path), [=] {
    return REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values, count);
  });
}
KV_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  return discharge(state(), Kind::kModule, bits(library), [=] { return REAL(cuLibraryUnload)(library); });
}

namespace {

uint64_t limit_units(const Where& at, CUlimit limit, size_t value) {
  int sms = 1;
  int threads = 1;
  REAL(cuDeviceGetAttribute)(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, at.device);
  REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, at.device);
  return lease::to_units(lease::limit_cost(limit, value, static_cast<uint64_t>(sms), static_cast<uint64_t>(threads)));
}

// The entry of (context, limit): what it costs beyond the value that the context began with.
Entry limit_entry(State& s, const Where& at, CUlimit limit) {
  Entry entry{at.context * 16 + limit, Kind::kLimit, static_cast<uint32_t>(at.gpu), 0, at.context, 0, 0};
  if (s.table.find(Kind::kLimit, entry.key, &entry)) return entry;
  size_t value = 0;
  if (REAL(cuCtxGetLimit)(&value, limit) == CUDA_SUCCESS) entry.owner = limit_units(at, limit, value);
  s.table.put(entry);
  return entry;
}

}  // namespace

KV_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  State& s = state();
  Where at;
  if (limit > CU_LIMIT_MALLOC_HEAP_SIZE || !here(s, &at)) return REAL(cuCtxSetLimit)(limit, value);
  if (at.gpu == kNoGpu) return CUDA_ERROR_OUT_OF_MEMORY;
  const Guarded hold(s.limits);
  Entry entry = limit_entry(s, at, limit);
  const uint64_t cost = limit_units(at, limit, value);
  const uint64_t wanted = cost > entry.owner ? cost - entry.owner : 0;
  const uint64_t before = entry.units;
  const uint64_t more = wanted > before ? wanted - before : 0;
  if (!charge(s, at.gpu, more, "cuCtxSetLimit", value)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = REAL(cuCtxSetLimit)(limit, value);
  if (r != CUDA_SUCCESS) return undo(s, at.gpu, more, r, "cuCtxSetLimit", value);
  entry.units = wanted;
  s.table.update(entry);
  if (wanted < before) s.client.give_back(at.gpu, before - wanted);
  s.client.succeeded(at.gpu, value);
  return r;
}
