#include "base/bytes.h"

#include <gtest/gtest.h>

namespace kvram {
namespace {

int64_t parsed(std::string_view text) {
  auto result = parse_quantity(text);
  return result ? result->count() : -1;
}

TEST(Quantity, ParsesWhatKubernetesParses) {
  EXPECT_EQ(parsed("6Gi"), 6LL << 30);
  EXPECT_EQ(parsed("1.5Gi"), 3LL << 29);
  EXPECT_EQ(parsed("100M"), 100'000'000);
  EXPECT_EQ(parsed("1e3"), 1000);
  EXPECT_EQ(parsed("1E3"), 1000);
  EXPECT_EQ(parsed("0.1"), 1) << "a part of a byte rounds up";
  EXPECT_EQ(parsed("1500m"), 2);
  EXPECT_EQ(parsed("9223372036854775807"), INT64_MAX);
}

TEST(Quantity, RefusesWithASentenceThatRepeatsTheText) {
  for (const char* text : {"", "0", "-1", "4X", "1e30", "8Ei", "Gi", "1.2.3Gi", "6 Gi", "6GiB", "99999999999999999999",
                           "0Gi", "1e", "0x10"}) {
    auto result = parse_quantity(text);
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kBadQuantity);
    EXPECT_NE(result.error().message.find(text), std::string::npos);
  }
}

TEST(Quantity, FormatsExactlyAndForPeople) {
  EXPECT_EQ(format_quantity(Bytes(6LL << 30)), "6Gi");
  EXPECT_EQ(format_quantity(Bytes(3LL << 29)), "1536Mi");
  EXPECT_EQ(format_quantity(Bytes(1000)), "1000");
  EXPECT_EQ(format_human(Bytes(6LL << 30)), "6Gi");
  EXPECT_EQ(format_human(Bytes((6LL << 30) - (400LL << 20))), "5.6Gi");
  EXPECT_EQ(format_human(Bytes(0)), "0");
  EXPECT_EQ(format_human(Bytes(-(512LL << 20))), "-512Mi");
}

TEST(Quantity, FormatQuantityRoundTrips) {
  for (int64_t count : {1LL, 511LL, 512LL, 1LL << 20, (24LL << 30) - 7, 123456789012345LL, (long long)INT64_MAX}) {
    EXPECT_EQ(parsed(format_quantity(Bytes(count))), count);
  }
}

TEST(Bytes, SaturatesInsteadOfWrapping) {
  EXPECT_EQ((Bytes(INT64_MAX) + Bytes(1)).count(), INT64_MAX);
  EXPECT_EQ((Bytes(INT64_MIN) - Bytes(1)).count(), INT64_MIN);
  EXPECT_EQ(round_up(Bytes(1), kMiB), kMiB);
  EXPECT_EQ(round_down(Bytes((1 << 20) + 5), kMiB), kMiB);
}

}  // namespace
}  // namespace kvram
