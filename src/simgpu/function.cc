// What a kernel is and how much of it fits on a multiprocessor.
#include <algorithm>

#include "simgpu/module.h"

namespace kvram::simgpu {
namespace {

constexpr int kMaxDynamicShared = 227 * 1024;

template <typename F>
CUresult with_function(CUfunction handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        FunctionPtr function = functions().find(handle);
        return function ? body(*function) : CUDA_ERROR_INVALID_HANDLE;
      },
      call);
}

int capability(const Function& function) {
  std::shared_ptr<Module> module = function.module.lock();
  const GpuInfo* info = module ? module->device->info : Driver::get().device(0)->info;
  return info->cc_major * 10 + info->cc_minor;
}

CUresult attribute_value(const Function& function, CUfunction_attribute attribute, int* out) {
  switch (static_cast<int>(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = static_cast<int>(function.kernel.max_threads);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *out = static_cast<int>(function.kernel.shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *out = static_cast<int>(function.kernel.local_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *out = static_cast<int>(function.kernel.registers);
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *out = capability(function);
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *out = function.max_dynamic_shared;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *out = function.carveout;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      *out = function.cluster[0];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      *out = function.cluster[1];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *out = function.cluster[2];
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *out = function.non_portable_cluster;
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *out = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(Function& function, CUfunction_attribute attribute, int value) {
  switch (static_cast<int>(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value + static_cast<int>(function.kernel.shared_bytes) > kMaxDynamicShared) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      function.max_dynamic_shared = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      function.carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      function.cluster[0] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      function.cluster[1] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      function.cluster[2] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      function.non_portable_cluster = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Blocks of a kernel that run on one multiprocessor at a time: bounded by threads, registers, shared memory and 32.
int resident_blocks(const Function& function, const GpuInfo& info, int block_size, size_t dynamic_shared) {
  if (block_size <= 0 || block_size > static_cast<int>(function.kernel.max_threads)) return 0;
  int threads = (block_size + 31) / 32 * 32;
  int blocks = std::min(32, info.threads_per_sm / threads);
  int registers = static_cast<int>(function.kernel.registers) * threads;
  if (registers > 0) blocks = std::min(blocks, 65536 / registers);
  size_t shared = function.kernel.shared_bytes + dynamic_shared;
  if (shared > 0) blocks = std::min(blocks, static_cast<int>(static_cast<size_t>(info.shared_per_sm_bytes) / shared));
  return std::max(blocks, 0);
}

CUresult best_block(CUfunction handle, CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit, int* grid,
                    int* block, const char* call) {
  return with_context(
      [&](Context& context) {
        FunctionPtr function;
        if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
        if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const GpuInfo& info = *context.device->info;
        int largest = static_cast<int>(function->kernel.max_threads);
        if (limit > 0) largest = std::min(largest, limit);
        int best_threads = 0;
        for (int size = (largest + 31) / 32 * 32; size > 0; size -= 32) {
          int threads = std::min(size, largest);
          size_t shared = shared_of != nullptr ? shared_of(threads) : dynamic_shared;
          int blocks = resident_blocks(*function, info, threads, shared);
          if (blocks * threads <= best_threads) continue;
          best_threads = blocks * threads;
          *block = threads;
          *grid = blocks * info.sms;
        }
        return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      },
      call);
}

CUresult blocks_per_sm(int* blocks, CUfunction handle, int block_size, size_t dynamic_shared, const char* call) {
  return with_context(
      [&](Context& context) {
        FunctionPtr function;
        if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
        if (blocks == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
        *blocks = resident_blocks(*function, *context.device->info, block_size, dynamic_shared);
        return CUDA_SUCCESS;
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return with_function(handle, [&](Function& function) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : attribute_value(function, attribute, value);
  });
}
KV_CUDA_EXPORT cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return with_function(handle, [&](Function& function) { return set_attribute(function, attribute, value); });
}
KV_CUDA_EXPORT cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  return with_function(handle, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  return with_function(handle, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuFuncGetModule(CUmodule* out, CUfunction handle) {
  return with_function(handle, [&](Function& function) {
    std::shared_ptr<Module> module = function.module.lock();
    if (out == nullptr || !module) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUmodule>(module.get());
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncGetName(const char** name, CUfunction handle) {
  return with_function(handle, [&](Function& function) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = function.kernel.name.c_str();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  return with_function(handle, [&](Function& function) {
    if (offset == nullptr || index >= function.kernel.params.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function.kernel.params[index].offset;
    if (bytes != nullptr) *bytes = function.kernel.params[index].bytes;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncGetParamCount(CUfunction handle, size_t* count) {
  return with_function(handle, [&](Function& function) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = function.kernel.params.size();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return with_function(handle, [&](Function&) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncLoad(CUfunction handle) {
  return with_function(handle, [](Function&) { return CUDA_SUCCESS; });
}

KV_CUDA_EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int size, size_t shared) {
  return blocks_per_sm(blocks, function, size, shared, __func__);
}
KV_CUDA_EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int size,
                                                                    size_t shared, unsigned int) {
  return blocks_per_sm(blocks, function, size, shared, __func__);
}
KV_CUDA_EXPORT cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                                CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return best_block(function, shared_of, shared, limit, grid, block, __func__);
}
KV_CUDA_EXPORT cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                         CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                         unsigned int) {
  return best_block(function, shared_of, shared, limit, grid, block, __func__);
}
KV_CUDA_EXPORT cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int size) {
  return with_context([&](Context& context) {
    FunctionPtr function;
    if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
    if (bytes == nullptr || blocks <= 0 || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    size_t share = static_cast<size_t>(context.device->info->shared_per_sm_bytes) / static_cast<size_t>(blocks);
    *bytes = share > function->kernel.shared_bytes ? share - function->kernel.shared_bytes : 0;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
  return with_context([&](Context& context) {
    if (size == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionPtr function;
    if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
    *size = context.device->info->cc_major >= 9 ? 8 : 1;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuOccupancyMaxActiveClusters(int* count, CUfunction handle, const CUlaunchConfig* config) {
  return with_context([&](Context& context) {
    if (count == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionPtr function;
    if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
    auto block = static_cast<int>(config->blockDimX * config->blockDimY * config->blockDimZ);
    *count =
        resident_blocks(*function, *context.device->info, block, config->sharedMemBytes) * context.device->info->sms;
    return CUDA_SUCCESS;
  });
}
