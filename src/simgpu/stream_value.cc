// Values in memory that a stream writes or waits for.
#include "simgpu/capture.h"
#include "simgpu/memory.h"
#include "simgpu/stream.h"

namespace kvram::simgpu {
namespace {

CUDA_MEMCPY3D value_copy(CUdeviceptr at, void* host, size_t bytes, bool to_device) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  if (to_device) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = at;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = at;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = host;
  }
  return copy;
}

bool satisfied(uint64_t seen, uint64_t wanted, unsigned flags, size_t bytes) {
  uint64_t mask = bytes == 4 ? 0xffffffffU : ~uint64_t{0};
  switch (flags & 3U) {
    case CU_STREAM_WAIT_VALUE_GEQ:  // cyclic, as the driver compares
      return bytes == 4 ? static_cast<int32_t>(static_cast<uint32_t>(seen - wanted)) >= 0
                        : static_cast<int64_t>(seen - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return (seen & mask) == (wanted & mask);
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & wanted & mask) != 0;
    default:
      return (~(seen | wanted) & mask) != 0;
  }
}

CUresult check(CUdeviceptr at, size_t bytes) {
  if (at % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t value = 0;
  return check_copy(value_copy(at, &value, bytes, false));
}

CUresult write_value(Stream& stream, CUdeviceptr at, uint64_t value, size_t bytes) {
  if (CUresult r = check(at, bytes); r != CUDA_SUCCESS) return r;
  Work work;
  if (stream.capturing) return capture_work(stream, work);
  Op op;
  op.effect = [at, value, bytes]() mutable {
    run_copy(value_copy(at, &value, bytes, true));
    return CUDA_SUCCESS;
  };
  return enqueue(stream, std::move(op));
}

CUresult wait_value(Stream& stream, CUdeviceptr at, uint64_t wanted, unsigned flags, size_t bytes) {
  if (CUresult r = check(at, bytes); r != CUDA_SUCCESS) return r;
  Work work;
  if (stream.capturing) return capture_work(stream, work);
  Op op;
  op.ready = [at, wanted, flags, bytes] {
    uint64_t seen = 0;
    run_copy(value_copy(at, &seen, bytes, false));
    return satisfied(seen, wanted, flags, bytes);
  };
  return enqueue(stream, std::move(op));
}

CUresult one_of_batch(Stream& stream, const CUstreamBatchMemOpParams& params) {
  switch (params.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return wait_value(stream, params.waitValue.address, params.waitValue.value, params.waitValue.flags, 4);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return wait_value(stream, params.waitValue.address, params.waitValue.value64, params.waitValue.flags, 8);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return write_value(stream, params.writeValue.address, params.writeValue.value, 4);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return write_value(stream, params.writeValue.address, params.writeValue.value64, 8);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult batch(CUstream handle, bool per_thread, unsigned count, CUstreamBatchMemOpParams* list, const char* call) {
  return with_stream(
      handle, per_thread,
      [&](Context&, Stream& stream) {
        if ((list == nullptr && count != 0) || count > 256) return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < count; ++i) {
          if (CUresult r = one_of_batch(stream, list[i]); r != CUDA_SUCCESS) return r;
        }
        return CUDA_SUCCESS;
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

#define KV_VALUE_EXPORT(name, type, action)                                                    \
  KV_PT_EXPORT(name, _ptsz, (CUstream handle, CUdeviceptr at, type value, unsigned int flags), \
               return with_stream(handle, pt, [&](Context&, Stream& stream) { return action; });)

KV_VALUE_EXPORT(cuStreamWriteValue32, cuuint32_t, ((void)flags, write_value(stream, at, value, 4)))
KV_VALUE_EXPORT(cuStreamWriteValue32_v2, cuuint32_t, ((void)flags, write_value(stream, at, value, 4)))
KV_VALUE_EXPORT(cuStreamWriteValue64, cuuint64_t, ((void)flags, write_value(stream, at, value, 8)))
KV_VALUE_EXPORT(cuStreamWriteValue64_v2, cuuint64_t, ((void)flags, write_value(stream, at, value, 8)))
KV_VALUE_EXPORT(cuStreamWaitValue32, cuuint32_t, wait_value(stream, at, value, flags, 4))
KV_VALUE_EXPORT(cuStreamWaitValue32_v2, cuuint32_t, wait_value(stream, at, value, flags, 4))
KV_VALUE_EXPORT(cuStreamWaitValue64, cuuint64_t, wait_value(stream, at, value, flags, 8))
KV_VALUE_EXPORT(cuStreamWaitValue64_v2, cuuint64_t, wait_value(stream, at, value, flags, 8))

KV_PT_EXPORT(cuStreamBatchMemOp, _ptsz,
             (CUstream handle, unsigned int count, CUstreamBatchMemOpParams* list, unsigned int),
             return batch(handle, pt, count, list, __func__);)
KV_PT_EXPORT(cuStreamBatchMemOp_v2, _ptsz,
             (CUstream handle, unsigned int count, CUstreamBatchMemOpParams* list, unsigned int),
             return batch(handle, pt, count, list, __func__);)
