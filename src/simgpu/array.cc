#include "simgpu/array.h"

#include <algorithm>

namespace kvram::simgpu {
namespace {

struct Mipmapped {
  CUDA_ARRAY3D_DESCRIPTOR desc{};
  Context* context = nullptr;
  std::shared_ptr<Backing> backing;
  std::vector<CUarray> levels;
};

HandleTable<Array>& arrays() {
  static auto* const table = new HandleTable<Array>;
  return *table;
}
HandleTable<Mipmapped>& mipmapped() {
  static auto* const table = new HandleTable<Mipmapped>;
  return *table;
}

bool layered(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  return (d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
}

uint64_t bits_of(const CUDA_ARRAY3D_DESCRIPTOR& d) { return lease::texel_bits(d.Format, d.NumChannels); }

uint64_t cost_of(const CUDA_ARRAY3D_DESCRIPTOR& d) { return lease::array_cost(d.Width, d.Height, d.Depth, bits_of(d)); }

bool valid(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if (d.Width == 0 || (d.Depth != 0 && d.Height == 0 && !layered(d))) return false;
  if ((d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return false;
  bool plain = d.Format <= 0x20;
  return !plain || d.NumChannels == 1 || d.NumChannels == 2 || d.NumChannels == 4;
}

std::shared_ptr<Array> make_array(Context& c, const CUDA_ARRAY3D_DESCRIPTOR& d, std::shared_ptr<Backing> backing,
                                  uint64_t offset) {
  auto array = std::make_shared<Array>();
  array->desc = d;
  array->device = c.device;
  array->context = &c;
  array->base = backing->address + offset;
  array->backing = std::move(backing);
  array->row_bytes = (d.Width * bits_of(d) + 7) / 8;
  array->rows = std::max<uint64_t>(d.Height, 1);
  array->slices = std::max<uint64_t>(d.Depth, 1);
  return array;
}

CUresult create(Context& c, const CUDA_ARRAY3D_DESCRIPTOR& d, CUarray* out) {
  if (out == nullptr || !valid(d)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t cost = cost_of(d);
  if (cost >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  std::shared_ptr<Backing> backing;
  if (int r = make_backing(*c.device, cost, cost, lease::kLinearAlign, &backing)) return static_cast<CUresult>(r);
  *out = reinterpret_cast<CUarray>(arrays().add(make_array(c, d, std::move(backing), 0)));
  return CUDA_SUCCESS;
}

CUresult create_mipmapped(Context& c, const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned levels, CUmipmappedArray* out) {
  if (out == nullptr || !valid(d) || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t cost = lease::mipmapped_cost(d.Width, d.Height, d.Depth, bits_of(d), levels, layered(d));
  if (cost >= lease::kHuge) return CUDA_ERROR_OUT_OF_MEMORY;
  auto mip = std::make_shared<Mipmapped>();
  if (int r = make_backing(*c.device, cost, cost, lease::kLinearAlign, &mip->backing)) return static_cast<CUresult>(r);
  mip->desc = d;
  mip->context = &c;
  CUDA_ARRAY3D_DESCRIPTOR level = d;
  uint64_t offset = 0;
  for (unsigned l = 0; l < levels && l < 64; ++l) {
    auto array = make_array(c, level, mip->backing, offset);
    array->level = true;
    mip->levels.push_back(reinterpret_cast<CUarray>(arrays().add(std::move(array))));
    offset += cost_of(level);
    if (level.Width <= 1 && level.Height <= 1 && (layered(d) || level.Depth <= 1)) break;
    level.Width = level.Width > 1 ? level.Width / 2 : level.Width;
    level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
    if (!layered(d) && level.Depth > 1) level.Depth /= 2;
  }
  *out = reinterpret_cast<CUmipmappedArray>(mipmapped().add(std::move(mip)));
  return CUDA_SUCCESS;
}

void drop_mipmapped(const std::shared_ptr<Mipmapped>& mip) {
  for (CUarray level : mip->levels) arrays().remove(level);
  mipmapped().remove(mip.get());
}

CUresult describe(CUarray handle, CUDA_ARRAY3D_DESCRIPTOR* out) {
  auto array = find_array(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = array->desc;
  return CUDA_SUCCESS;
}

CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, uint64_t bytes) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = CUDA_ARRAY_MEMORY_REQUIREMENTS{};
  out->size = bytes;
  out->alignment = lease::kLinearAlign;
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Array> find_array(CUarray handle) { return arrays().find(handle); }

void destroy_arrays_of(Context* context) {
  for (const auto& mip : mipmapped().all()) {
    if (mip->context == context) drop_mipmapped(mip);
  }
  for (const auto& array : arrays().all()) {
    if (array->context == context) arrays().remove(array.get());
  }
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* desc) {
  return with_context([&](Context& c) {
    if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR d{};
    d.Width = desc->Width;
    d.Height = desc->Height;
    d.Format = desc->Format;
    d.NumChannels = desc->NumChannels;
    return create(c, d, out);
  });
}
KV_CUDA_EXPORT cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* desc) {
  return with_context([&](Context& c) { return desc != nullptr ? create(c, *desc, out) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  return with_context([&](Context&) {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult r = describe(handle, &d); r != CUDA_SUCCESS) return r;
    *out = CUDA_ARRAY_DESCRIPTOR{d.Width, d.Height, d.Format, d.NumChannels};
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  return with_context([&](Context&) { return describe(handle, out); });
}
KV_CUDA_EXPORT cuArrayDestroy(CUarray handle) {
  return with_context([&](Context& c) {
    auto array = find_array(handle);
    if (!array || array->level) return CUDA_ERROR_INVALID_HANDLE;
    drain_context(&c);
    return arrays().remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}
KV_CUDA_EXPORT cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice) {
  return with_context([&](Context&) {
    auto array = find_array(handle);
    return array ? requirements(out, cost_of(array->desc)) : CUDA_ERROR_INVALID_HANDLE;
  });
}
KV_CUDA_EXPORT cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* desc, unsigned levels) {
  return with_context(
      [&](Context& c) { return desc != nullptr ? create_mipmapped(c, *desc, levels, out) : CUDA_ERROR_INVALID_VALUE; });
}
KV_CUDA_EXPORT cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  return with_context([&](Context&) {
    auto mip = mipmapped().find(handle);
    if (!mip) return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr || level >= mip->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    *out = mip->levels[level];
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return with_context([&](Context& c) {
    auto mip = mipmapped().find(handle);
    if (!mip) return CUDA_ERROR_INVALID_HANDLE;
    drain_context(&c);
    drop_mipmapped(mip);
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle,
                                                     CUdevice) {
  return with_context([&](Context&) {
    auto mip = mipmapped().find(handle);
    return mip ? requirements(out, mip->backing->cost) : CUDA_ERROR_INVALID_HANDLE;
  });
}
