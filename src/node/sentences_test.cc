#include "node/sentences.h"

#include <gtest/gtest.h>

namespace kvram::node {
namespace {

constexpr int64_t kGi = 1LL << 30;

TEST(Sentences, NoRoomNamesWhatIsFreeAndWhoHoldsTheRest) {
  GpuHolders gpu{0, Bytes(kGi * 11 + kGi * 3 / 10), {}};
  gpu.holders = {{1, 0, "./a", Bytes(6 * kGi)}, {2, 0, "", Bytes(4 * kGi)}, {0, 123, "hold", Bytes(2 * kGi)}};
  placement::Refusal refusal;
  refusal.asked_gpus = 1;
  refusal.largest_free = gpu.free;
  refusal.largest_index = 0;
  Error error = refusal_error({Bytes(16 * kGi), 1, 0}, refusal, {gpu}, 0);
  EXPECT_EQ(error.code, ErrorCode::kNoRoom);
  EXPECT_EQ(
      error.message,
      "16Gi on one GPU was asked, but the largest free part is 11.3Gi (GPU 0). Held: budget 1 (./a) 6Gi, another "
      "user's budget 2 4Gi, foreign 2Gi (pid 123 hold). Ask for at most 11571Mi, or add --wait 10m to wait for room.");
  EXPECT_EQ(waiting_reason({Bytes(16 * kGi), 1, 0}, refusal, {gpu}, 0),
            "16Gi on one GPU was asked, but the largest free part is 11.3Gi (GPU 0). Held: budget 1 (./a) 6Gi, another "
            "user's budget 2 4Gi, foreign 2Gi (pid 123 hold).");
}

TEST(Sentences, EveryReasonHasItsCode) {
  placement::Refusal refusal;
  refusal.asked_gpus = 1;
  auto code = [&](placement::Why why, const model::Request& request) {
    refusal.why = why;
    Error error = refusal_error(request, refusal, {{0, Bytes(kGi), {}}}, 2);
    EXPECT_TRUE(error.message.ends_with('.')) << error.message;
    return error.code;
  };
  EXPECT_EQ(code(placement::Why::kTooLarge, {Bytes(5 * kGi), 1, 0}), ErrorCode::kMoreThanAnyGpu);
  EXPECT_EQ(code(placement::Why::kTooManyGpus, {Bytes(5 * kGi), 4, 0}), ErrorCode::kTooManyGpus);
  EXPECT_EQ(code(placement::Why::kWaitsAhead, {Bytes(5 * kGi), 1, 0}), ErrorCode::kWaitsAhead);
  EXPECT_EQ(code(placement::Why::kBadRequest, {Bytes(5 * kGi), 1, 1}), ErrorCode::kCardBesideMemory);
  EXPECT_EQ(code(placement::Why::kBadRequest, {Bytes(5 * kGi), 0, 0}), ErrorCode::kBadGpuCount);
  EXPECT_EQ(code(placement::Why::kBadRequest, {Bytes(0), 1, 0}), ErrorCode::kBadUsage);
}

TEST(Sentences, LongListsOfHoldersAreCut) {
  std::vector<Holder> holders;
  for (uint64_t i = 1; i <= 20; ++i) holders.push_back({i, 0, "./x", Bytes(kGi)});
  std::string text = holders_text(holders, 3);
  EXPECT_EQ(text, "budget 1 (./x) 1Gi, budget 2 (./x) 1Gi, budget 3 (./x) 1Gi and 17 more with 17Gi");
}

TEST(CleanText, IsAlwaysOneLineOfValidUtf8) {
  EXPECT_EQ(clean_text("a\nb\x1b[31m", 100), "a b [31m");
  EXPECT_EQ(clean_text("gr\xc3\xbc\xc3\x9f", 100), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(clean_text("gr\xc3\xbc\xc3\x9f", 5), "gr\xc3\xbc") << "cut between characters, not in one";
  EXPECT_EQ(clean_text("\xff\xfe"
                       "a\xc3",
                       100),
            "??a?");
  EXPECT_EQ(clean_text("\xed\xa0\x80", 100), "???") << "a surrogate is no character";
  EXPECT_EQ(clean_text("\xc0\xaf", 100), "??") << "nor is an overlong form";
}

}  // namespace
}  // namespace kvram::node
