// What the rest of the simulated driver needs of streams: hand over work in stream order, wait for it, and capture.
// Work is anything that takes GPU time or has an effect at its turn: copies, fills, pool allocations. The effect runs
// in the calling thread when nothing before it in the stream is outstanding but GPU time, else in the process's worker
// thread. Any thread; no lock of the caller may be held that an effect takes.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

namespace kvram::simgpu {

struct Context;

// What a graph node that comes from this work would hold; monostate: the call cannot be captured.
using NodePayload = std::variant<std::monostate, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
                                 CUDA_HOST_NODE_PARAMS>;

struct Work {
  uint64_t gpu_ns = 0;               // time on the GPU, with nobody else on it
  std::function<CUresult()> effect;  // may be empty
  NodePayload node;                  // for capture
};

// In order behind what the stream already has. `per_thread`: a null stream means the thread's own default stream
// (names that end in _ptsz or _ptds). An invalid stream is CUDA_ERROR_INVALID_HANDLE, no context
// CUDA_ERROR_INVALID_CONTEXT. The effect's own error is returned when it ran in this call.
CUresult submit_work(CUstream stream, bool per_thread, Work work);
// The same and waits until it is done: the synchronous copies. Refused while the stream captures.
CUresult submit_and_wait(CUstream stream, bool per_thread, Work work);

// cuStreamCreate and its kin; the stream's cost is charged. Invalid flags: CUDA_ERROR_INVALID_VALUE.
CUresult create_stream(Context& context, unsigned flags, int priority, CUstream* out);

// Waits for all work of the context (cuCtxSynchronize, the implicit wait of cuMemFree).
CUresult drain_context(Context* context);
// The context is about to go: its streams end, unfinished work of them is dropped.
void forget_context_streams(Context* context);

// The stream that a handle means for the calling thread is being captured.
bool is_capturing(CUstream stream, bool per_thread);
// cuMemAllocAsync and cuMemFreeAsync on a stream that captures become nodes; nothing when the stream does not capture.
std::optional<CUresult> capture_alloc(CUstream stream, bool per_thread, uint64_t bytes, CUdeviceptr* at);
std::optional<CUresult> capture_free(CUstream stream, bool per_thread, CUdeviceptr at);
// Memory of a graph's allocation node given back by an ordinary free (cuMemFree, cuMemFreeAsync); nothing when `at` is
// no such memory.
std::optional<CUresult> free_graph_memory(CUdeviceptr at);

// Time that a copy takes: over PCIe (25 GB/s) or within device memory (1 TB/s), at least 2 us.
uint64_t copy_ns(uint64_t bytes, bool over_pcie);

}  // namespace kvram::simgpu
