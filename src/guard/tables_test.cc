#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "guard/ptr_table.h"
#include "guard/vmm.h"

namespace kvram::guard {
namespace {

// The tables' empty state is all zero.
template <typename T>
struct Zeroed {
  T* operator->() { return static_cast<T*>(static_cast<void*>(bytes)); }
  alignas(alignof(T)) unsigned char bytes[sizeof(T)] = {};
};

Entry entry(uint64_t key, uint64_t units, uint64_t context = 0, Kind kind = Kind::kLinear) {
  return Entry{key, kind, 0, units, context, 0, 0};
}

TEST(PtrTable, AgreesWithAMap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  auto table = std::make_unique<Zeroed<PtrTable>>();
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 200000; ++i) {
    const uint64_t key = 0x7f0000000000 + random() % 20000 * 512;
    Entry e;
    if (random() % 2 == 0) {
      ASSERT_TRUE((*table)->put(entry(key, i)));
      model[key] = i;
    } else {
      const auto known = model.find(key);
      ASSERT_EQ((*table)->take(Kind::kLinear, key, &e), known != model.end());
      if (known == model.end()) continue;
      ASSERT_EQ(e.units, known->second);
      model.erase(known);
    }
  }
  EXPECT_EQ((*table)->size(), model.size());
  for (const auto& [key, units] : model) {
    Entry e;
    ASSERT_TRUE((*table)->find(Kind::kLinear, key, &e));
    ASSERT_EQ(e.units, units);
  }
}

TEST(PtrTable, KindsDoNotMeet) {
  auto table = std::make_unique<Zeroed<PtrTable>>();
  ASSERT_TRUE((*table)->put(entry(42, 1, 0, Kind::kStream)));
  Entry e;
  EXPECT_FALSE((*table)->take(Kind::kModule, 42, &e));
  EXPECT_TRUE((*table)->take(Kind::kStream, 42, &e));
}

TEST(PtrTable, TakesAllOfAContextAndNothingElse) {
  auto table = std::make_unique<Zeroed<PtrTable>>();
  for (uint64_t i = 1; i <= 5000; ++i) ASSERT_TRUE((*table)->put(entry(i * 512, 1, i % 2 + 1)));
  Entry e;
  uint32_t cursor = 0;
  int taken = 0;
  while ((*table)->take_of_context(2, &cursor, &e)) {
    EXPECT_EQ(e.context, 2u);
    ++taken;
  }
  EXPECT_EQ(taken, 2500);
  EXPECT_EQ((*table)->size(), 2500u);
}

TEST(PtrTable, ThreadsDoNotLoseEntries) {
  auto table = std::make_unique<Zeroed<PtrTable>>();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&table, t] {
      for (uint64_t i = 0; i < 20000; ++i) {
        const uint64_t key = (i * 4 + t + 1) * 512;
        (*table)->put(entry(key, i));
        Entry e;
        if (i % 3 != 0) EXPECT_TRUE((*table)->take(Kind::kLinear, key, &e));
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ((*table)->size(), 4 * 6667u);
}

constexpr uint64_t kChunk = 2 << 20;

TEST(Vmm, MemoryLivesUntilHandleAndMappingAreGone) {
  auto vmm = std::make_unique<Zeroed<Vmm>>();
  Memory gone{};
  ASSERT_TRUE((*vmm)->created(5, 1, 4096));
  (*vmm)->mapped(kChunk, kChunk, (*vmm)->of_handle(5));
  EXPECT_FALSE((*vmm)->released(5, &gone)) << "the mapping keeps it";
  EXPECT_EQ((*vmm)->of_handle(5), nullptr);
  ASSERT_TRUE((*vmm)->unmapped(kChunk, kChunk, &gone));
  EXPECT_EQ(gone.units, 4096u);
  EXPECT_EQ(gone.gpu, 1u);
  EXPECT_FALSE((*vmm)->unmapped(kChunk, kChunk, &gone));
}

TEST(Vmm, ARetainedHandleCounts) {
  auto vmm = std::make_unique<Zeroed<Vmm>>();
  Memory gone{};
  ASSERT_TRUE((*vmm)->created(5, 0, 64));
  (*vmm)->mapped(kChunk, kChunk, (*vmm)->of_handle(5));
  Memory* inside = (*vmm)->of_address(kChunk + 4711);
  ASSERT_NE(inside, nullptr);
  EXPECT_EQ((*vmm)->of_address(2 * kChunk), nullptr);
  EXPECT_EQ((*vmm)->of_address(kChunk - 1), nullptr);
  (*vmm)->retained(5, inside);
  EXPECT_FALSE((*vmm)->released(5, &gone));
  ASSERT_TRUE((*vmm)->unmapped(kChunk, kChunk, &gone));
  EXPECT_EQ(gone.units, 0u) << "one reference is left";
  EXPECT_TRUE((*vmm)->released(5, &gone));
  EXPECT_EQ(gone.units, 64u);
  EXPECT_FALSE((*vmm)->released(5, &gone));
}

TEST(Vmm, OneUnmapMayCoverManyMappings) {
  auto vmm = std::make_unique<Zeroed<Vmm>>();
  Memory gone{};
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE((*vmm)->created(i + 1, 0, 1));
    (*vmm)->mapped((1000 - i) * kChunk, kChunk, (*vmm)->of_handle(i + 1));
    EXPECT_FALSE((*vmm)->released(i + 1, &gone));
  }
  uint64_t back = 0;
  while ((*vmm)->unmapped(kChunk, 500 * kChunk, &gone)) back += gone.units;
  EXPECT_EQ(back, 500u);
  while ((*vmm)->unmapped(0, UINT64_MAX, &gone)) back += gone.units;
  EXPECT_EQ(back, 1000u);
}

TEST(Lock, ExcludesAndWakes) {
  Lock lock{};
  int shared = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        const Guarded hold(lock);
        ++shared;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(shared, 80000);
}

}  // namespace
}  // namespace kvram::guard
