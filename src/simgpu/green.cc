// Green contexts: a share of a device's SMs. They keep the primary context of their device and cost a little memory;
// SMs are counted, and do not change how long work takes.
#include <algorithm>

#include "simgpu/context.h"

namespace kvram::simgpu {
namespace {

struct Description {
  CUdevResource sm{};
};
HandleTable<Description>& descriptions() {
  static auto* const table = new HandleTable<Description>;
  return *table;
}

constexpr unsigned kSmStep = 2;

CUdevResource sm_resource(unsigned sms) {
  CUdevResource r{};
  r.type = CU_DEV_RESOURCE_TYPE_SM;
  r.sm.smCount = sms;
  r.sm.minSmPartitionSize = kSmStep;
  r.sm.smCoscheduledAlignment = kSmStep;
  return r;
}

CUresult device_resource(CUdevice ordinal, CUdevResource* out, CUdevResourceType type) {
  Device* device = Driver::get().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = sm_resource(static_cast<unsigned>(device->info->sms));
  return CUDA_SUCCESS;
}

CUresult split(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* rest,
               unsigned minimum) {
  if (groups == nullptr || input == nullptr || minimum == 0) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  unsigned size = (minimum + kSmStep - 1) / kSmStep * kSmStep;
  unsigned possible = input->sm.smCount / size;
  if (result == nullptr) return *groups = possible, CUDA_SUCCESS;
  *groups = std::min(*groups, possible);
  if (*groups == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  for (unsigned i = 0; i < *groups; ++i) result[i] = sm_resource(size);
  if (rest != nullptr) *rest = sm_resource(input->sm.smCount - *groups * size);
  return CUDA_SUCCESS;
}

std::shared_ptr<Context> find_green(CUgreenCtx handle) {
  auto context = Driver::get().contexts().find(handle);
  return context && context->green && !context->destroyed ? context : nullptr;
}

CUresult create(CUgreenCtx* out, CUdevResourceDesc desc, CUdevice ordinal, unsigned flags) {
  Device* device = Driver::get().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr || !descriptions().find(desc) || (flags & CU_GREEN_CTX_DEFAULT_STREAM) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> primary;
  std::shared_ptr<Context> green;
  if (CUresult r = retain_primary(*device, &primary); r != CUDA_SUCCESS) return r;
  if (CUresult r = make_green_context(*device, &green); r != CUDA_SUCCESS) {
    release_primary(*device);
    return r;
  }
  *out = reinterpret_cast<CUgreenCtx>(green.get());
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuDeviceGetDevResource(CUdevice device, CUdevResource* out, CUdevResourceType type) {
  return with_driver([&] { return device_resource(device, out, type); });
}
KV_CUDA_EXPORT cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups, const CUdevResource* input,
                                           CUdevResource* rest, unsigned, unsigned minimum) {
  return with_driver([&] { return split(result, groups, input, rest, minimum); });
}
KV_CUDA_EXPORT cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources, unsigned count) {
  return with_driver([&] {
    if (out == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (resources[0].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    auto description = std::make_shared<Description>();
    for (unsigned i = 0; i < count; ++i) description->sm.sm.smCount += resources[i].sm.smCount;
    *out = reinterpret_cast<CUdevResourceDesc>(descriptions().add(std::move(description)));
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
  return with_driver([&] { return create(out, desc, device, flags); });
}
KV_CUDA_EXPORT cuGreenCtxDestroy(CUgreenCtx handle) {
  return with_driver([&] {
    auto green = find_green(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    Device& device = *green->device;
    end_context(green);
    return release_primary(device);
  });
}
KV_CUDA_EXPORT cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  return with_driver([&] {
    auto green = find_green(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    return out != nullptr ? (*out = green->handle(), CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* out) {
  return with_driver([&] {
    auto green = find_green(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    return out != nullptr ? (*out = green->id, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
  });
}
KV_CUDA_EXPORT cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags, int priority) {
  return with_driver([&] {
    auto green = find_green(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult r = cuCtxPushCurrent_v2(green->handle()); r != CUDA_SUCCESS) return r;
    CUresult made = cuStreamCreateWithPriority(out, flags, priority);
    cuCtxPopCurrent_v2(nullptr);
    return made;
  });
}
