// The timeline's ring: nothing is lost, doubled or torn, whoever pushes.
#include "controller/timeline/timeline_ring.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace rueda {
namespace {

using Ring = TimelineRing<uint64_t>;

// Pushes numbers from `first` on.
bool PushNumbers(Ring& ring, uint32_t count, uint64_t first) {
  return ring.Push(count, [&](uint32_t i, uint64_t& slot) { slot = first + i; });
}

std::vector<uint64_t> PopAll(Ring& ring, uint32_t count_max = 1'000) {
  std::vector<uint64_t> popped;
  ring.Pop(count_max, [&](uint64_t value) { popped.push_back(value); });
  return popped;
}

using Numbers = std::vector<uint64_t>;

TEST(TimelineRing, GivesBackInOrderForManyLaps) {
  Ring ring(4);
  EXPECT_EQ(PopAll(ring), Numbers());
  for (uint64_t lap = 0; lap < 100; ++lap) {
    ASSERT_TRUE(PushNumbers(ring, 2, 3 * lap));
    ASSERT_TRUE(PushNumbers(ring, 1, 3 * lap + 2));
    EXPECT_EQ(ring.used(), 3u);
    ASSERT_EQ(PopAll(ring, 1), Numbers({3 * lap}));
    ASSERT_EQ(PopAll(ring), Numbers({3 * lap + 1, 3 * lap + 2}));
    EXPECT_EQ(ring.used(), 0u);
  }
}

TEST(TimelineRing, TakesAllOrNothing) {
  Ring ring(8);
  EXPECT_FALSE(PushNumbers(ring, 9, 0));
  EXPECT_TRUE(PushNumbers(ring, 6, 0));
  EXPECT_FALSE(PushNumbers(ring, 3, 100));
  EXPECT_TRUE(PushNumbers(ring, 2, 6));
  EXPECT_FALSE(PushNumbers(ring, 1, 100));
  EXPECT_EQ(PopAll(ring), Numbers({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(PushNumbers(ring, 8, 8));
}

TEST(TimelineRing, TheReaderWaitsForWhoeverTookItsPlaceFirst) {
  Ring ring(8);
  ring.Push(1, [&](uint32_t, uint64_t& slot) {
    EXPECT_TRUE(PushNumbers(ring, 1, 2));  // as another thread would in the middle of our push
    EXPECT_EQ(PopAll(ring), Numbers());
    EXPECT_EQ(ring.used(), 2u);
    slot = 1;
  });
  EXPECT_EQ(PopAll(ring), Numbers({1, 2}));
}

// A number says who pushed it (the upper half), and which batch and place of his it is.
TEST(TimelineRing, BatchesOfManyThreadsStayWholeAndInOrder) {
  constexpr uint64_t kThreads = 4, kBatches = 20'000, kBatch = 3;
  Ring ring(64);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ring, t] {
      for (uint64_t b = 0; b < kBatches; ++b) {
        while (!PushNumbers(ring, kBatch, t << 32 | b * kBatch)) std::this_thread::yield();
      }
    });
  }
  Numbers next(kThreads, 0);
  uint64_t left = kThreads * kBatches * kBatch, in_batch = 0, thread = 0;
  while (left > 0) {
    const uint32_t popped = ring.Pop(7, [&](uint64_t value) {
      if (in_batch > 0) {
        EXPECT_EQ(value >> 32, thread) << "another's in the middle of a batch";
      }
      thread = value >> 32;
      in_batch = (in_batch + 1) % kBatch;
      ASSERT_LT(thread, kThreads);
      EXPECT_EQ(value & 0xFFFFFFFF, next[thread]++);
    });
    left -= popped;
    if (popped == 0) std::this_thread::yield();
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(ring.used(), 0u);
}

}  // namespace
}  // namespace rueda
