// The whole classification table, row by row: each accounting entry point is charged what the GPU gives it, is refused
// with one unit too little, succeeds with exactly enough, and its release gives back exactly what was taken.
#include <gtest/gtest.h>

#include "rows.h"

namespace kvram::test {
namespace {

// A chunk of a pool, or a 2 MiB page of a module: what may be charged without being resident.
void check_row(const Row& row) {
  Stand& s = Stand::get();
  SCOPED_TRACE(row.name);
  s.unlimited();
  const uint64_t charged = s.charged();
  const uint64_t resident = s.resident();
  const CUresult first = row.take();
  if (!row.modelled && first == CUDA_ERROR_NOT_SUPPORTED) {
    EXPECT_EQ(s.charged(), charged) << "charged for a call that the driver does not have";
    s.leave_room(0);
    EXPECT_EQ(row.take(), CUDA_ERROR_OUT_OF_MEMORY) << "refused before the driver is asked";
    EXPECT_EQ(s.charged(), charged);
    return;
  }
  ASSERT_EQ(first, CUDA_SUCCESS);
  const uint64_t cost = s.charged() - charged;
  EXPECT_GT(cost, 0u);
  EXPECT_EQ(s.resident() - resident, cost) << "charged is what the GPU gave";
  ASSERT_TRUE(row.give());
  EXPECT_EQ(s.charged(), charged) << "not all, or too much, was given back";
  EXPECT_EQ(s.resident(), resident);

  s.leave_room(cost - lease::kUnit);
  EXPECT_EQ(row.take(), CUDA_ERROR_OUT_OF_MEMORY) << "one unit too little";
  EXPECT_EQ(s.charged(), charged) << "a refusal leaves nothing charged";
  EXPECT_EQ(s.resident(), resident) << "nor anything on the GPU";

  s.leave_room(cost);
  ASSERT_EQ(row.take(), CUDA_SUCCESS) << "exactly enough";
  s.unlimited();
  ASSERT_TRUE(row.give());
  EXPECT_EQ(s.charged(), charged);
  EXPECT_EQ(s.resident(), resident);
}

TEST(Rows, EachAccountsRefusesAndGivesBack) {
  Stand& s = Stand::get();
  for (const Row& row : memory_rows()) check_row(row);
  bool left = false;
  for (const Row& row : implicit_rows()) {
    if (row.name == "cuDevicePrimaryCtxRetain" && !left) {
      s.unlimited();
      ASSERT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
      left = true;
      EXPECT_EQ(s.charged(), 0u) << "without a context nothing is charged";
    }
    check_row(row);
  }
  s.unlimited();
  s.retain_primary();

  const struct {
    const char* name;
    std::string kind;
    bool wrapped;
  } table[] = {
#include "cuda_rows.inc"
  };
  for (const auto& row : table) {
    if (!row.wrapped || (row.kind != "account" && row.kind != "implicit" && row.kind != "release")) continue;
    EXPECT_TRUE(s.called().contains(row.name)) << row.name << " has no row";
  }
}

}  // namespace
}  // namespace kvram::test
