// Entry points of streams: making, waiting, asking, host functions.
#include "simgpu/capture.h"
#include "simgpu/stream.h"

namespace kvram::simgpu {
namespace {

CUresult host_function(Stream& stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capturing) {
    Work work;
    work.node = CUDA_HOST_NODE_PARAMS{function, data};
    return capture_work(stream, work);
  }
  Op op;
  op.host = true;
  op.effect = [function, data] {
    function(data);
    return CUDA_SUCCESS;
  };
  return enqueue(stream, std::move(op));
}

CUresult callback(Stream& stream, CUstream handle, CUstreamCallback function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capturing) {
    invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Op op;
  op.host = true;
  op.effect = [function, data, handle] {
    function(handle, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
  };
  return enqueue(stream, std::move(op));
}

CUresult get_attribute(Stream& stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream.state->mutex);
  switch (static_cast<int>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value->syncPolicy = stream.sync_policy.syncPolicy;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      value->priority = stream.priority;
      break;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      value->accessPolicyWindow = CUaccessPolicyWindow{};
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(Stream& stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream.state->mutex);
  switch (static_cast<int>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      stream.sync_policy.syncPolicy = value->syncPolicy;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      stream.priority = value->priority;
      break;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      break;  // a hint to a cache that is not modelled
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// What most of the questions about a stream are.
template <typename T, typename F>
CUresult tell(CUstream handle, bool per_thread, T* out, F&& value, const char* call = __builtin_FUNCTION()) {
  return with_stream(
      handle, per_thread,
      [&](Context& context, Stream& stream) {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *out = value(context, stream);
        return CUDA_SUCCESS;
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuStreamCreate(CUstream* out, unsigned int flags) {
  return with_context([&](Context& context) { return create_stream(context, flags, 0, out); });
}
KV_CUDA_EXPORT cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return with_context([&](Context& context) { return create_stream(context, flags, priority, out); });
}
KV_CUDA_EXPORT cuStreamDestroy_v2(CUstream stream) {
  return with_driver([&] { return destroy_stream(stream); });
}
KV_CUDA_EXPORT cuStreamDestroy(CUstream stream) {
  return with_driver([&] { return destroy_stream(stream); });
}

KV_PT_EXPORT(cuStreamSynchronize, _ptsz, (CUstream handle),
             return with_stream(handle, pt, [](Context&, Stream& stream) { return wait_stream(stream); });)
KV_PT_EXPORT(cuStreamQuery, _ptsz, (CUstream handle),
             return with_stream(handle, pt, [](Context&, Stream& stream) { return query_stream(stream); });)

KV_PT_EXPORT(cuStreamGetFlags, _ptsz, (CUstream handle, unsigned int* flags),
             return tell(handle, pt, flags, [](Context&, Stream& stream) { return stream.flags; });)
KV_PT_EXPORT(cuStreamGetPriority, _ptsz, (CUstream handle, int* priority),
             return tell(handle, pt, priority, [](Context&, Stream& stream) { return stream.priority; });)
KV_PT_EXPORT(cuStreamGetId, _ptsz, (CUstream handle, unsigned long long* id),
             return tell(handle, pt, id, [](Context&, Stream& stream) { return stream.id; });)
KV_PT_EXPORT(cuStreamGetCtx, _ptsz, (CUstream handle, CUcontext* context),
             return tell(handle, pt, context,
                         [](Context&, Stream& stream) { return stream.state->context->handle(); });)
KV_PT_EXPORT(cuStreamGetDevice, _ptsz, (CUstream handle, CUdevice* device),
             return tell(handle, pt, device, [](Context&, Stream& stream) { return stream.state->device->ordinal; });)

KV_PT_EXPORT(cuStreamGetAttribute, _ptsz, (CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return get_attribute(stream, attribute, value); });)
KV_PT_EXPORT(cuStreamSetAttribute, _ptsz, (CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return set_attribute(stream, attribute, value); });)
KV_PT_EXPORT(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from),
             return with_stream(to, pt, [&](Context& context, Stream& target) {
               StreamPtr source;
               if (CUresult r = find_stream(context, from, pt, &source); r != CUDA_SUCCESS) return r;
               target.sync_policy = source->sync_policy;
               return CUDA_SUCCESS;
             });)

KV_PT_EXPORT(cuLaunchHostFunc, _ptsz, (CUstream handle, CUhostFn function, void* data),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return host_function(stream, function, data); });)
KV_PT_EXPORT(cuLaunchHostFunc_v2, _ptsz, (CUstream handle, CUhostFn function, void* data, unsigned int),
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return host_function(stream, function, data); });)
KV_PT_EXPORT(cuStreamAddCallback, _ptsz, (CUstream handle, CUstreamCallback function, void* data, unsigned int flags),
             if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
             return with_stream(handle, pt,
                                [&](Context&, Stream& stream) { return callback(stream, handle, function, data); });)
// Where managed memory lies is not moved by the stream that uses it.
KV_PT_EXPORT(cuStreamAttachMemAsync, _ptsz, (CUstream handle, CUdeviceptr at, size_t, unsigned int),
             return with_stream(handle, pt,
                                [&](Context&, Stream&) { return at == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; });)
