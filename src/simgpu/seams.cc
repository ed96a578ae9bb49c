// Weak defaults of the seams in driver.h and work.h: work runs at once, nothing captures. The stream, module and graph
// parts define the real ones.
#include "simgpu/driver.h"
#include "simgpu/memory.h"

#define KV_WEAK __attribute__((weak))

namespace kvram::simgpu {

KV_WEAK CUresult submit_work(CUstream, bool, Work work) { return work.effect ? work.effect() : CUDA_SUCCESS; }
KV_WEAK CUresult submit_and_wait(CUstream stream, bool per_thread, Work work) {
  return submit_work(stream, per_thread, std::move(work));
}
KV_WEAK CUresult drain_context(Context*) { return CUDA_SUCCESS; }
KV_WEAK void forget_context_streams(Context*) {}
KV_WEAK bool is_capturing(CUstream, bool) { return false; }
KV_WEAK std::optional<CUresult> capture_alloc(CUstream, bool, uint64_t, CUdeviceptr*) { return std::nullopt; }
KV_WEAK std::optional<CUresult> capture_free(CUstream, bool, CUdeviceptr) { return std::nullopt; }
KV_WEAK std::optional<CUresult> free_graph_memory(CUdeviceptr) { return std::nullopt; }
KV_WEAK uint64_t copy_ns(uint64_t, bool) { return 0; }
KV_WEAK CUresult context_created(Context&) { return CUDA_SUCCESS; }
KV_WEAK void context_destroyed(Context&) {}
KV_WEAK CUresult check_copy(const CUDA_MEMCPY3D&) { return CUDA_ERROR_NOT_SUPPORTED; }
KV_WEAK void run_copy(const CUDA_MEMCPY3D&) {}
KV_WEAK CUresult check_set(const CUDA_MEMSET_NODE_PARAMS&) { return CUDA_ERROR_NOT_SUPPORTED; }
KV_WEAK void run_set(const CUDA_MEMSET_NODE_PARAMS&) {}
KV_WEAK uint64_t copy_bytes(const CUDA_MEMCPY3D&) { return 0; }

}  // namespace kvram::simgpu
