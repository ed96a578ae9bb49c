#include "simgpu/spec.h"

#include <gtest/gtest.h>

#include <set>

namespace kvram::simgpu {
namespace {

std::string refused(const std::string& text) {
  auto spec = parse_spec(text);
  return spec ? "accepted as " + spec->text : spec.error().message;
}

TEST(Spec, ReadsCountsAndModelsInAnySpelling) {
  auto spec = parse_spec("2xA10, h100,1xrtx-6000 ada");
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->text, "2xA10,1xH100-80GB,1xRTX6000Ada");
  ASSERT_EQ(spec->gpus.size(), 4U);
  EXPECT_STREQ(spec->gpus[0].name, "NVIDIA A10");
  EXPECT_EQ(spec->gpus[0].total_bytes, 23028ULL << 20);
  EXPECT_EQ(spec->gpus[2].total_bytes, 81559ULL << 20);
  EXPECT_EQ(spec->gpus[3].pci_bus, 4);
}

TEST(Spec, EveryModelOfTheCatalogueIsPlausible) {
  EXPECT_EQ(catalogue().size(), 11U);
  for (const CatalogueEntry& e : catalogue()) {
    EXPECT_TRUE(parse_spec(e.key).has_value()) << e.key;
    EXPECT_LT(e.info.reserve_bytes, e.info.total_bytes / 10) << e.key;
    EXPECT_GT(e.info.costs.context_bytes, 0U) << e.key;
    EXPECT_GT(e.info.costs.pool_chunk_bytes, 0U) << e.key;
    EXPECT_GT(e.info.sms, 0) << e.key;
  }
}

TEST(Spec, UuidsAreTheSameInEveryRunAndDifferWithinAMachine) {
  auto a = parse_spec("16xA10");
  auto b = parse_spec("16xa10");
  ASSERT_TRUE(a.has_value() && b.has_value());
  std::set<std::string> seen;
  for (size_t g = 0; g < 16; ++g) {
    EXPECT_EQ(uuid_text(a->gpus[g].uuid), uuid_text(b->gpus[g].uuid));
    seen.insert(uuid_text(a->gpus[g].uuid));
  }
  EXPECT_EQ(seen.size(), 16U);
  EXPECT_EQ(seen.begin()->size(), 40U);
}

TEST(Spec, BadTextIsRefusedWithASentence) {
  EXPECT_NE(refused("").find("it is empty"), std::string::npos) << refused("");
  EXPECT_NE(refused("2xA10,").find("an item of the list is empty"), std::string::npos) << refused("2xA10,");
  EXPECT_NE(refused("2xV99").find("'2xV99' is none of T4, A10"), std::string::npos) << refused("2xV99");
  EXPECT_NE(refused("A100").find("A100-40GB, A100-80GB"), std::string::npos) << refused("A100");
  EXPECT_NE(refused("17xA10").find("1 to 16"), std::string::npos) << refused("17xA10");
  EXPECT_NE(refused("0xA10").find("1 to 16"), std::string::npos) << refused("0xA10");
  EXPECT_NE(refused("9xA10,8xT4").find("1 to 16"), std::string::npos) << refused("9xA10,8xT4");
  EXPECT_NE(refused("99999999999999999999xA10").find("1 to 16"), std::string::npos);
}

}  // namespace
}  // namespace kvram::simgpu
