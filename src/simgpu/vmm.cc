// Virtual memory management: address ranges, allocations and what is mapped where. The memory of an allocation lives
// until its handles and all its mappings are gone.
#include "simgpu/vmm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace kvram::simgpu {
namespace {

struct Allocation {
  std::shared_ptr<Backing> backing;
  CUmemAllocationProp prop{};
  int refs = 1;  // handles; under the table's mutex
};

struct Mapping {
  size_t size = 0;
  std::shared_ptr<Allocation> allocation;
  int prot = PROT_NONE;
};

struct Table {
  std::mutex mutex;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, Mapping> mapped;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> handles;
};
Table& table() {
  static auto* const t = new Table;
  return *t;
}

constexpr uint64_t kStep = lease::kVmmGranularity;

bool aligned(uint64_t n) { return n % kStep == 0; }

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

template <typename Map>
auto containing(Map& map, CUdeviceptr address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

CUresult check_prop(const CUmemAllocationProp& prop, Device** device) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if ((prop.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  *device = Driver::get().device(prop.location.id);
  return *device != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUmemGenericAllocationHandle add_handle(std::shared_ptr<Allocation> allocation) {
  static uint64_t next = 0x10000;
  std::lock_guard lock(table().mutex);
  CUmemGenericAllocationHandle handle = ++next;
  table().handles[handle] = std::move(allocation);
  return handle;
}

std::shared_ptr<Allocation> find_handle(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(table().mutex);
  auto it = table().handles.find(handle);
  return it == table().handles.end() ? nullptr : it->second;
}

CUresult reserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr wanted) {
  if (out == nullptr || size == 0 || !aligned(size) || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  size_t align = std::max<size_t>(alignment, kStep);
  if (size > lease::kHuge || align > lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t span = size + align;
  void* got = mmap(at(wanted), span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto first = reinterpret_cast<CUdeviceptr>(got);
  CUdeviceptr base = (first + align - 1) / align * align;
  if (base > first) munmap(got, base - first);
  if (first + span > base + size) munmap(at(base + size), first + span - base - size);
  std::lock_guard lock(table().mutex);
  table().reserved[base] = size;
  *out = base;
  return CUDA_SUCCESS;
}

CUresult unreserve(CUdeviceptr base, size_t size) {
  std::lock_guard lock(table().mutex);
  auto it = table().reserved.find(base);
  if (it == table().reserved.end() || it->second != size) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = table().mapped.lower_bound(base);
  if (mapped != table().mapped.end() && mapped->first < base + size) return CUDA_ERROR_INVALID_VALUE;
  munmap(at(base), size);
  table().reserved.erase(it);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, size_t size, const std::shared_ptr<Allocation>& allocation) {
  std::lock_guard lock(table().mutex);
  auto range = containing(table().reserved, address);
  if (range == table().reserved.end() || address - range->first > range->second) return CUDA_ERROR_INVALID_VALUE;
  if (size > range->second - (address - range->first)) return CUDA_ERROR_INVALID_VALUE;
  auto next = table().mapped.lower_bound(address);
  if (next != table().mapped.end() && next->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  if (auto before = containing(table().mapped, address); before != table().mapped.end()) {
    if (before->first + before->second.size > address) return CUDA_ERROR_INVALID_VALUE;
  }
  const Backing& backing = *allocation->backing;
  void* got = mmap(at(address), size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, backing.fd,
                   static_cast<off_t>(backing.offset));
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  madvise(got, size, MADV_DONTFORK);
  table().mapped[address] = Mapping{size, allocation, PROT_NONE};
  return CUDA_SUCCESS;
}

// The mappings that make up exactly [address, address+size); empty when they do not.
std::vector<std::map<CUdeviceptr, Mapping>::iterator> exact_locked(CUdeviceptr address, size_t size) {
  std::vector<std::map<CUdeviceptr, Mapping>::iterator> out;
  CUdeviceptr next = address;
  for (auto it = table().mapped.find(address); it != table().mapped.end() && it->first == next; ++it) {
    out.push_back(it);
    next += it->second.size;
    if (next >= address + size) break;
  }
  if (next != address + size) out.clear();
  return out;
}

CUresult unmap(CUdeviceptr address, size_t size) {
  std::vector<Mapping> gone;  // their memory may end here, outside the lock
  std::lock_guard lock(table().mutex);
  auto parts = exact_locked(address, size);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  void* empty = mmap(at(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (empty == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  for (auto it : parts) {
    gone.push_back(std::move(it->second));
    table().mapped.erase(it);
  }
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* desc, size_t count) {
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  int prot = PROT_NONE;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && Driver::get().device(desc[i].location.id) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) prot |= PROT_READ;
    if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) prot |= PROT_READ | PROT_WRITE;
  }
  std::lock_guard lock(table().mutex);
  auto parts = exact_locked(address, size);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (mprotect(at(address), size, prot) != 0) return CUDA_ERROR_INVALID_VALUE;
  for (auto it : parts) it->second.prot = prot;
  return CUDA_SUCCESS;
}

}  // namespace

bool vmm_range_accessible(CUdeviceptr address, size_t bytes) {
  std::lock_guard lock(table().mutex);
  CUdeviceptr end = address + bytes;
  for (auto it = containing(table().mapped, address); it != table().mapped.end(); ++it) {
    if (it->first > address || address >= it->first + it->second.size || it->second.prot == PROT_NONE) return false;
    address = it->first + it->second.size;
    if (address >= end) return true;
  }
  return false;
}

bool vmm_mapping_of(CUdeviceptr address, CUdeviceptr* base, size_t* size, std::shared_ptr<Backing>* backing) {
  std::lock_guard lock(table().mutex);
  auto it = containing(table().mapped, address);
  if (it == table().mapped.end() || address >= it->first + it->second.size) return false;
  *base = it->first;
  *size = it->second.size;
  if (backing != nullptr) *backing = it->second.allocation->backing;
  return true;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr wanted,
                                   unsigned long long flags) {
  return with_driver([&] { return flags != 0 ? CUDA_ERROR_INVALID_VALUE : reserve(out, size, alignment, wanted); });
}
KV_CUDA_EXPORT cuMemAddressFree(CUdeviceptr base, size_t size) {
  return with_driver([&] { return unreserve(base, size); });
}

KV_CUDA_EXPORT cuMemCreate(CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp* prop,
                           unsigned long long flags) {
  return with_driver([&] {
    if (out == nullptr || prop == nullptr || size == 0 || !aligned(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    if (CUresult r = check_prop(*prop, &device); r != CUDA_SUCCESS) return r;
    auto allocation = std::make_shared<Allocation>();
    allocation->prop = *prop;
    if (int r = make_backing(*device, size, size, kStep, &allocation->backing)) return static_cast<CUresult>(r);
    *out = add_handle(std::move(allocation));
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemRelease(CUmemGenericAllocationHandle handle) {
  return with_driver([&] {
    std::shared_ptr<Allocation> gone;
    std::lock_guard lock(table().mutex);
    auto it = table().handles.find(handle);
    if (it == table().handles.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--it->second->refs > 0) return CUDA_SUCCESS;
    gone = std::move(it->second);
    table().handles.erase(it);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  return with_driver([&] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Allocation> allocation;
    {
      std::lock_guard lock(table().mutex);
      auto it = containing(table().mapped, reinterpret_cast<CUdeviceptr>(address));
      if (it == table().mapped.end()) return CUDA_ERROR_INVALID_VALUE;
      if (reinterpret_cast<CUdeviceptr>(address) >= it->first + it->second.size) return CUDA_ERROR_INVALID_VALUE;
      allocation = it->second.allocation;
      for (auto& [handle, known] : table().handles) {
        if (known != allocation) continue;
        ++known->refs;
        *out = handle;
        return CUDA_SUCCESS;
      }
      allocation->refs = 1;  // its handles were all released; the mapping kept it
    }
    *out = add_handle(std::move(allocation));
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
  return with_driver([&] {
    auto allocation = find_handle(handle);
    if (!allocation || size == 0 || !aligned(size) || !aligned(address)) return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || flags != 0 || size > allocation->backing->length) return CUDA_ERROR_INVALID_VALUE;
    return map(address, size, allocation);
  });
}
KV_CUDA_EXPORT cuMemUnmap(CUdeviceptr address, size_t size) {
  return with_driver([&] {
    for (int d = 0; d < Driver::get().device_count(); ++d) {
      if (auto primary = Driver::get().device(d)->primary; primary && !primary->destroyed) drain_context(primary.get());
    }
    return unmap(address, size);
  });
}
KV_CUDA_EXPORT cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* desc, size_t count) {
  return with_driver([&] { return set_access(address, size, desc, count); });
}
KV_CUDA_EXPORT cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return with_driver([&] {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(table().mutex);
    auto it = containing(table().mapped, address);
    if (it == table().mapped.end() || address >= it->first + it->second.size) return CUDA_ERROR_INVALID_VALUE;
    int prot = it->second.prot;
    *flags = (prot & PROT_WRITE) != 0  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : (prot & PROT_READ) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* prop,
                                             CUmemAllocationGranularity_flags) {
  return with_driver([&] {
    Device* device = nullptr;
    if (out == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult r = check_prop(*prop, &device); r != CUDA_SUCCESS) return r;
    *out = kStep;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  return with_driver([&] {
    auto allocation = find_handle(handle);
    if (out == nullptr || !allocation) return CUDA_ERROR_INVALID_VALUE;
    *out = allocation->prop;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
  return with_driver([&] {
    auto allocation = find_handle(handle);
    if (out == nullptr || !allocation || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if ((allocation->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Backing& backing = *allocation->backing;
    if (!backing.foreign && !share_backing(backing, kObjectVmm)) return CUDA_ERROR_OPERATING_SYSTEM;
    int fd = Driver::get().machine().export_object(backing.shared->index);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(out) = fd;
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                              CUmemAllocationHandleType type) {
  return with_driver([&] {
    if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    auto shared = import_shared(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)));
    if (!shared) return CUDA_ERROR_INVALID_VALUE;
    const Object object = Driver::get().machine().object(shared->index);
    if (object.kind != kObjectVmm) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    for (int d = 0; d < Driver::get().device_count(); ++d) {
      if (Driver::get().device(d)->gpu == object.gpu) device = Driver::get().device(d);
    }
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    auto allocation = std::make_shared<Allocation>();
    allocation->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation->prop.location = CUmemLocation{};
    allocation->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    allocation->prop.location.id = device->ordinal;
    allocation->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    allocation->backing = map_foreign(device, object.arena, object.offset, object.length, std::move(shared));
    if (!allocation->backing) return CUDA_ERROR_OPERATING_SYSTEM;
    *out = add_handle(std::move(allocation));
    return CUDA_SUCCESS;
  });
}
