// Deadlines. Each test's own thread.
#include "core/base/clock.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

TEST(Clock, NeverGoesBack) {
  Nanos last = MonotonicNow();
  for (int i = 0; i < 10'000; ++i) {
    const Nanos now = MonotonicNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, DeadlinesSaturateAtForever) {
  EXPECT_EQ(DeadlineAfter(5, 7), 12);
  EXPECT_EQ(DeadlineAfter(5, 0), 5);
  EXPECT_EQ(DeadlineAfter(1, kForever), kForever);
  EXPECT_EQ(DeadlineAfter(0, kForever), kForever);
  EXPECT_EQ(DeadlineAfter(kForever, 1), kForever);
  EXPECT_EQ(DeadlineAfter(kForever - 1, 1), kForever);
}

TEST(Clock, APollNeverEndsBeforeItsTimeAndNeverOverflows) {
  EXPECT_EQ(PollTimeoutMs(kForever), -1);
  EXPECT_EQ(PollTimeoutMs(0), 0);
  EXPECT_EQ(PollTimeoutMs(-5), 0);
  EXPECT_EQ(PollTimeoutMs(INT64_MIN), 0);
  EXPECT_EQ(PollTimeoutMs(1), 1);
  EXPECT_EQ(PollTimeoutMs(3 * kMillisecond), 3);
  EXPECT_EQ(PollTimeoutMs(3 * kMillisecond + 1), 4);
  EXPECT_EQ(PollTimeoutMs(kForever - 1), 900'000);
}

}  // namespace
}  // namespace rueda
