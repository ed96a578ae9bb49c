#include "simgpu/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvram::simgpu {
namespace {

constexpr char kPtx[] = R"(// .entry in_a_comment
.version 8.0
.target sm_80
.address_size 64
/* .global .b8 also_not[7]; */
.visible .global .align 8 .b8 table[1024];
.global .u32 counter;
.visible .global .attribute(.managed) .align 4 .f32 shared_with_host[3];
.const .align 4 .b8 coefficients[64] = {1, 2, 3};
.extern .func (.param .b32 r) printf(.param .b64 a);
// sim: us=250 regs=64
.visible .entry scale(
  .param .u64 .ptr .align 16 data,
  .param .f32 factor,
  .param .align 8 .b8 block[24]
)
.maxntid 256, 2, 1
{
  .shared .align 4 .b8 tile[2048];
  .reg .b32 r<3>;
  { ld.shared.u32 r1, [tile]; }
  ret;
}
.entry plain()
{
  // sim: us=1.5
  ret;
}
.func helper() { ret; }
)";

TEST(Image, PtxGivesKernelsParametersAndVariables) {
  Image image = read_image(kPtx);
  ASSERT_EQ(image.status, Image::Status::kGood);
  EXPECT_EQ(image.bytes, sizeof kPtx);
  ASSERT_EQ(image.kernels.size(), 2U);
  const ImageKernel& scale = image.kernels[0];
  EXPECT_EQ(scale.name, "scale");
  EXPECT_EQ(scale.gpu_ns, 250000U);
  EXPECT_EQ(scale.registers, 64U);
  EXPECT_EQ(scale.max_threads, 512U);
  EXPECT_EQ(scale.shared_bytes, 2048U);
  ASSERT_EQ(scale.params.size(), 3U);
  EXPECT_EQ(scale.params[0].offset, 0U);
  EXPECT_EQ(scale.params[1].offset, 8U);
  EXPECT_EQ(scale.params[1].bytes, 4U);
  EXPECT_EQ(scale.params[2].offset, 16U);
  EXPECT_EQ(scale.params[2].bytes, 24U);
  EXPECT_EQ(image.kernels[1].name, "plain");
  EXPECT_EQ(image.kernels[1].gpu_ns, 1500U);
  EXPECT_TRUE(image.kernels[1].params.empty());
  ASSERT_EQ(image.globals.size(), 4U);
  EXPECT_EQ(image.globals[0].name, "table");
  EXPECT_EQ(image.globals[0].bytes, 1024U);
  EXPECT_EQ(image.globals[1].bytes, 4U);
  EXPECT_EQ(image.globals[2].name, "shared_with_host");
  EXPECT_EQ(image.globals[2].bytes, 12U);
  EXPECT_TRUE(image.globals[2].managed);
  EXPECT_FALSE(image.globals[0].managed);
  EXPECT_EQ(image.globals[3].bytes, 64U);
}

TEST(Image, WhatIsNoImageIsNone) {
  EXPECT_EQ(read_image(nullptr).status, Image::Status::kInvalid);
  EXPECT_EQ(read_image("").status, Image::Status::kInvalid);
  EXPECT_EQ(read_image("hello, world").status, Image::Status::kInvalid);
  EXPECT_EQ(read_image(".version 8.0\n.entry k() {").status, Image::Status::kBadPtx);
  EXPECT_EQ(read_file_image("").status, Image::Status::kInvalid);
  EXPECT_EQ(read_file_image("\177ELF").status, Image::Status::kInvalid);
}

// A fat binary with one piece of PTX and one piece that cannot be read.
std::string fatbin(const std::string& inside, bool compressed) {
  auto number = [](uint64_t value, size_t bytes) { return std::string(reinterpret_cast<const char*>(&value), bytes); };
  std::string payload = compressed ? std::string(100, '\x9c') : inside;
  payload.resize((payload.size() + 8) / 8 * 8, '\0');
  std::string entry =
      number(1, 2) + number(0x101, 2) + number(64, 4) + number(payload.size(), 8) + std::string(48, '\0');
  std::string body = entry + payload;
  return number(0xba55ed50, 4) + number(1, 2) + number(16, 2) + number(body.size(), 8) + body;
}

TEST(Image, FatBinariesGiveWhatTheyHold) {
  std::string plain = fatbin(kPtx, false);
  Image image = read_file_image(plain);
  ASSERT_EQ(image.status, Image::Status::kGood);
  EXPECT_EQ(image.bytes, plain.size());
  EXPECT_EQ(image.kernels.size(), 2U);
  EXPECT_FALSE(image.opaque);
  struct Wrapper {
    uint32_t magic;
    uint32_t version;
    const void* data;
    const void* unused;
  } wrapper{0x466243b1, 1, plain.data(), nullptr};
  EXPECT_EQ(read_image(&wrapper).kernels.size(), 2U);
  Image packed = read_file_image(fatbin("", true));
  EXPECT_EQ(packed.status, Image::Status::kGood);
  EXPECT_TRUE(packed.opaque) << "any kernel may be in it";
  EXPECT_EQ(read_file_image(plain.substr(0, plain.size() - 1)).status, Image::Status::kInvalid);
}

// Under the address sanitizer this finds reads past the end.
TEST(Image, DamagedFilesAreReadWithinTheirBounds) {
  unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::string elf(512, '\0');
  std::memcpy(elf.data(), "\177ELF\2\1\1", 7);
  elf[40] = 64;
  elf[58] = 64;
  elf[60] = 3;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = round % 3 == 0 ? elf : round % 3 == 1 ? fatbin(kPtx, false) : std::string(kPtx);
    for (int i = 0; i < 4; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    damaged.resize(random() % damaged.size());
    Image image = read_file_image(std::string(damaged.data(), damaged.size()));
    EXPECT_LE(image.kernels.size(), 64U);
  }
}

}  // namespace
}  // namespace kvram::simgpu
