// How long a module image is: cuModuleLoadData and its kin get a pointer without a size.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace kvram::lease {

namespace image {
template <typename T>
inline T read(const unsigned char* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// End of the farthest table or section of a 64-bit little-endian ELF file (a cubin).
inline uint64_t elf_bytes(const unsigned char* p) {
  const uint64_t sections_at = read<uint64_t>(p + 40);
  const uint64_t entry = read<uint16_t>(p + 58);
  const uint64_t sections = read<uint16_t>(p + 60);
  uint64_t end = read<uint64_t>(p + 32) + static_cast<uint64_t>(read<uint16_t>(p + 54)) * read<uint16_t>(p + 56);
  if (sections_at == 0 || entry < 64) return end > 64 ? end : 64;
  if (sections_at + sections * entry > end) end = sections_at + sections * entry;
  for (uint64_t i = 0; i < sections; ++i) {
    const unsigned char* s = p + sections_at + i * entry;
    constexpr uint32_t kNoBits = 8;
    if (read<uint32_t>(s + 4) == kNoBits) continue;
    const uint64_t last = read<uint64_t>(s + 24) + read<uint64_t>(s + 32);
    if (last > end) end = last;
  }
  return end;
}
}  // namespace image

// Bytes of the image at `data`: a cubin (ELF), a fat binary or its wrapper, else text (PTX) up to and with its NUL.
// The pointer is the program's own, and is trusted as far as the driver trusts it.
inline uint64_t module_image_bytes(const void* data) {
  if (data == nullptr) return 0;
  const unsigned char* p = static_cast<const unsigned char*>(data);
  constexpr uint32_t kWrapper = 0x466243b1;
  constexpr uint32_t kFatbin = 0xba55ed50;
  if (p[0] == 0) return 1;
  const uint32_t magic = p[1] && p[2] ? image::read<uint32_t>(p) : 0;
  if (magic == kWrapper) {
    const void* inner = reinterpret_cast<const void*>(image::read<uintptr_t>(p + 8));
    return inner == nullptr || image::read<uint32_t>(static_cast<const unsigned char*>(inner)) == kWrapper
               ? 24
               : module_image_bytes(inner);
  }
  if (magic == kFatbin) return image::read<uint16_t>(p + 6) + image::read<uint64_t>(p + 8);
  if (p[0] == 0x7f && p[1] == 'E' && p[2] == 'L' && p[3] == 'F') return image::elf_bytes(p);
  return strlen(static_cast<const char*>(data)) + 1;
}

}  // namespace kvram::lease
