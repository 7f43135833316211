#include "ops/backend/lane_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "core/base/clock.h"

namespace rueda {
namespace {

TEST(LaneThread, LooksWhileTasksKeepComing) {
  std::atomic<int> looks = 0;
  const Nanos deadline = MonotonicNow() + 20 * kSecond;  // for a thread that never looks
  std::function<void()> again;
  LaneThread thread(
      {.interval = kMillisecond, .busy = [] { return true; }, .look = [&] { ++looks; }});
  again = [&] {
    if (looks < 3 && MonotonicNow() < deadline) thread.Add(again);
  };
  thread.Add(again);
  ASSERT_TRUE(thread.Start().ok());
  while (looks < 3 && MonotonicNow() < deadline) SleepFor(kMillisecond);
  EXPECT_GE(looks, 3);
}

TEST(LaneThread, DoesWhatWasAddedInOrderAndThenItsLastAct) {
  int done = 0;
  int at_end = -1;
  {
    LaneThread thread({.at_end = [&] { at_end = done; }});
    for (int i = 0; i < 100; ++i) {
      thread.Add([&done, i] {
        if (done == i) ++done;
      });
    }
    ASSERT_TRUE(thread.Start().ok());
    ASSERT_TRUE(thread.Start().ok()) << "it runs";
  }
  EXPECT_EQ(done, 100);
  EXPECT_EQ(at_end, 100);
}

// As a communicator's abort closes its library at once, however long it is kept.
TEST(LaneThread, EndsWithoutBeingWaitedFor) {
  std::atomic<bool> ended = false;
  LaneThread thread({.at_end = [&] { ended = true; }});
  ASSERT_TRUE(thread.Start().ok());
  thread.BeginEnd();
  const Nanos deadline = MonotonicNow() + 20 * kSecond;
  while (!ended && MonotonicNow() < deadline) SleepFor(kMillisecond);
  EXPECT_TRUE(ended);
}

TEST(LaneThread, WithoutAThreadThereIsNothingToWaitFor) {
  bool done = false;
  {
    LaneThread thread({.at_end = [&] { done = true; }});
    thread.Add([&] { done = true; });
  }
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace rueda
