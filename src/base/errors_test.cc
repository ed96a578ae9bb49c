#include "base/errors.h"

#include <gtest/gtest.h>

namespace kvram {
namespace {

TEST(Errors, IdsRoundTrip) {
  for (const ErrorInfo& row : error_table()) {
    EXPECT_EQ(parse_error_id(error_id(row.code)), row.code);
    EXPECT_EQ(error_info(row.code).title, row.title);
  }
}

TEST(Errors, UnknownIdsAreNothing) {
  for (const char* text : {"", "VRAM-", "VRAM-1", "VRAM-1001x", "1001 ", "KUBE-1001", "VRAM-99999999999999"}) {
    EXPECT_FALSE(parse_error_id(text).has_value()) << text;
  }
  EXPECT_EQ(parse_error_id("vram-1001"), ErrorCode::kBadQuantity);
}

}  // namespace
}  // namespace kvram
