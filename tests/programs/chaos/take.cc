// The ways of taking memory that need one process and no graph.
#include <algorithm>
#include <string>

#include "worker.h"

namespace chaos {

void Worker::linear() {
  CUdeviceptr p = 0;
  uint64_t size = pick_size();
  if (!granted(cu.cuMemAlloc(&p, size), "cuMemAlloc")) return;
  Object object = made(Kind::kLinear, p, size);
  write_tag(&object);
  keep(object);
}

void Worker::pitched() {
  CUdeviceptr p = 0;
  size_t pitch = 0;
  size_t width = 1 + rng_.below(60000);
  size_t height = 1 + rng_.below(2000);
  if (!granted(cu.cuMemAllocPitch(&p, &pitch, width, height, 4), "cuMemAllocPitch")) return;
  if (pitch < width) fail("cuMemAllocPitch", "the pitch is less than the width");
  Object object = made(Kind::kLinear, p, pitch * height);
  write_tag(&object);
  keep(object);
}

void Worker::managed() {
  CUdeviceptr p = 0;
  uint64_t size = pick_size();
  if (!granted(cu.cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged")) return;
  keep(made(Kind::kManaged, p, size));
}

void Worker::array() {
  CUarray array = nullptr;
  const unsigned channels = 1U << rng_.below(3);
  if (rng_.one_in(2)) {
    CUDA_ARRAY_DESCRIPTOR d{};
    d.Width = 1 + rng_.below(4096);
    d.Height = rng_.below(4096);
    d.Format = rng_.one_in(2) ? CU_AD_FORMAT_FLOAT : CU_AD_FORMAT_UNSIGNED_INT8;
    d.NumChannels = channels;
    if (!granted(cu.cuArrayCreate(&array, &d), "cuArrayCreate")) return;
  } else {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    d.Width = 1 + rng_.below(256);
    d.Height = 1 + rng_.below(256);
    d.Depth = 1 + rng_.below(256);
    d.Format = CU_AD_FORMAT_HALF;
    d.NumChannels = channels;
    if (!granted(cu.cuArray3DCreate(&array, &d), "cuArray3DCreate")) return;
  }
  keep(made(Kind::kArray, reinterpret_cast<uint64_t>(array)));
}

void Worker::mipmap() {
  CUmipmappedArray array = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = 1 + rng_.below(2048);
  d.Height = 1 + rng_.below(2048);
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 4;
  unsigned most = static_cast<unsigned>(64 - __builtin_clzll(std::max(d.Width, d.Height)));
  unsigned levels = 1 + static_cast<unsigned>(rng_.below(most));
  if (!granted(cu.cuMipmappedArrayCreate(&array, &d, levels), "cuMipmappedArrayCreate")) return;
  keep(made(Kind::kMipmap, reinterpret_cast<uint64_t>(array)));
}

void Worker::host() {
  void* p = nullptr;
  if (!granted(cu.cuMemHostAlloc(&p, 1 + rng_.below(1 << 20), 0), "cuMemHostAlloc")) return;
  keep(made(Kind::kHost, reinterpret_cast<uint64_t>(p)));
}

void Worker::async() {
  CUdeviceptr p = 0;
  uint64_t size = pick_size();
  CUstream on = pick_stream();
  Object* pool = rng_.one_in(3) ? find(Kind::kPool) : nullptr;
  if (pool != nullptr && pool->gpu == gpu_) {
    auto from = reinterpret_cast<CUmemoryPool>(pool->handle);
    if (!granted(cu.cuMemAllocFromPoolAsync(&p, size, from, on), "cuMemAllocFromPoolAsync")) return;
  } else if (!granted(cu.cuMemAllocAsync(&p, size, on), "cuMemAllocAsync")) {
    return;
  }
  Object object = made(Kind::kAsync, p, size);
  if (rng_.one_in(2)) {
    must(cu.cuStreamSynchronize(on), "cuStreamSynchronize");
    write_tag(&object);
  }
  keep(object);
}

void Worker::pool() {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = (*gpus_)[static_cast<size_t>(gpu_)].device;
  CUmemoryPool pool = nullptr;
  if (!granted(cu.cuMemPoolCreate(&pool, &props), "cuMemPoolCreate")) return;
  if (rng_.one_in(2)) {
    cuuint64_t threshold = rng_.one_in(2) ? UINT64_MAX : rng_.below(256U << 20);
    must(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "cuMemPoolSetAttribute");
  }
  keep(made(Kind::kPool, reinterpret_cast<uint64_t>(pool)));
}

void Worker::pool_setting() {
  CUmemoryPool pool = nullptr;
  must(cu.cuDeviceGetDefaultMemPool(&pool, (*gpus_)[static_cast<size_t>(gpu_)].device), "cuDeviceGetDefaultMemPool");
  if (Object* own = find(Kind::kPool); own != nullptr && rng_.one_in(2)) {
    pool = reinterpret_cast<CUmemoryPool>(own->handle);
  }
  switch (rng_.below(3)) {
    case 0: {
      cuuint64_t threshold = rng_.one_in(2) ? 0 : rng_.below(1U << 30);
      return must(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
                  "cuMemPoolSetAttribute");
    }
    case 1:
      return must(cu.cuMemPoolTrimTo(pool, rng_.below(64U << 20)), "cuMemPoolTrimTo");
    default:
      return must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
  }
}

void Worker::vmm_create() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = (*gpus_)[static_cast<size_t>(gpu_)].device;
  const bool shareable = rng_.one_in(2);
  if (shareable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const uint64_t step = 2ULL << 20;
  uint64_t size = (pick_size() + step - 1) / step * step;
  CUmemGenericAllocationHandle handle = 0;
  if (!granted(cu.cuMemCreate(&handle, size, &prop, 0), "cuMemCreate")) return;
  Object object = made(Kind::kHandle, handle, size);
  object.shareable = shareable;
  keep(object);
}

void Worker::vmm_map() {
  Object* found = find(Kind::kHandle);
  if (found == nullptr) return;
  const Object backing = *found;
  CUdeviceptr at = 0;
  if (!granted(cu.cuMemAddressReserve(&at, backing.size, 0, 0, 0), "cuMemAddressReserve")) return;
  if (!granted(cu.cuMemMap(at, backing.size, 0, backing.handle, 0), "cuMemMap")) {
    return must(cu.cuMemAddressFree(at, backing.size), "cuMemAddressFree");
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = (*gpus_)[static_cast<size_t>(backing.gpu)].device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  must(cu.cuMemSetAccess(at, backing.size, &access, 1), "cuMemSetAccess");
  enter((*gpus_)[static_cast<size_t>(backing.gpu)].primary);
  gpu_ = backing.gpu;
  uint64_t word = at;
  must(cu.cuMemcpyHtoD(at + backing.size - sizeof word, &word, sizeof word), "cuMemcpyHtoD");
  keep(made(Kind::kMapping, at, backing.size));
}

void Worker::vmm_retain() {
  Object* found = find(Kind::kMapping);
  if (found == nullptr) return;
  Object object = *found;
  CUmemGenericAllocationHandle handle = 0;
  must(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(object.handle)), "cuMemRetainAllocationHandle");
  object.kind = Kind::kHandle;
  object.handle = handle;
  keep(object);
}

void Worker::module() {
  std::string image = ".version 8.0\n.target sm_80\n.address_size 64\n";
  while (rng_.one_in(2)) image += "//" + std::string(rng_.below(300000), 'x') + "\n";
  CUmodule module = nullptr;
  if (!granted(cu.cuModuleLoadData(&module, image.c_str()), "cuModuleLoadData")) return;
  keep(made(Kind::kModule, reinterpret_cast<uint64_t>(module)));
}

void Worker::stream() {
  CUstream stream = nullptr;
  if (!granted(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate")) return;
  keep(made(Kind::kStream, reinterpret_cast<uint64_t>(stream)));
}

void Worker::context() {
  Object* found = rng_.one_in(2) ? find(Kind::kContext) : nullptr;
  if (found != nullptr) {
    gpu_ = found->gpu;
    return enter(reinterpret_cast<CUcontext>(found->handle));
  }
  Gpu& gpu = pick_gpu();
  CUctxCreateParams params{};
  CUcontext context = nullptr;
  enter(gpu.primary);
  if (!granted(cu.cuCtxCreate(&context, &params, 0, gpu.device), "cuCtxCreate")) return;
  keep(made(Kind::kContext, reinterpret_cast<uint64_t>(context)));
  current_ = context;  // cuCtxCreate makes it current
}

void Worker::context_limit() {
  const CUlimit limit = rng_.one_in(2) ? CU_LIMIT_MALLOC_HEAP_SIZE : CU_LIMIT_PRINTF_FIFO_SIZE;
  granted(cu.cuCtxSetLimit(limit, (1U << 20) + rng_.below(32U << 20)), "cuCtxSetLimit");
}

void Worker::until_refused() {
  const uint64_t total = (*gpus_)[static_cast<size_t>(gpu_)].total;
  uint64_t size = std::max<uint64_t>(total >> (1 + rng_.below(5)), 512);
  std::vector<Object> blocks;
  for (int i = 0; i < 64; ++i) {
    CUdeviceptr p = 0;
    CUresult status = rng_.one_in(4) ? cu.cuMemAllocAsync(&p, size, nullptr) : cu.cuMemAlloc(&p, size);
    if (!granted(status, "cuMemAlloc")) {
      if (size <= (1U << 20)) break;
      size /= 2;
      continue;
    }
    blocks.push_back(made(Kind::kAsync, p, size));
  }
  for (const Object& block : blocks) {
    if (rng_.one_in(16)) {
      keep(block);
    } else {
      release(block);
    }
  }
}

void Worker::info() {
  size_t free_bytes = 0;
  size_t total = 0;
  must(cu.cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
  if (free_bytes > total) fail("cuMemGetInfo", "more is free than there is");
  if (total != (*gpus_)[static_cast<size_t>(gpu_)].total) fail("cuMemGetInfo", "the total differs from before");
}

}  // namespace chaos
