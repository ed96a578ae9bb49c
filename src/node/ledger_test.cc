#include "node/ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace kvram::node {
namespace {

struct Crash {};

// A budget of two GPUs, its shared pages, and programs that spend from them. The ledger can be thrown away at any step
// and made anew from what it left in memory, as after a SIGKILL of the daemon.
class World {
 public:
  explicit World(uint64_t seed, uint64_t limit_mib = 64) : random_(seed), limit_(limit_mib * 2048) {
    image_ = std::make_unique<LedgerImage>();
    table_.resize(lease::table_bytes(2) / sizeof(uint64_t));
    page_.resize(lease::kGrantBytes / sizeof(uint64_t));
    Ledger::format(*image_, "boot");
    ledger_ = std::make_unique<Ledger>(*image_);
    NewBudget wanted;
    wanted.root_pid = 1;
    wanted.command = "./a";
    wanted.parts = {{{1}, Bytes(limit_mib << 20)}, {{2}, Bytes(limit_mib << 20)}};
    id_ = *ledger_->create(wanted);
    attach();
  }

  Ledger& ledger() { return *ledger_; }
  Budget& budget() { return *ledger_->find(id_); }
  LedgerImage& image() { return *image_; }
  lease::GrantPage& page() { return *reinterpret_cast<lease::GrantPage*>(page_.data()); }
  uint64_t* word(uint32_t slot, uint32_t gpu) { return lease::word_at(table_.data(), 2, slot, gpu); }
  uint64_t available(uint32_t slot, uint32_t gpu) { return lease::unpack(*word(slot, gpu)).available; }
  void attach() { ledger_->attach(budget(), table_.data(), reinterpret_cast<lease::GrantPage*>(page_.data())); }
  void restart() {
    ledger_ = std::make_unique<Ledger>(*image_);
    attach();
  }

  std::mt19937_64 random_;
  uint64_t limit_;
  uint64_t id_ = 0;

 private:
  std::unique_ptr<LedgerImage> image_;
  std::vector<uint64_t> table_;
  std::vector<uint64_t> page_;
  std::unique_ptr<Ledger> ledger_;
};

TEST(Ledger, GrantsUpToTheLimitAndNotAUnitMore) {
  World w(1);
  uint32_t slot = *w.ledger().add_process(w.budget(), 10, 1, "a");
  EXPECT_EQ(w.ledger().refill(w.budget(), slot, 0, w.limit_ + 1), RefillStatus::kRefused);
  EXPECT_EQ(w.ledger().refill(w.budget(), slot, 0, w.limit_), RefillStatus::kGranted);
  EXPECT_EQ(w.available(slot, 0), w.limit_);
  EXPECT_TRUE(lease::spend(w.word(slot, 0), w.limit_));
  EXPECT_EQ(w.ledger().charged(w.budget(), 0), w.limit_);
  EXPECT_EQ(w.ledger().refill(w.budget(), slot, 0, 1), RefillStatus::kRefused);
  EXPECT_EQ(w.ledger().charged(w.budget(), 1), 0u) << "the other GPU is untouched";
  EXPECT_EQ(w.ledger().refill(w.budget(), slot, 2, 1), RefillStatus::kInvalid) << "a GPU the budget does not have";
  EXPECT_EQ(w.ledger().refill(w.budget(), 77, 0, 1), RefillStatus::kInvalid) << "a slot nobody has";
}

TEST(Ledger, RecallsWhatSiblingsHaveNotSpentBeforeItRefuses) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  uint32_t b = *w.ledger().add_process(w.budget(), 11, 1, "b");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, w.limit_), RefillStatus::kGranted);
  ASSERT_TRUE(lease::spend(w.word(a, 0), 100));
  EXPECT_EQ(w.ledger().refill(w.budget(), b, 0, w.limit_ - 99), RefillStatus::kRefused);
  EXPECT_EQ(w.ledger().refill(w.budget(), b, 0, w.limit_ - 100), RefillStatus::kGranted);
  EXPECT_EQ(w.available(a, 0), 0u);
  EXPECT_EQ(w.available(b, 0), w.limit_ - 100);
  EXPECT_EQ(lease::free_units(&w.page(), w.word(0, 0), 0), w.limit_ - 100) << "what a client sees agrees";
}

TEST(Ledger, HiddenMemoryIsChargedOnceTwoMeasurementsShowIt) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  ASSERT_TRUE(lease::spend(w.word(a, 0), 1000));
  w.ledger().observe(w.budget(), 0, 1500);
  EXPECT_EQ(w.budget().record->gpu[0].hidden, 0u) << "one measurement may be a moment between two calls";
  w.ledger().observe(w.budget(), 0, 1400);
  EXPECT_EQ(w.budget().record->gpu[0].hidden, 400u);
  EXPECT_EQ(w.ledger().free_in(w.budget(), 0), w.limit_ - 1400);
  EXPECT_EQ(w.ledger().refill(w.budget(), a, 0, w.limit_ - 1399), RefillStatus::kRefused);
  w.ledger().observe(w.budget(), 0, 900);
  EXPECT_EQ(w.budget().record->gpu[0].hidden, 0u) << "what is gone is gone at once";
  EXPECT_EQ(w.budget().record->gpu[0].peak, 1500u);
}

TEST(Ledger, HiddenMemoryTakesUnspentLeasesBack) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, w.limit_), RefillStatus::kGranted);
  w.ledger().observe(w.budget(), 0, 700);
  w.ledger().observe(w.budget(), 0, 700);
  EXPECT_EQ(w.available(a, 0), w.limit_ - 700);
}

TEST(Ledger, AMeasurementThatAFreeOvertakesHidesNothing) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  ASSERT_TRUE(lease::spend(w.word(a, 0), 1000));
  w.ledger().before_measurement();
  lease::give_back(w.word(a, 0), 600);  // between the measurement and its use
  w.ledger().observe(w.budget(), 0, 1000, true);
  EXPECT_EQ(w.budget().record->gpu[0].hidden, 0u);
}

TEST(Ledger, MemoryThatASiblingKeepsStaysCharged) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  uint32_t b = *w.ledger().add_process(w.budget(), 11, 1, "b");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  ASSERT_TRUE(lease::spend(w.word(a, 0), 1000));
  // a dies; b has 600 of it mapped.
  w.ledger().before_measurement();
  w.ledger().observe(w.budget(), 0, 600, true, 1000);
  w.ledger().close_process(w.budget(), a);
  EXPECT_EQ(w.ledger().charged(w.budget(), 0) + w.budget().record->gpu[0].hidden, 600u);
  EXPECT_EQ(w.ledger().refill(w.budget(), b, 0, w.limit_ - 600), RefillStatus::kGranted);
  EXPECT_EQ(w.ledger().refill(w.budget(), b, 0, w.limit_ - 599), RefillStatus::kRefused);
}

TEST(Ledger, ASharedReleaseCountsOnceHoweverOftenItIsSent) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  ASSERT_TRUE(lease::spend(w.word(a, 0), 1000));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(w.ledger().release_shared(w.budget(), a, 0, 300, 5, 700));
  EXPECT_EQ(w.ledger().charged(w.budget(), 0), 700u);
  EXPECT_EQ(w.budget().record->gpu[0].hidden, 0u);
  EXPECT_TRUE(w.ledger().release_shared(w.budget(), a, 0, UINT64_MAX, 6, 0)) << "no more than was charged";
  EXPECT_EQ(w.ledger().charged(w.budget(), 0), 0u);
}

TEST(Ledger, AWordThatClaimsMoreThanWasGrantedGivesNothingBack) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  uint32_t b = *w.ledger().add_process(w.budget(), 11, 1, "b");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  uint64_t was = w.ledger().granted(w.budget(), 0);
  __atomic_store_n(w.word(a, 0), lease::pack({9, lease::kAvailableMask}), __ATOMIC_SEQ_CST);
  EXPECT_EQ(w.ledger().refill(w.budget(), b, 0, w.limit_), RefillStatus::kGranted) << "a has spent nothing, it says";
  EXPECT_EQ(w.ledger().granted(w.budget(), 0), w.limit_);
  EXPECT_LE(was, w.limit_);
  EXPECT_FALSE(w.ledger().check(w.budget()));
}

TEST(Ledger, ASlotIsUsedAgainAndStartsAtNothing) {
  World w(1);
  uint32_t a = *w.ledger().add_process(w.budget(), 10, 1, "a");
  ASSERT_EQ(w.ledger().refill(w.budget(), a, 0, 1000), RefillStatus::kGranted);
  w.ledger().close_process(w.budget(), a);
  EXPECT_EQ(w.ledger().granted(w.budget(), 0), 0u);
  EXPECT_EQ(*w.ledger().add_process(w.budget(), 11, 1, "b"), a);
  EXPECT_EQ(w.available(a, 0), 0u);
  EXPECT_EQ(w.ledger().granted(w.budget(), 0), 0u);
}

TEST(Ledger, KnowsADamagedImage) {
  World w(1);
  EXPECT_FALSE(Ledger::fault_of(w.image()));
  w.image().budget[0].gpus = 99;
  EXPECT_TRUE(Ledger::fault_of(w.image()));
  w.image().budget[0].gpus = 2;
  w.image().magic = 0;
  EXPECT_TRUE(Ledger::fault_of(w.image()));
}

// Random programs and a daemon that is killed between any two of its stores.
class CrashStory {
 public:
  explicit CrashStory(uint64_t seed) : world_(seed, 1) { world_.ledger().on_step(&CrashStory::on_step, this); }

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) {
      crash_in_ = world_.random_() % 3 == 0 ? static_cast<int>(world_.random_() % 24) : -1;
      try {
        daemon_acts();
      } catch (const Crash&) {
        ++crashes_;
        client_acts();
        recover();
      }
      client_acts();
      check("after a step");
    }
  }
  int crashes() const { return crashes_; }

 private:
  struct Program {
    bool alive = false;
    uint64_t spent[2] = {0, 0};
  };

  static void on_step(void* self) {
    auto* story = static_cast<CrashStory*>(self);
    story->check_no_overgrant();
    if (story->world_.random_() % 4 == 0) story->client_acts();
    if (story->crash_in_ == 0) throw Crash{};
    if (story->crash_in_ > 0) --story->crash_in_;
  }

  void daemon_acts() {
    uint64_t r = world_.random_();
    auto slot = static_cast<uint32_t>(r % kPrograms);
    auto gpu = static_cast<uint32_t>((r >> 8) % 2);
    Program& program = programs_[slot];
    Budget& budget = world_.budget();
    if (!program.alive && world_.ledger().state(budget, slot) == ProcessState::kFree) {
      if (auto made = world_.ledger().add_process(budget, static_cast<int32_t>(100 + r % 1000), 1, "p")) {
        programs_[*made] = Program{true, {0, 0}};
      }
    } else if (program.alive && (r >> 16) % 12 == 0) {
      closing_ = static_cast<int>(slot);
      program = Program{};  // it died: nothing of it is resident any more
      world_.ledger().close_process(budget, slot);
      closing_ = -1;
    } else if (program.alive) {
      world_.ledger().refill(budget, slot, gpu, 1 + (r >> 20) % 1500);
    }
  }

  void client_acts() {
    for (uint32_t slot = 0; slot < kPrograms; ++slot) {
      Program& program = programs_[slot];
      if (!program.alive) continue;
      auto gpu = static_cast<uint32_t>(world_.random_() % 2);
      uint64_t units = world_.random_() % 300;
      if (world_.random_() % 2 == 0) {
        if (lease::spend(world_.word(slot, gpu), units)) program.spent[gpu] += units;
      } else if (units = std::min(units, program.spent[gpu]); units > 0) {
        program.spent[gpu] -= units;
        lease::give_back(world_.word(slot, gpu), units);
      }
    }
  }

  void recover() {
    world_.ledger().on_step(nullptr, nullptr);
    world_.restart();
    // A registration that a crash cut off before it counted never reached its program.
    for (uint32_t slot = 0; slot < kPrograms; ++slot) {
      bool known = world_.ledger().state(world_.budget(), slot) != ProcessState::kFree;
      if (!known) {
        ASSERT_FALSE(programs_[slot].alive) << "a registered program was forgotten, slot " << slot;
      } else if (!programs_[slot].alive) {
        ASSERT_NE(closing_, static_cast<int>(slot)) << "a closing slot came back";
        world_.ledger().close_process(world_.budget(), slot);
      }
    }
    closing_ = -1;
    check("after a crash");
    world_.ledger().on_step(&CrashStory::on_step, this);
  }

  void check_no_overgrant() {
    for (uint32_t gpu = 0; gpu < 2; ++gpu) {
      uint64_t sum = 0;
      for (uint32_t slot = 0; slot < kPrograms; ++slot) {
        if (programs_[slot].alive) sum += programs_[slot].spent[gpu] + world_.available(slot, gpu);
      }
      ASSERT_LE(sum, world_.limit_) << "spent and spendable exceed the limit on GPU " << gpu;
    }
  }

  void check(const char* when) {
    check_no_overgrant();
    for (uint32_t gpu = 0; gpu < 2; ++gpu) {
      uint64_t charged = 0;
      for (uint32_t slot = 0; slot < kPrograms; ++slot) {
        charged += programs_[slot].spent[gpu];
        ASSERT_EQ(world_.ledger().charged_of(world_.budget(), slot, gpu), programs_[slot].spent[gpu])
            << when << ": leaked or lost units in slot " << slot << ", GPU " << gpu;
      }
      ASSERT_EQ(world_.ledger().charged(world_.budget(), gpu), charged) << when;
      ASSERT_EQ(lease::free_units(&world_.page(), world_.word(0, 0), gpu), world_.limit_ - charged) << when;
    }
    ASSERT_FALSE(world_.ledger().check(world_.budget())) << when;
  }

  static constexpr uint32_t kPrograms = 6;
  World world_;
  Program programs_[kPrograms];
  int crash_in_ = -1;
  int closing_ = -1;
  int crashes_ = 0;
};

TEST(LedgerCrash, NothingIsOvergrantedOrLeakedWhereverTheDaemonDies) {
  uint64_t seed = std::random_device()();
  if (const char* chosen = getenv("KV_SEED")) seed = strtoull(chosen, nullptr, 10);
  int crashes = 0;
  for (uint64_t i = 0; i < 60 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "KV_SEED=" << seed << " story " << i);
    CrashStory story(seed + i);
    story.run(500);
    crashes += story.crashes();
  }
  EXPECT_GT(crashes, 2000) << "the story has to crash to show anything; KV_SEED=" << seed;
}

}  // namespace
}  // namespace kvram::node
