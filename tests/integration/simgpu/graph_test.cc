// Graphs, stream capture and the memory of graphs, through the library as programs load it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "libraries.h"

namespace kvram::test {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kChunk = 32 * kMiB;  // what a pool grows by
constexpr uint64_t kExecBytes = 64 * 1024;

class Graphs : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(SIM(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuDevicePrimaryCtxRetain)(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    text_ = ptx({1000, 5000});
    ASSERT_EQ(SIM(cuModuleLoadData)(&module_, text_.c_str()), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuModuleGetFunction)(&k1000_, module_, "k1000"), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuModuleGetFunction)(&k5000_, module_, "k5000"), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(SIM(cuGraphCreate)(&graph_, 0), CUDA_SUCCESS);
    cuuint64_t zero = 0;
    ASSERT_EQ(SIM(cuDeviceSetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(SIM(cuCtxSynchronize)(), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuGraphDestroy)(graph_), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
  }

  CUgraphNode add_kernel(CUfunction function, std::vector<CUgraphNode> needed) {
    CUdeviceptr at = 7;
    uint32_t n = 11;
    void* arguments[] = {&at, &n};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node = nullptr;
    EXPECT_EQ(SIM(cuGraphAddKernelNode_v2)(&node, graph_, needed.data(), needed.size(), &params), CUDA_SUCCESS);
    return node;
  }
  CUgraphNode add_alloc(uint64_t bytes, CUdeviceptr* at, std::vector<CUgraphNode> needed = {}) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    params.bytesize = bytes;
    CUgraphNode node = nullptr;
    EXPECT_EQ(SIM(cuGraphAddMemAllocNode)(&node, graph_, needed.data(), needed.size(), &params), CUDA_SUCCESS);
    *at = params.dptr;
    return node;
  }
  CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(SIM(cuGraphInstantiateWithFlags)(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  uint64_t pool(CUgraphMem_attribute attribute) {
    cuuint64_t value = 0;
    EXPECT_EQ(SIM(cuDeviceGetGraphMemAttribute)(0, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  uint64_t free_bytes() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(SIM(cuMemGetInfo_v2)(&free, &total), CUDA_SUCCESS);
    return free;
  }
  // Microseconds of the GPU that a launch takes, by events.
  float run_us(CUgraphExec exec) {
    CUevent start = nullptr;
    CUevent end = nullptr;
    EXPECT_EQ(SIM(cuEventCreate)(&start, 0), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuEventCreate)(&end, 0), CUDA_SUCCESS);
    // Behind a kernel, so that the start does not depend on when this thread gets to run.
    CUdeviceptr at = 0;
    uint32_t n = 0;
    void* arguments[] = {&at, &n};
    EXPECT_EQ(SIM(cuLaunchKernel)(k5000_, 1, 1, 1, 1, 1, 1, 0, stream_, arguments, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuEventRecord)(start, stream_), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuGraphLaunch)(exec, stream_), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuEventRecord)(end, stream_), CUDA_SUCCESS);
    EXPECT_EQ(SIM(cuStreamSynchronize)(stream_), CUDA_SUCCESS);
    float milliseconds = 0;
    EXPECT_EQ(SIM(cuEventElapsedTime)(&milliseconds, start, end), CUDA_SUCCESS);
    return milliseconds * 1000;
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction k1000_ = nullptr;
  CUfunction k5000_ = nullptr;
  CUstream stream_ = nullptr;
  CUgraph graph_ = nullptr;
  std::string text_;
};

TEST_F(Graphs, TakeTheLongestWayThrough) {
  CUgraphNode first = add_kernel(k5000_, {});
  CUgraphNode left = add_kernel(k5000_, {first});
  CUgraphNode right = add_kernel(k1000_, {first});
  add_kernel(k5000_, {left, right});
  uint64_t before = free_bytes();
  CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(before - free_bytes(), kExecBytes);
  EXPECT_NEAR(run_us(exec), 15000, 1000);
  EXPECT_EQ(SIM(cuGraphNodeSetEnabled)(exec, left, 0), CUDA_SUCCESS);
  EXPECT_NEAR(run_us(exec), 11000, 1000);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(SIM(cuGraphLaunch)(exec, stream_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, HaveNodesEdgesAndClones) {
  CUgraphNode a = add_kernel(k1000_, {});
  CUgraphNode b = add_kernel(k1000_, {});
  EXPECT_EQ(SIM(cuGraphAddDependencies)(graph_, &a, &b, 1), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphAddDependencies)(graph_, &a, &b, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SIM(cuGraphAddDependencies)(graph_, &b, &a, 1), CUDA_ERROR_INVALID_VALUE) << "a circle";
  size_t count = 0;
  EXPECT_EQ(SIM(cuGraphGetNodes)(graph_, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(SIM(cuGraphGetEdges)(graph_, nullptr, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1U);
  CUDA_KERNEL_NODE_PARAMS params{};
  EXPECT_EQ(SIM(cuGraphKernelNodeGetParams_v2)(a, &params), CUDA_SUCCESS);
  CUdeviceptr argument = 0;
  std::memcpy(&argument, params.kernelParams[0], sizeof argument);
  EXPECT_EQ(argument, 7U) << "arguments are copied when the node is made";
  CUgraph clone = nullptr;
  EXPECT_EQ(SIM(cuGraphClone)(&clone, graph_), CUDA_SUCCESS);
  CUgraphNode found = nullptr;
  EXPECT_EQ(SIM(cuGraphNodeFindInClone)(&found, b, clone), CUDA_SUCCESS);
  CUgraphNode needed = nullptr;
  count = 1;
  EXPECT_EQ(SIM(cuGraphNodeGetDependencies)(found, &needed, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_NE(needed, a);
  EXPECT_EQ(SIM(cuGraphDestroyNode)(a), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphGetRootNodes)(graph_, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1U);
  CUgraphExec exec = instantiate(clone);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(SIM(cuGraphExecUpdate_v2)(exec, graph_, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(SIM(cuGraphExecUpdate_v2)(exec, clone, &info), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphDestroy)(clone), CUDA_SUCCESS);
}

TEST_F(Graphs, MemoryNodesTakeFromTheGraphPoolAtLaunch) {
  uint64_t before = free_bytes();
  CUdeviceptr at = 0;
  CUgraphNode alloc = add_alloc(40 * kMiB, &at);
  CUgraphNode use = add_kernel(k1000_, {alloc});
  CUgraphNode release = nullptr;
  EXPECT_EQ(SIM(cuGraphAddMemFreeNode)(&release, graph_, &use, 1, at), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(before - free_bytes(), kExecBytes) << "nothing is taken before the launch";
  run_us(exec);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 40 * kMiB);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 2 * kChunk);
  EXPECT_EQ(before - free_bytes(), kExecBytes + 2 * kChunk);
  run_us(exec);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 2 * kChunk) << "a second launch takes the same chunks";
  cuuint64_t zero = 0;
  EXPECT_EQ(SIM(cuDeviceSetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0U);
  EXPECT_EQ(SIM(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Graphs, MemoryThatOutlivesALaunch) {
  CUdeviceptr at = 0;
  add_alloc(kMiB, &at);
  CUgraphExec exec = instantiate(graph_);
  run_us(exec);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), kMiB);
  EXPECT_EQ(SIM(cuGraphLaunch)(exec, stream_), CUDA_ERROR_INVALID_VALUE) << "it is not freed yet";
  EXPECT_EQ(SIM(cuMemFreeAsync)(at, stream_), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  run_us(exec);
  EXPECT_EQ(SIM(cuMemFree_v2)(at), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);

  CUgraphExec again = instantiate(graph_, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  run_us(again);
  run_us(again);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), kMiB);
  EXPECT_EQ(SIM(cuMemFree_v2)(at), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(again), CUDA_SUCCESS);
}

TEST_F(Graphs, ALaunchThatDoesNotFitChangesNothing) {
  CUdeviceptr small = 0;
  CUdeviceptr large = 0;
  CUgraphNode first = add_alloc(kMiB, &small);
  add_alloc(30 * 1024 * kMiB, &large, {first});
  CUgraphExec exec = instantiate(graph_);
  uint64_t before = free_bytes();
  EXPECT_EQ(SIM(cuGraphLaunch)(exec, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(SIM(cuGraphUpload)(exec, stream_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(SIM(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, CaptureMakesNodesOfWhatWouldRun) {
  CUstream side = nullptr;
  CUevent fork = nullptr;
  CUevent join = nullptr;
  ASSERT_EQ(SIM(cuStreamCreate)(&side, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(SIM(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(SIM(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  uint32_t n = 0;
  void* arguments[] = {&at, &n};
  auto launch = [&](CUstream s) { return SIM(cuLaunchKernel)(k5000_, 1, 1, 1, 1, 1, 1, 0, s, arguments, nullptr); };
  ASSERT_EQ(SIM(cuStreamBeginCapture_v2)(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(SIM(cuMemAllocAsync)(&memory, kMiB, stream_), CUDA_SUCCESS);
  EXPECT_EQ(launch(stream_), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuEventRecord)(fork, stream_), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamWaitEvent)(side, fork, 0), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(SIM(cuStreamIsCapturing)(side, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(launch(side), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuEventRecord)(join, side), CUDA_SUCCESS);
  EXPECT_EQ(launch(stream_), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamWaitEvent)(stream_, join, 0), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemFreeAsync)(memory, stream_), CUDA_SUCCESS);
  CUgraph captured = nullptr;
  ASSERT_EQ(SIM(cuStreamEndCapture)(stream_, &captured), CUDA_SUCCESS);
  size_t count = 0;
  EXPECT_EQ(SIM(cuGraphGetNodes)(captured, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 5U);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0U) << "nothing ran";
  CUgraphExec exec = instantiate(captured);
  EXPECT_NEAR(run_us(exec), 10000, 1000);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), kMiB);
  EXPECT_EQ(SIM(cuStreamIsCapturing)(side, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphDestroy)(captured), CUDA_SUCCESS);
}

TEST_F(Graphs, CopiesAndFillsMoveDataWhenTheyRun) {
  CUdeviceptr at = 0;
  ASSERT_EQ(SIM(cuMemAlloc_v2)(&at, 4096), CUDA_SUCCESS);
  ASSERT_EQ(SIM(cuMemsetD8_v2)(at, 1, 4096), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = at;
  set.value = 0x0badcafe;
  set.elementSize = 4;
  set.width = 512;
  set.height = 1;
  CUgraphNode fill = nullptr;
  ASSERT_EQ(SIM(cuGraphAddMemsetNode)(&fill, graph_, nullptr, 0, &set, context_), CUDA_SUCCESS);
  std::vector<uint32_t> host(1024, 7);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = at;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.WidthInBytes = 4096;
  copy.Height = 1;
  copy.Depth = 1;
  CUgraphNode read = nullptr;
  ASSERT_EQ(SIM(cuGraphAddMemcpyNode)(&read, graph_, &fill, 1, &copy, context_), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph_);
  EXPECT_EQ(host[0], 7U) << "nothing ran yet";
  run_us(exec);
  EXPECT_EQ(host[0], 0x0badcafeU);
  EXPECT_EQ(host[511], 0x0badcafeU);
  EXPECT_EQ(host[512], 0x01010101U);
  set.value = 3;
  EXPECT_EQ(SIM(cuGraphExecMemsetNodeSetParams)(exec, fill, &set, context_), CUDA_SUCCESS);
  run_us(exec);
  EXPECT_EQ(host[511], 3U);
  copy.srcDevice = at + (1ULL << 40);
  EXPECT_EQ(SIM(cuGraphMemcpyNodeSetParams)(read, &copy), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);

  // The same by capture.
  ASSERT_EQ(SIM(cuStreamBeginCapture_v2)(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemsetD32Async)(at, 9, 1024, stream_), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemcpyDtoHAsync_v2)(host.data(), at, 4096, stream_), CUDA_SUCCESS);
  CUgraph captured = nullptr;
  ASSERT_EQ(SIM(cuStreamEndCapture)(stream_, &captured), CUDA_SUCCESS);
  EXPECT_EQ(host[511], 3U);
  exec = instantiate(captured);
  run_us(exec);
  EXPECT_EQ(host[1023], 9U);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphDestroy)(captured), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuMemFree_v2)(at), CUDA_SUCCESS);
}

TEST_F(Graphs, MemoryEndsWithItsContext) {
  CUdeviceptr at = 0;
  CUcontext own = nullptr;
  ASSERT_EQ(SIM(cuCtxCreate_v4)(&own, nullptr, 0, 0), CUDA_SUCCESS);
  add_alloc(kMiB, &at);
  CUgraphExec exec = instantiate(graph_);
  CUstream stream = nullptr;
  ASSERT_EQ(SIM(cuStreamCreate)(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphLaunch)(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), kMiB);
  EXPECT_EQ(SIM(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
  EXPECT_EQ(pool(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(SIM(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, ACaptureThatCannotBeOneIsInvalid) {
  EXPECT_EQ(SIM(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ASSERT_EQ(SIM(cuStreamBeginCapture_v2)(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuStreamSynchronize)(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(SIM(cuStreamIsCapturing)(stream_, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph captured = nullptr;
  EXPECT_EQ(SIM(cuStreamEndCapture)(stream_, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(captured, nullptr);
  EXPECT_EQ(SIM(cuStreamSynchronize)(stream_), CUDA_SUCCESS) << "the stream works again";
}

TEST_F(Graphs, HostNodesAndChildrenRunInOrder) {
  static std::atomic<int> calls;
  calls = 0;
  CUDA_HOST_NODE_PARAMS host{[](void* step) {
                               int expected = static_cast<int>(reinterpret_cast<intptr_t>(step));
                               calls.compare_exchange_strong(expected, expected + 1);
                             },
                             nullptr};
  CUgraphNode first = nullptr;
  ASSERT_EQ(SIM(cuGraphAddHostNode)(&first, graph_, nullptr, 0, &host), CUDA_SUCCESS);
  CUgraph child = nullptr;
  ASSERT_EQ(SIM(cuGraphCreate)(&child, 0), CUDA_SUCCESS);
  host.userData = reinterpret_cast<void*>(intptr_t{1});
  CUgraphNode inner = nullptr;
  ASSERT_EQ(SIM(cuGraphAddHostNode)(&inner, child, nullptr, 0, &host), CUDA_SUCCESS);
  CUgraphNode middle = nullptr;
  ASSERT_EQ(SIM(cuGraphAddChildGraphNode)(&middle, graph_, &first, 1, child), CUDA_SUCCESS);
  host.userData = reinterpret_cast<void*>(intptr_t{2});
  CUgraphNode last = nullptr;
  ASSERT_EQ(SIM(cuGraphAddHostNode)(&last, graph_, &middle, 1, &host), CUDA_SUCCESS);
  CUgraphExec exec = instantiate(graph_);
  run_us(exec);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(SIM(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(SIM(cuGraphDestroy)(child), CUDA_SUCCESS);
}

}  // namespace
}  // namespace kvram::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kvram::test::SimFolder folder("1xA10");
  return RUN_ALL_TESTS();
}
