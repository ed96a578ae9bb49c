// Entry points with a size.
#include "rows.h"

namespace kvram::test {
namespace {

// The handles of the row under test.
struct Held {
  CUdeviceptr pointer;
  CUmemGenericAllocationHandle handle;
  CUarray array;
  CUmipmappedArray mipmapped;
  CUmemoryPool pool;
  CUstream stream;
  CUevent event;
  CUgraph graph;
  CUgraphExec exec;
} h;

constexpr size_t kBytes = 5 * kMiB + 1;
bool ok(CUresult r) { return r == CUDA_SUCCESS; }

CUDA_ARRAY_DESCRIPTOR plain_array() { return {300, 200, CU_AD_FORMAT_FLOAT, 4}; }
CUDA_ARRAY3D_DESCRIPTOR solid_array() { return {128, 64, 9, CU_AD_FORMAT_HALF, 2, 0}; }
CUmemPoolProps pool_props() {
  CUmemPoolProps p{};
  p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return p;
}
CUmemAllocationProp vmm_props() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return p;
}

void linear(std::vector<Row>& rows) {
  rows.push_back({"cuMemAlloc_v2", [] { return CU(cuMemAlloc_v2)(&h.pointer, kBytes); },
                  [] { return ok(CU(cuMemFree_v2)(h.pointer)); }});
  rows.push_back({"cuMemAlloc_v2", [] { return CU(cuMemAlloc_v2)(&h.pointer, 1); },
                  [] { return ok(CU(cuMemFree_v2)(h.pointer)); }});
  rows.push_back({"cuMemAlloc",
                  [] {
                    CUdeviceptr_v1 p = 0;
                    const CUresult r = CU(cuMemAlloc)(&p, 4096);
                    if (!ok(r)) CU(cuMemFree)(0x1000);  // of nothing: passes through
                    return r;
                  },
                  [] { return true; }, false});
  rows.push_back({"cuMemAllocPitch_v2",
                  [] {
                    size_t pitch = 0;
                    return CU(cuMemAllocPitch_v2)(&h.pointer, &pitch, 1000, 700, 4);
                  },
                  [] { return ok(CU(cuMemFree_v2)(h.pointer)); }});
  rows.push_back({"cuMemAllocPitch",
                  [] {
                    CUdeviceptr_v1 p = 0;
                    unsigned pitch = 0;
                    return CU(cuMemAllocPitch)(&p, &pitch, 1000, 700, 4);
                  },
                  [] { return true; }, false});
  rows.push_back({"cuMemAllocManaged", [] { return CU(cuMemAllocManaged)(&h.pointer, kBytes, CU_MEM_ATTACH_GLOBAL); },
                  [] { return ok(CU(cuMemFree_v2)(h.pointer)); }});
  rows.push_back({"cuMemCreate",
                  [] {
                    const CUmemAllocationProp p = vmm_props();
                    return CU(cuMemCreate)(&h.handle, 6 * kMiB, &p, 0);
                  },
                  [] {  // the handle first: the mapping keeps the memory
                    Stand& s = Stand::get();
                    if (!ok(CU(cuMemAddressReserve)(&h.pointer, 6 * kMiB, 0, 0, 0))) return false;
                    if (!ok(CU(cuMemMap)(h.pointer, 6 * kMiB, 0, h.handle, 0))) return false;
                    const uint64_t before = s.charged();
                    if (!ok(CU(cuMemRelease)(h.handle)) || s.charged() != before) return false;
                    return ok(CU(cuMemUnmap)(h.pointer, 6 * kMiB)) && ok(CU(cuMemAddressFree)(h.pointer, 6 * kMiB));
                  }});
}

void arrays(std::vector<Row>& rows) {
  const auto destroy = [] { return ok(CU(cuArrayDestroy)(h.array)); };
  rows.push_back({"cuArrayCreate_v2",
                  [] {
                    const auto d = plain_array();
                    return CU(cuArrayCreate_v2)(&h.array, &d);
                  },
                  destroy});
  rows.push_back({"cuArrayCreate",
                  [] {
                    const CUDA_ARRAY_DESCRIPTOR_v1 d{300, 200, CU_AD_FORMAT_FLOAT, 4};
                    return CU(cuArrayCreate)(&h.array, &d);
                  },
                  destroy, false});
  rows.push_back({"cuArray3DCreate_v2",
                  [] {
                    const auto d = solid_array();
                    return CU(cuArray3DCreate_v2)(&h.array, &d);
                  },
                  destroy});
  rows.push_back({"cuArray3DCreate",
                  [] {
                    const CUDA_ARRAY3D_DESCRIPTOR_v1 d{128, 64, 9, CU_AD_FORMAT_HALF, 2, 0};
                    return CU(cuArray3DCreate)(&h.array, &d);
                  },
                  destroy, false});
  rows.push_back({"cuMipmappedArrayCreate",
                  [] {
                    const auto d = solid_array();
                    return CU(cuMipmappedArrayCreate)(&h.mipmapped, &d, 4);
                  },
                  [] { return ok(CU(cuMipmappedArrayDestroy)(h.mipmapped)); }});
}

void stream_ordered(std::vector<Row>& rows) {
  rows.push_back({"cuMemAllocAsync", [] { return CU(cuMemAllocAsync)(&h.pointer, kBytes, nullptr); },
                  [] { return ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) && ok(CU(cuStreamSynchronize)(nullptr)); }});
  rows.push_back(
      {"cuMemAllocAsync_ptsz", [] { return CU(cuMemAllocAsync_ptsz)(&h.pointer, kBytes, nullptr); },
       [] { return ok(CU(cuMemFreeAsync_ptsz)(h.pointer, nullptr)) && ok(CU(cuStreamSynchronize_ptsz)(nullptr)); }});
  rows.push_back({"cuMemAllocAsync", [] { return CU(cuMemAllocAsync)(&h.pointer, 40 * kMiB, nullptr); },
                  [] { return ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) && ok(CU(cuCtxSynchronize)()); }});
  rows.push_back({"cuMemAllocAsync", [] { return CU(cuMemAllocAsync)(&h.pointer, kBytes, nullptr); },
                  [] {
                    return ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) &&
                           ok(CU(cuCtxSynchronize_v2)(Stand::get().primary()));
                  }});
  rows.push_back({"cuMemAllocAsync", [] { return CU(cuMemAllocAsync)(&h.pointer, kBytes, nullptr); },
                  [] {
                    const bool done = ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) &&
                                      ok(CU(cuEventCreate)(&h.event, 0)) && ok(CU(cuEventRecord)(h.event, nullptr)) &&
                                      ok(CU(cuEventSynchronize)(h.event));
                    return CU(cuEventDestroy_v2)(h.event), done;
                  }});
  rows.push_back({"cuMemAllocAsync", [] { return CU(cuMemAllocAsync)(&h.pointer, kBytes, nullptr); },
                  [] { return ok(CU(cuMemFree_v2)(h.pointer)) && ok(CU(cuCtxSynchronize)()); }});
}

CUresult make_pool(cuuint64_t keep) {
  const CUmemPoolProps p = pool_props();
  const CUresult r = CU(cuMemPoolCreate)(&h.pool, &p);
  return ok(r) ? CU(cuMemPoolSetAttribute)(h.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) : r;
}
// A refused allocation must not leave its pool.
CUresult or_destroy(CUresult r) {
  if (!ok(r)) CU(cuMemPoolDestroy)(h.pool);
  return r;
}

void pools(std::vector<Row>& rows) {
  rows.push_back({"cuMemAllocFromPoolAsync",
                  [] {
                    make_pool(UINT64_MAX);
                    return or_destroy(CU(cuMemAllocFromPoolAsync)(&h.pointer, kBytes, h.pool, nullptr));
                  },
                  [] {  // kept by the pool until trimmed
                    Stand& s = Stand::get();
                    const uint64_t before = s.charged();
                    bool good = ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) && ok(CU(cuCtxSynchronize)());
                    good = good && s.charged() == before && ok(CU(cuMemPoolTrimTo)(h.pool, 0));
                    good = good && s.charged() < before;
                    return ok(CU(cuMemPoolDestroy)(h.pool)) && good;
                  }});
  rows.push_back({"cuMemAllocFromPoolAsync_ptsz",
                  [] {
                    make_pool(UINT64_MAX);
                    return or_destroy(CU(cuMemAllocFromPoolAsync_ptsz)(&h.pointer, kBytes, h.pool, nullptr));
                  },
                  [] {  // or until the pool is destroyed
                    return ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) && ok(CU(cuCtxSynchronize)()) &&
                           ok(CU(cuMemPoolDestroy)(h.pool));
                  }});
  rows.push_back({"cuMemAllocFromPoolAsync",
                  [] {
                    make_pool(0);
                    return or_destroy(CU(cuMemAllocFromPoolAsync)(&h.pointer, kBytes, h.pool, nullptr));
                  },
                  [] {  // destroyed while a block lives: the block keeps it
                    Stand& s = Stand::get();
                    const uint64_t before = s.charged();
                    if (!ok(CU(cuMemPoolDestroy)(h.pool)) || s.charged() != before) return false;
                    return ok(CU(cuMemFreeAsync)(h.pointer, nullptr)) && ok(CU(cuCtxSynchronize)());
                  }});
}

CUresult make_exec() {
  CUDA_MEM_ALLOC_NODE_PARAMS a{};
  a.poolProps = pool_props();
  a.bytesize = kBytes;
  CUgraphNode alloc = nullptr;
  CUgraphNode free = nullptr;
  if (!ok(CU(cuGraphCreate)(&h.graph, 0))) return CUDA_ERROR_UNKNOWN;
  if (!ok(CU(cuGraphAddMemAllocNode)(&alloc, h.graph, nullptr, 0, &a))) return CUDA_ERROR_UNKNOWN;
  if (!ok(CU(cuGraphAddMemFreeNode)(&free, h.graph, &alloc, 1, a.dptr))) return CUDA_ERROR_UNKNOWN;
  return CU(cuGraphInstantiateWithFlags)(&h.exec, h.graph, 0);
}
CUresult drop_exec(CUresult r) {
  if (ok(r)) return r;
  CU(cuGraphExecDestroy)(h.exec);
  CU(cuGraphDestroy)(h.graph);
  return r;
}
bool give_exec() {
  return ok(CU(cuCtxSynchronize)()) && ok(CU(cuGraphExecDestroy)(h.exec)) && ok(CU(cuGraphDestroy)(h.graph)) &&
         ok(CU(cuDeviceGraphMemTrim)(0));
}

template <typename Launch>
Row graph_row(const char* name, Launch launch) {
  return {name,
          [launch] {
            const CUresult made = make_exec();
            if (made == CUDA_ERROR_OUT_OF_MEMORY) return CU(cuGraphDestroy)(h.graph), made;
            if (!ok(made)) return made;
            return drop_exec(launch());
          },
          give_exec};
}

}  // namespace

std::vector<Row> memory_rows() {
  std::vector<Row> rows;
  linear(rows);
  arrays(rows);
  stream_ordered(rows);
  pools(rows);
  rows.push_back(graph_row("cuGraphLaunch", [] { return CU(cuGraphLaunch)(h.exec, nullptr); }));
  rows.push_back(graph_row("cuGraphLaunch_ptsz", [] { return CU(cuGraphLaunch_ptsz)(h.exec, nullptr); }));
  rows.push_back(graph_row("cuGraphUpload", [] { return CU(cuGraphUpload)(h.exec, nullptr); }));
  rows.push_back(graph_row("cuGraphUpload_ptsz", [] { return CU(cuGraphUpload_ptsz)(h.exec, nullptr); }));
  return rows;
}

}  // namespace kvram::test
