// What an allocation takes on a GPU, in bytes, computed from what the program asks for. The guard charges these figures
// before the call and the simulated driver takes them, so that charged and resident bytes agree. All saturate: a
// hostile size never wraps to a small one. Enumerators of cuda.h are passed as plain integers, so that this header
// needs none.
#pragma once
#include <stdint.h>

namespace kvram::lease {

constexpr uint64_t kHuge = 1ULL << 60;  // more than any GPU; what an overflow becomes
constexpr uint64_t kLinearAlign = 512;  // linear, pitched and array memory is handed out in steps of this
constexpr uint64_t kVmmGranularity = 2ULL << 20;

constexpr uint64_t mul_saturating(uint64_t a, uint64_t b) {
  return b != 0 && a > kHuge / b ? kHuge : (a * b > kHuge ? kHuge : a * b);
}
constexpr uint64_t add_saturating(uint64_t a, uint64_t b) { return a > kHuge || b > kHuge - a ? kHuge : a + b; }
constexpr uint64_t round_up(uint64_t n, uint64_t step) {
  if (step == 0) return n;
  return n > kHuge - step ? kHuge : (n + step - 1) / step * step;
}

constexpr uint64_t linear_cost(uint64_t bytes) { return round_up(bytes, kLinearAlign); }
constexpr uint64_t pitch_of(uint64_t width) { return round_up(width, kLinearAlign); }
constexpr uint64_t pitched_cost(uint64_t width, uint64_t height) { return mul_saturating(pitch_of(width), height); }

// Bits of one texel of a CUarray_format with that many channels; planar and packed video formats count all planes.
// Unknown formats count as the widest.
constexpr uint64_t texel_bits(int format, unsigned channels) {
  switch (format) {
    case 0x01:
    case 0x08:
      return 8ULL * channels;
    case 0x02:
    case 0x09:
    case 0x10:
      return 16ULL * channels;
    case 0x03:
    case 0x0a:
    case 0x20:
      return 32ULL * channels;
    case 0xb0:
      return 12;  // NV12: 8 bits luma, chroma by four
    case 0xc0:
    case 0xc6:
      return 8;  // (U|S)NORM_INT8X1
    case 0xc1:
    case 0xc3:
    case 0xc7:
    case 0xc9:
      return 16;  // INT8X2, INT16X1
    case 0xc2:
    case 0xc4:
    case 0xc8:
    case 0xca:
    case 0x50:
      return 32;  // INT8X4, INT16X2, 101010_2
    case 0x91:
    case 0x92:
    case 0x97:
    case 0x98:
      return 4;  // BC1, BC4
    case 0x93:
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99:
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e:
      return 8;  // the other BC formats
    default:
      return 64;
  }
}

constexpr uint64_t array_cost(uint64_t width, uint64_t height, uint64_t depth, uint64_t bits) {
  const uint64_t texels = mul_saturating(mul_saturating(width, height ? height : 1), depth ? depth : 1);
  return round_up((mul_saturating(texels, bits) + 7) / 8, kLinearAlign);
}

// A mipmapped array: its levels summed, each rounded up. `layered`: depth counts layers and does not shrink. More
// levels than the size allows are those of a 1x1x1 image: the driver has none.
constexpr uint64_t mipmapped_cost(uint64_t width, uint64_t height, uint64_t depth, uint64_t bits, unsigned levels,
                                  bool layered) {
  uint64_t sum = 0;
  for (unsigned l = 0; l < levels && l < 64; ++l) {
    sum = add_saturating(sum, array_cost(width, height, depth, bits));
    if (width <= 1 && height <= 1 && (layered || depth <= 1)) break;
    width = width > 1 ? width / 2 : width;
    height = height > 1 ? height / 2 : height;
    if (!layered && depth > 1) depth /= 2;
  }
  return sum;
}

// Device memory that a context's limit takes: CU_LIMIT_STACK_SIZE is per resident thread, CU_LIMIT_PRINTF_FIFO_SIZE and
// CU_LIMIT_MALLOC_HEAP_SIZE are what they say; others take none. A change costs the growth over the context's default.
constexpr uint64_t kDefaultStackBytes = 1024;
constexpr uint64_t kDefaultFifoBytes = 1ULL << 20;
constexpr uint64_t kDefaultHeapBytes = 8ULL << 20;
constexpr uint64_t limit_cost(int limit, uint64_t value, uint64_t sm_count, uint64_t threads_per_sm) {
  if (limit == 0) return round_up(mul_saturating(value, mul_saturating(sm_count, threads_per_sm)), kLinearAlign);
  if (limit == 1 || limit == 2) return round_up(value, kLinearAlign);
  return 0;
}

}  // namespace kvram::lease
