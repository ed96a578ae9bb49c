#include "node/wait_queue.h"

#include <gtest/gtest.h>

namespace kvram::node {
namespace {

placement::GpuState gpu(int index, int64_t total_gib, int64_t assigned_gib) {
  placement::GpuState g;
  g.uuid[0] = static_cast<uint8_t>(index + 1);
  g.index = index;
  g.total = Bytes(total_gib << 30);
  g.assigned = Bytes(assigned_gib << 30);
  return g;
}
Waiter waiter(uint64_t id, int64_t gib) {
  Waiter w;
  w.id = id;
  w.request.memory = Bytes(gib << 30);
  return w;
}

TEST(WaitQueue, ASmallLaterRequestDoesNotOvertake) {
  WaitQueue queue;
  queue.add(waiter(1, 20));
  queue.add(waiter(2, 2));
  EXPECT_FALSE(queue.next({gpu(0, 24, 10)}, placement::best_fit())) << "14 are free: enough for the second alone";
  auto first = queue.next({gpu(0, 24, 4)}, placement::best_fit());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->id, 1u);
  queue.remove(1);
  EXPECT_EQ(queue.next({gpu(0, 24, 20)}, placement::best_fit())->id, 2u);
}

TEST(WaitQueue, AGpuThatNoEarlierRequestCouldUseStaysOpen) {
  WaitQueue queue;
  queue.add(waiter(1, 60));
  queue.add(waiter(2, 2));
  auto admitted = queue.next({gpu(0, 80, 40), gpu(1, 24, 0)}, placement::best_fit());
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->id, 2u);
  EXPECT_EQ(admitted->parts[0].uuid[0], 2);
}

TEST(WaitQueue, PositionsCloseUp) {
  WaitQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) queue.add(waiter(id, 1));
  EXPECT_EQ(queue.position(3), 3u);
  queue.remove(2);
  EXPECT_EQ(queue.position(3), 2u);
  EXPECT_EQ(queue.position(2), 0u);
}

}  // namespace
}  // namespace kvram::node
