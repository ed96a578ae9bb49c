#include <gtest/gtest.h>

#include <random>

#include "placement/policy.h"

namespace kvram::placement {
namespace {

GpuState gpu(int index, int64_t total_mib, int64_t assigned_mib = 0, int64_t foreign_mib = 0) {
  GpuState g;
  g.uuid[0] = static_cast<uint8_t>(index + 1);
  g.index = index;
  g.total = Bytes(total_mib << 20);
  g.assigned = Bytes(assigned_mib << 20);
  g.budgets = assigned_mib > 0 ? 1 : 0;
  g.foreign = Bytes(foreign_mib << 20);
  return g;
}
model::Request memory(int64_t mib, int gpus = 1) { return {Bytes(mib << 20), gpus, 0}; }
model::Request cards(int n) { return {Bytes(0), 1, n}; }
const Refusal& refusal(const Decision& d) { return std::get<Refusal>(d); }
const model::Assignment& chosen(const Decision& d) { return std::get<model::Assignment>(d); }

TEST(BestFit, TakesTheGpuOnWhichLeastStaysFree) {
  auto d = best_fit().place({gpu(0, 24000), gpu(1, 24000, 12000), gpu(2, 24000, 20000)}, memory(6000));
  ASSERT_EQ(chosen(d).size(), 1u);
  EXPECT_EQ(chosen(d)[0].uuid[0], 2) << "GPU 1 has 12000 MiB, GPU 2 too little";
  EXPECT_EQ(chosen(d)[0].limit, Bytes(6000LL << 20));
}

TEST(BestFit, SpreadsInEqualPartsRoundedUpToAMebibyte) {
  auto d = best_fit().place({gpu(0, 100), gpu(1, 100), gpu(2, 100)}, {Bytes((100 << 20) + 1), 3, 0});
  ASSERT_EQ(chosen(d).size(), 3u);
  for (const auto& part : chosen(d)) EXPECT_EQ(part.limit, Bytes(34 << 20));
}

TEST(BestFit, AWholeCardHasNoNeighbourAndNoForeignMemory) {
  auto d = best_fit().place({gpu(0, 10000, 10), gpu(1, 10000, 0, 1), gpu(2, 80000), gpu(3, 20000)}, cards(1));
  EXPECT_EQ(chosen(d)[0].uuid[0], 4) << "the smaller of the two untouched ones";
  EXPECT_EQ(chosen(d)[0].limit, Bytes(20000LL << 20));
  GpuState taken = gpu(0, 10000);
  taken.whole = true;
  EXPECT_EQ(refusal(best_fit().place({taken}, memory(1))).why, Why::kNoRoom) << "a whole card is shared with nobody";
}

TEST(BestFit, SaysWhyNot) {
  auto busy = refusal(best_fit().place({gpu(0, 24000, 10000, 2000), gpu(1, 24000, 20000)}, memory(16000)));
  EXPECT_EQ(busy.why, Why::kNoRoom);
  EXPECT_EQ(busy.largest_free, Bytes(12000LL << 20));
  EXPECT_EQ(busy.largest_index, 0);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, memory(24001))).why, Why::kTooLarge);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, memory(10, 2))).why, Why::kTooManyGpus);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, cards(2))).why, Why::kTooManyGpus);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, {Bytes(5), 1, 1})).why, Why::kBadRequest);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, memory(0))).why, Why::kBadRequest);
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, memory(5, 17))).why, Why::kBadRequest);
  GpuState lost = gpu(0, 24000);
  lost.healthy = false;
  EXPECT_EQ(refusal(best_fit().place({lost}, memory(5))).why, Why::kTooManyGpus) << "a lost GPU gets nothing";
}

TEST(BestFit, LeavesAloneWhatOthersWaitFor) {
  GpuState promised = gpu(0, 24000);
  promised.promised = true;
  EXPECT_EQ(refusal(best_fit().place({promised}, memory(5))).why, Why::kWaitsAhead);
  EXPECT_EQ(chosen(best_fit().place({promised, gpu(1, 24000)}, memory(5)))[0].uuid[0], 2);
}

TEST(BestFit, HugeNumbersDoNotWrap) {
  EXPECT_EQ(refusal(best_fit().place({gpu(0, 24000)}, {Bytes(INT64_MAX), 1, 0})).why, Why::kTooLarge);
  EXPECT_EQ(free_of(gpu(0, 100, INT64_MAX >> 20, 100)), Bytes(0));
}

TEST(BestFit, NeverChoosesWhatDoesNotFitAndNeverRefusesWhatDoes) {
  std::mt19937_64 random(20261130);
  for (int round = 0; round < 5000; ++round) {
    std::vector<GpuState> gpus;
    int n = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < n; ++i) {
      gpus.push_back(gpu(i, 1 + static_cast<int64_t>(random() % 100), static_cast<int64_t>(random() % 60),
                         static_cast<int64_t>(random() % 3) * 10));
    }
    model::Request request = memory(1 + static_cast<int64_t>(random() % 200), 1 + static_cast<int>(random() % 4));
    auto d = best_fit().place(gpus, request);
    int fitting = 0;
    for (const auto& g : gpus) fitting += free_of(g) >= model::part_of(request) ? 1 : 0;
    ASSERT_EQ(std::holds_alternative<model::Assignment>(d), fitting >= request.gpus) << "round " << round;
    if (const auto* parts = std::get_if<model::Assignment>(&d)) {
      ASSERT_EQ(parts->size(), static_cast<size_t>(request.gpus));
      uint32_t seen = 0;
      for (const auto& part : *parts) {
        int index = part.uuid[0] - 1;
        ASSERT_EQ(seen >> index & 1u, 0u) << "a GPU is used once";
        seen |= 1u << index;
        ASSERT_GE(free_of(gpus[static_cast<size_t>(index)]), part.limit);
      }
    }
  }
}

TEST(Uuid, GoesThereAndBack) {
  model::GpuUuid uuid{};
  ASSERT_TRUE(model::parse_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef", uuid));
  EXPECT_EQ(model::uuid_text(uuid), "GPU-01234567-89ab-cdef-0123-456789abcdef");
  EXPECT_FALSE(model::parse_uuid("GPU-0123", uuid));
  EXPECT_FALSE(model::parse_uuid("GPU-01234567-89ab-cdef-0123-456789abcdeg", uuid));
}

}  // namespace
}  // namespace kvram::placement
