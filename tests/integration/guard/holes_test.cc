// What gets past the accounts of others, one test each: it is counted, refused and given back here.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "stand.h"

namespace kvram::test {
namespace {

constexpr CUresult kRefused = CUDA_ERROR_OUT_OF_MEMORY;

CUmemAllocationProp on_gpu(int device = 0) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}
CUmemPoolProps pool_on_gpu() {
  CUmemPoolProps p{};
  p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return p;
}

class Holes : public testing::Test {
 protected:
  void SetUp() override {
    s_.unlimited();
    charged_ = s_.charged();
    resident_ = s_.resident();
  }
  void TearDown() override {
    s_.unlimited();
    EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    EXPECT_EQ(s_.charged(), charged_) << "all is given back";
    EXPECT_EQ(s_.resident(), resident_);
  }
  Stand& s_ = Stand::get();
  uint64_t charged_ = 0;
  uint64_t resident_ = 0;
};

TEST_F(Holes, AllocationFromAPool) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr p = 0;
  const CUmemPoolProps props = pool_on_gpu();
  ASSERT_EQ(CU(cuMemPoolCreate)(&pool, &props), CUDA_SUCCESS);
  s_.leave_room(1024 * kMiB);
  EXPECT_EQ(CU(cuMemAllocFromPoolAsync)(&p, 4096 * kMiB, pool, nullptr), kRefused);
  EXPECT_EQ(CU(cuMemAllocFromPoolAsync)(&p, 512 * kMiB, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged() - charged_, 512 * kMiB);
  EXPECT_EQ(CU(cuMemFreeAsync)(p, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemPoolDestroy)(pool), CUDA_SUCCESS);
}

TEST_F(Holes, MappingKeepsReleasedHandlesAlive) {
  CUdeviceptr at = 0;
  const CUmemAllocationProp props = on_gpu();
  ASSERT_EQ(CU(cuMemAddressReserve)(&at, 4096 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  s_.leave_room(1024 * kMiB);
  int mapped = 0;
  for (int i = 0; i < 8; ++i) {
    CUmemGenericAllocationHandle h = 0;
    if (CU(cuMemCreate)(&h, 512 * kMiB, &props, 0) != CUDA_SUCCESS) continue;
    ASSERT_EQ(CU(cuMemMap)(at + 512 * kMiB * i, 512 * kMiB, 0, h, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
    ++mapped;
  }
  EXPECT_EQ(mapped, 2);
  EXPECT_EQ(s_.charged() - charged_, 1024 * kMiB);
  EXPECT_EQ(CU(cuMemUnmap)(at, 1024 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemAddressFree)(at, 4096 * kMiB), CUDA_SUCCESS);
}

TEST_F(Holes, RetainedHandleKeepsMemoryAlive) {
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle h = 0;
  CUmemGenericAllocationHandle again = 0;
  const CUmemAllocationProp props = on_gpu();
  ASSERT_EQ(CU(cuMemAddressReserve)(&at, 4 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemCreate)(&h, 4 * kMiB, &props, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemMap)(at, 4 * kMiB, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void*>(at + kMiB)), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemUnmap)(at, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged() - charged_, 4 * kMiB);
  EXPECT_EQ(CU(cuMemRelease)(again), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemAddressFree)(at, 4 * kMiB), CUDA_SUCCESS);
}

TEST_F(Holes, Arrays) {
  CUarray a = nullptr;
  CUarray b = nullptr;
  CUmipmappedArray m = nullptr;
  const CUDA_ARRAY_DESCRIPTOR big{32768, 65536, CU_AD_FORMAT_FLOAT, 1};
  const CUDA_ARRAY3D_DESCRIPTOR solid{1024, 1024, 256, CU_AD_FORMAT_FLOAT, 1, 0};
  s_.leave_room(512 * kMiB);
  EXPECT_EQ(CU(cuArrayCreate_v2)(&a, &big), kRefused);
  EXPECT_EQ(CU(cuArray3DCreate_v2)(&b, &solid), kRefused);
  EXPECT_EQ(CU(cuMipmappedArrayCreate)(&m, &solid, 3), kRefused);
  EXPECT_EQ(s_.charged(), charged_);
}

TEST_F(Holes, SecondContext) {
  CUcontext context = nullptr;
  s_.leave_room(256 * kMiB);
  ASSERT_EQ(CU(cuCtxCreate_v2)(&context, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged() - charged_, 256 * kMiB);
  CUcontext third = nullptr;
  EXPECT_EQ(CU(cuCtxCreate_v2)(&third, 0, 0), kRefused);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(context), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxSetCurrent)(s_.primary()), CUDA_SUCCESS);
}

TEST_F(Holes, MemoryIsChargedToTheGpuItLiesOn) {
  CUmemGenericAllocationHandle h = 0;
  const CUmemAllocationProp other = on_gpu(1);  // outside the budget, whichever context is current
  EXPECT_EQ(CU(cuMemCreate)(&h, 4 * kMiB, &other, 0), kRefused);
  CUcontext context = nullptr;
  EXPECT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 1), kRefused);
  EXPECT_EQ(CU(cuCtxCreate_v2)(&context, 0, 1), kRefused);
  CUmemoryPool pool = nullptr;
  CUdeviceptr p = 0;
  ASSERT_EQ(CU(cuDeviceGetDefaultMemPool)(&pool, 1), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemAllocFromPoolAsync)(&p, kMiB, pool, nullptr), kRefused);
}

TEST_F(Holes, FreeOfTheOtherFamily) {
  CUdeviceptr p = 0;
  ASSERT_EQ(CU(cuMemAllocAsync)(&p, 8 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemAlloc_v2)(&p, 8 * kMiB), CUDA_SUCCESS);
  // The driver's own answer, and the books agree with it: freed and given back, or neither.
  if (CU(cuMemFreeAsync)(p, nullptr) != CUDA_SUCCESS) {
    EXPECT_EQ(s_.charged() - charged_, 8 * kMiB);
    EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
  }
}

TEST_F(Holes, UnknownPointersPassThrough) {
  EXPECT_EQ(CU(cuMemFree_v2)(0), SIM(cuMemFree_v2)(0));
  EXPECT_EQ(CU(cuMemFree_v2)(0x123456789000), SIM(cuMemFree_v2)(0x123456789000));
  CUdeviceptr p = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&p, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
  EXPECT_NE(CU(cuMemFree_v2)(p), CUDA_SUCCESS) << "freed twice: the driver's answer";
}

TEST_F(Holes, OverTheCapIsCudasOwnError) {
  CUdeviceptr p = 0;
  s_.leave_room(kMiB);
  EXPECT_EQ(CU(cuMemAllocAsync)(&p, 512 * kMiB, nullptr), kRefused);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&p, SIZE_MAX), kRefused) << "a hostile size does not wrap";
  EXPECT_EQ(CU(cuMemAlloc_v2)(&p, 0), SIM(cuMemAlloc_v2)(&p, 0));
  size_t pitch = 0;
  EXPECT_EQ(CU(cuMemAllocPitch_v2)(&p, &pitch, SIZE_MAX / 2, SIZE_MAX / 2, 4), kRefused);
  EXPECT_EQ(CU(cuMemAlloc_v2)(nullptr, kMiB), SIM(cuMemAlloc_v2)(nullptr, kMiB));
}

TEST_F(Holes, PerThreadStreamEntryPoints) {
  CUdeviceptr p = 0;
  s_.leave_room(16 * kMiB);
  EXPECT_EQ(CU(cuMemAllocAsync_ptsz)(&p, 100 * kMiB, nullptr), kRefused);
  void* f = nullptr;
  ASSERT_EQ(
      CU(cuGetProcAddress_v2)("cuMemAllocAsync", &f, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(f, reinterpret_cast<void*>(CU(cuMemAllocAsync_ptsz))) << "the flags decide, as the driver says";
  ASSERT_EQ(CU(cuGetProcAddress_v2)("cuMemAllocAsync", &f, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(f, reinterpret_cast<void*>(CU(cuMemAllocAsync)));
}

TEST_F(Holes, OlderVersionsByProcAddress) {
  void* f = nullptr;
  ASSERT_EQ(CU(cuGetProcAddress_v2)("cuCtxCreate", &f, 11030, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(f, reinterpret_cast<void*>(CU(cuCtxCreate_v2)));
  ASSERT_EQ(CU(cuGetProcAddress_v2)("cuGraphInstantiate", &f, 11000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(f, reinterpret_cast<void*>(CU(cuGraphInstantiate_v2)));
  ASSERT_EQ(CU(cuGetProcAddress)("cuMemFree", &f, 11030, 0), CUDA_SUCCESS);
  EXPECT_EQ(f, reinterpret_cast<void*>(CU(cuMemFree_v2)));
  f = nullptr;
  EXPECT_EQ(CU(cuGetProcAddress_v2)("cuNoSuchThing", &f, 13000, 0, nullptr),
            SIM(cuGetProcAddress_v2)("cuNoSuchThing", &f, 13000, 0, nullptr));
  EXPECT_EQ(f, nullptr);
}

TEST_F(Holes, GraphMemoryNodes) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps = pool_on_gpu();
  params.bytesize = 640 * kMiB;
  ASSERT_EQ(CU(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
  const uint64_t before = s_.charged();
  s_.leave_room(500 * kMiB);
  EXPECT_EQ(CU(cuGraphLaunch)(exec, nullptr), kRefused);
  s_.leave_room(640 * kMiB);
  EXPECT_EQ(CU(cuGraphLaunch)(exec, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged() - before, 640 * kMiB);
  EXPECT_EQ(CU(cuMemFree_v2)(params.dptr), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
}

TEST_F(Holes, CapturedAllocations) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr p = 0;
  ASSERT_EQ(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const uint64_t before = s_.charged();
  ASSERT_EQ(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemAllocAsync)(&p, 96 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemFreeAsync)(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged(), before) << "captured, not allocated";
  ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
  s_.leave_room(95 * kMiB);
  EXPECT_EQ(CU(cuGraphLaunch)(exec, stream), kRefused);
  s_.leave_room(96 * kMiB);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(CU(cuGraphLaunch)(exec, stream), CUDA_SUCCESS) << "launch " << i;
  EXPECT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
}

TEST_F(Holes, InstantiatingMayUpload) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphNode end = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps = pool_on_gpu();
  params.bytesize = 320 * kMiB;
  ASSERT_EQ(CU(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphAddMemFreeNode)(&end, graph, &node, 1, params.dptr), CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS how{};
  how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  s_.leave_room(300 * kMiB);
  EXPECT_EQ(CU(cuGraphInstantiateWithParams)(&exec, graph, &how), kRefused);
  EXPECT_EQ(s_.charged(), charged_);
  s_.unlimited();
  ASSERT_EQ(CU(cuGraphInstantiateWithParams)(&exec, graph, &how), CUDA_SUCCESS);
  EXPECT_EQ(s_.charged() - charged_, s_.resident() - resident_);
  EXPECT_GE(s_.charged() - charged_, 320 * kMiB);
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDeviceGraphMemTrim)(0), CUDA_SUCCESS);
}

TEST_F(Holes, LimitsOfOneContextFromManyThreads) {
  const auto set_current = CU(cuCtxSetCurrent);
  const auto set_limit = CU(cuCtxSetLimit);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_EQ(set_current(s_.primary()), CUDA_SUCCESS);
      for (size_t i = 0; i < 500; ++i)
        EXPECT_EQ(set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, (8 + (i * 7 + t) % 24) * kMiB), CUDA_SUCCESS);
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(s_.charged() - charged_, s_.resident() - resident_);
  EXPECT_EQ(set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
}

TEST_F(Holes, ContextsComeAndGoBesideEachOther) {
  const auto create = CU(cuCtxCreate_v2);
  const auto destroy = CU(cuCtxDestroy_v2);
  const auto alloc = CU(cuMemAlloc_v2);
  const auto free = CU(cuMemFree_v2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        CUcontext context = nullptr;
        CUdeviceptr p[3] = {};
        EXPECT_EQ(create(&context, 0, 0), CUDA_SUCCESS);
        for (CUdeviceptr& one : p) EXPECT_EQ(alloc(&one, kMiB), CUDA_SUCCESS);
        EXPECT_EQ(free(p[1]), CUDA_SUCCESS);
        EXPECT_EQ(destroy(context), CUDA_SUCCESS);  // with two blocks; its handle is soon another thread's
      }
    });
  }
  for (auto& t : threads) t.join();
}

TEST_F(Holes, MemoryInfoWhenFull) {
  s_.leave_room(0);
  size_t free = 1;
  size_t total = 0;
  EXPECT_EQ(CU(cuMemGetInfo_v2)(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(total, charged_);
  s_.node().set_limit(charged_ - kMiB);  // over the limit is no underflow, and no error
  EXPECT_EQ(CU(cuMemGetInfo_v2)(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  s_.node().set_limit(1ULL << 45);  // the GPU itself has less
  size_t physical = 0;
  size_t card = 0;
  ASSERT_EQ(SIM(cuMemGetInfo_v2)(&physical, &card), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemGetInfo_v2)(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, physical);
}

TEST_F(Holes, TheGpuIsFullThoughTheBudgetIsNot) {
  s_.node().set_limit(1ULL << 45);
  CUdeviceptr p = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&p, 100ULL << 30), kRefused);
  EXPECT_EQ(s_.charged(), charged_);
  for (int i = 0; i < 100 && s_.node().seen().physical.empty(); ++i) usleep(1000);
  EXPECT_EQ(s_.node().seen().physical, std::vector<uint64_t>{100ULL << 30}) << "told to the daemon";
}

TEST_F(Holes, ExportedMemoryIsReleasedThroughTheDaemon) {
  CUmemGenericAllocationHandle h = 0;
  int fd = -1;
  const CUmemAllocationProp props = on_gpu();
  ASSERT_EQ(CU(cuMemCreate)(&h, 4 * kMiB, &props, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemExportToShareableHandle)(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  const uint64_t before = s_.charged();
  ASSERT_EQ(CU(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  EXPECT_EQ(s_.charged(), before) << "an importer pays nothing";
  EXPECT_EQ(CU(cuMemRelease)(imported), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
  close(fd);
  EXPECT_EQ(s_.node().seen().shared, lease::to_units(4 * kMiB)) << "the daemon watches what becomes of it";
}

TEST_F(Holes, TwoThreadsDoNotBothGetTheLastBytes) {
  s_.leave_room(1000 * kMiB);
  std::atomic<int> both = 0;
  std::atomic<int> now = 0;
  const auto set_current = CU(cuCtxSetCurrent);
  const auto alloc = CU(cuMemAlloc_v2);
  const auto free = CU(cuMemFree_v2);
  const auto loop = [&] {
    EXPECT_EQ(set_current(s_.primary()), CUDA_SUCCESS);
    for (int i = 0; i < 300; ++i) {
      CUdeviceptr p = 0;
      if (alloc(&p, 600 * kMiB) != CUDA_SUCCESS) continue;
      if (++now > 1) ++both;
      std::this_thread::yield();
      --now;
      EXPECT_EQ(free(p), CUDA_SUCCESS);
    }
  };
  std::thread other(loop);
  loop();
  other.join();
  EXPECT_EQ(both, 0);
}

}  // namespace
}  // namespace kvram::test
