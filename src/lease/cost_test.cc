#include "lease/cost.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lease/module_image.h"

namespace kvram::lease {
namespace {

TEST(Cost, RoundsAsTheDriverDoes) {
  EXPECT_EQ(linear_cost(1), 512u);
  EXPECT_EQ(linear_cost(512), 512u);
  EXPECT_EQ(pitched_cost(100, 10), 5120u);
  EXPECT_EQ(array_cost(100, 0, 0, texel_bits(0x20, 4)), 2048u) << "height and depth of 0 count as 1";
  EXPECT_EQ(array_cost(64, 64, 2, texel_bits(0x02, 2)), 64u * 64 * 2 * 4);
  EXPECT_EQ(mipmapped_cost(64, 64, 0, 32, 3, false), 64u * 64 * 4 + 32 * 32 * 4 + 16 * 16 * 4);
  EXPECT_EQ(mipmapped_cost(2, 2, 6, 8, 9, true), 2u * 512) << "levels end at 1x1; layers stay";
  EXPECT_EQ(limit_cost(2, 100 << 20, 80, 2048), 100u << 20);
  EXPECT_EQ(limit_cost(0, 2048, 10, 1024), 2048u * 10 * 1024);
  EXPECT_EQ(limit_cost(6, 1 << 20, 10, 1024), 0u);
}

TEST(Cost, AHostileSizeStaysHuge) {
  EXPECT_EQ(linear_cost(UINT64_MAX), kHuge);
  EXPECT_EQ(pitched_cost(1ULL << 40, 1ULL << 40), kHuge);
  EXPECT_GE(array_cost(UINT64_MAX, UINT64_MAX, UINT64_MAX, 128), kHuge / 8);
  EXPECT_EQ(add_saturating(kHuge, kHuge), kHuge);
}

TEST(ModuleImage, KnowsTheKindsOfImage) {
  EXPECT_EQ(module_image_bytes(".version 8.0"), 13u);
  EXPECT_EQ(module_image_bytes(""), 1u);
  EXPECT_EQ(module_image_bytes(nullptr), 0u);
  std::vector<unsigned char> elf(4096, 0);
  std::memcpy(elf.data(),
              "\x7f"
              "ELF",
              4);
  const auto put = [&elf](size_t at, auto value) { std::memcpy(elf.data() + at, &value, sizeof value); };
  put(40, uint64_t{1024});  // section table
  put(58, uint16_t{64});
  put(60, uint16_t{2});
  put(1024 + 64 + 24, uint64_t{2000});  // second section: offset and size
  put(1024 + 64 + 32, uint64_t{500});
  EXPECT_EQ(module_image_bytes(elf.data()), 2500u);
  std::vector<unsigned char> fat(64, 0);
  const uint32_t magic = 0xba55ed50;
  const uint16_t header = 16;
  const uint64_t body = 100000;
  std::memcpy(fat.data(), &magic, 4);
  std::memcpy(fat.data() + 6, &header, 2);
  std::memcpy(fat.data() + 8, &body, 8);
  EXPECT_EQ(module_image_bytes(fat.data()), 100016u);
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data;
    void* name;
  } wrapper;
  wrapper.data = fat.data();
  EXPECT_EQ(module_image_bytes(&wrapper), 100016u);
}

}  // namespace
}  // namespace kvram::lease
