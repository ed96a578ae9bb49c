#include "lease/table.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "lease/wire.h"

namespace kvram::lease {
namespace {

TEST(LeaseWord, SpendsOnlyWhatIsThere) {
  uint64_t word = pack({7, 100});
  EXPECT_FALSE(spend(&word, 101));
  EXPECT_TRUE(spend(&word, 100));
  EXPECT_EQ(unpack(word).available, 0u);
  EXPECT_EQ(unpack(word).seq, 7u) << "a client's spending leaves the daemon's counter alone";
  give_back(&word, 40);
  EXPECT_EQ(unpack(word).available, 40u);
}

TEST(LeaseWord, NothingIsLostBetweenThreads) {
  uint64_t word = pack({0, 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&word] {
      for (int i = 0; i < 20000; ++i) {
        if (spend(&word, 7)) give_back(&word, 7);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(unpack(word).available, 1000u);
}

TEST(Units, RoundUp) {
  EXPECT_EQ(to_units(0), 0u);
  EXPECT_EQ(to_units(1), 1u);
  EXPECT_EQ(to_units(512), 1u);
  EXPECT_EQ(to_units(UINT64_MAX), (UINT64_MAX / 512) + 1) << "a hostile size does not wrap to a small one";
}

TEST(FreeUnits, CountsUnspentLeasesAsFree) {
  GrantPage page{};
  page.gpus = 1;
  page.slots_used = 2;
  page.gpu[0].limit_units = 1000;
  page.gpu[0].granted_units = 600;
  page.gpu[0].hidden_units = 50;
  std::vector<uint64_t> table(table_bytes(1) / 8);
  *word_at(table.data(), 1, 0, 0) = pack({3, 100});
  *word_at(table.data(), 1, 1, 0) = pack({9, 200});
  EXPECT_EQ(free_units(&page, table.data(), 0), 650u);
  page.gpu[0].hidden_units = 5000;
  EXPECT_EQ(free_units(&page, table.data(), 0), 0u) << "over the limit is no room, never a wrapped number";
}

}  // namespace
}  // namespace kvram::lease
