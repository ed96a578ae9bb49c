#include "simgpu/launch.h"

#include "simgpu/capture.h"

namespace kvram::simgpu {

CUresult check_launch(const Function& function, const Launch& launch) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (launch.grid[i] == 0 || launch.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    threads *= launch.block[i];
    if (threads > function.kernel.max_threads) return CUDA_ERROR_INVALID_VALUE;
  }
  if (launch.grid[0] > 0x7fffffffU || launch.grid[1] > 65535 || launch.grid[2] > 65535 || launch.block[2] > 64) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int shared_limit = function.max_dynamic_shared.load(std::memory_order_relaxed);
  if (launch.shared_bytes > static_cast<unsigned>(shared_limit)) return CUDA_ERROR_INVALID_VALUE;
  bool wants_params = function.kernel.params_known && !function.kernel.params.empty();
  if (wants_params && launch.params == nullptr && launch.extra == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (launch.params != nullptr && launch.extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult launch_kernel(Context& context, Stream& stream, CUfunction handle, const Launch& launch) {
  FunctionPtr function;
  if (CUresult r = resolve_function(context, handle, &function); r != CUDA_SUCCESS) return r;
  if (CUresult r = check_launch(*function, launch); r != CUDA_SUCCESS) return r;
  if (stream.capturing) [[unlikely]] {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    params.func = function->handle();
    params.gridDimX = launch.grid[0];
    params.gridDimY = launch.grid[1];
    params.gridDimZ = launch.grid[2];
    params.blockDimX = launch.block[0];
    params.blockDimY = launch.block[1];
    params.blockDimZ = launch.block[2];
    params.sharedMemBytes = launch.shared_bytes;
    params.kernelParams = launch.params;
    params.extra = launch.extra;
    Work work;
    work.node = params;
    return capture_work(stream, work);
  }
  Op op;
  op.gpu_ns = function->kernel.gpu_ns;
  return enqueue(stream, std::move(op));
}

namespace {

// The calls that CUDA had before cuLaunchKernel: block shape and shared size are kept in the function.
CUresult launch_old(CUfunction handle, int width, int height, CUstream stream, const char* call) {
  return with_stream(
      stream, false,
      [&](Context& context, Stream& on) {
        FunctionPtr function = functions().find(handle);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
        static void* no_params[] = {nullptr};
        Launch launch{
            {static_cast<unsigned>(width), static_cast<unsigned>(height), 1}, {1, 1, 1}, 0, no_params, nullptr};
        {
          std::lock_guard lock(function->mutex);
          for (int i = 0; i < 3; ++i) launch.block[i] = function->block[i];
          launch.shared_bytes = function->shared_size;
        }
        return launch_kernel(context, on, handle, launch);
      },
      call);
}

template <typename F>
CUresult with_old_function(CUfunction handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        FunctionPtr function = functions().find(handle);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        std::lock_guard lock(function->mutex);
        return body(*function);
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_PT_EXPORT(cuLaunchKernel, _ptsz,
             (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
              unsigned int bz, unsigned int shared, CUstream handle, void** params, void** extra),
             return with_stream(handle, pt, [&](Context& context, Stream& stream) {
               return launch_kernel(context, stream, f, Launch{{gx, gy, gz}, {bx, by, bz}, shared, params, extra});
             });)

KV_PT_EXPORT(cuLaunchCooperativeKernel, _ptsz,
             (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
              unsigned int bz, unsigned int shared, CUstream handle, void** params),
             return with_stream(handle, pt, [&](Context& context, Stream& stream) {
               return launch_kernel(context, stream, f, Launch{{gx, gy, gz}, {bx, by, bz}, shared, params, nullptr});
             });)

KV_PT_EXPORT(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig* config, CUfunction f, void** params, void** extra),
             if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
             if (config->numAttrs != 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
             return with_stream(config->hStream, pt, [&](Context& context, Stream& stream) {
               Launch launch{{config->gridDimX, config->gridDimY, config->gridDimZ},
                             {config->blockDimX, config->blockDimY, config->blockDimZ},
                             config->sharedMemBytes,
                             params,
                             extra};
               return launch_kernel(context, stream, f, launch);
             });)

KV_CUDA_EXPORT cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count, unsigned int) {
  return with_context([&](Context&) {
    if (list == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      CUDA_LAUNCH_PARAMS& one = list[i];
      StreamPtr stream = streams().find(one.hStream);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      Launch launch{{one.gridDimX, one.gridDimY, one.gridDimZ},
                    {one.blockDimX, one.blockDimY, one.blockDimZ},
                    one.sharedMemBytes,
                    one.kernelParams,
                    nullptr};
      CUresult r = launch_kernel(*stream->state->context, *stream, one.function, launch);
      if (r != CUDA_SUCCESS) return r;
    }
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuLaunch(CUfunction f) { return launch_old(f, 1, 1, nullptr, __func__); }
KV_CUDA_EXPORT cuLaunchGrid(CUfunction f, int width, int height) {
  return launch_old(f, width, height, nullptr, __func__);
}
KV_CUDA_EXPORT cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return launch_old(f, width, height, stream, __func__);
}
KV_CUDA_EXPORT cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
  return with_old_function(f, [&](Function& function) {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    function.block[0] = static_cast<unsigned>(x);
    function.block[1] = static_cast<unsigned>(y);
    function.block[2] = static_cast<unsigned>(z);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuFuncSetSharedSize(CUfunction f, unsigned int bytes) {
  return with_old_function(f, [&](Function& function) {
    function.shared_size = bytes;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuParamSetSize(CUfunction f, unsigned int) {
  return with_old_function(f, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuParamSeti(CUfunction f, int, unsigned int) {
  return with_old_function(f, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuParamSetf(CUfunction f, int, float) {
  return with_old_function(f, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuParamSetv(CUfunction f, int, void*, unsigned int) {
  return with_old_function(f, [](Function&) { return CUDA_SUCCESS; });
}
