// When a rank says that it is blocked, by facts and times of the test's. PURE
#include "controller/failure/deadlock_watch.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

constexpr Nanos kLimit = 10 * kSecond;
constexpr Nanos kTick = kSecond / 2;

class DeadlockWatchTest : public ::testing::Test, public DeadlockWatch::Facts {
 protected:
  WaitingThreads::State Threads(Nanos) override {
    ++looks_;
    return threads_;
  }
  bool Moves() override { return moves_; }
  bool IsTraced() override { return traced_; }

  // What the rank says until `until`, looked at when it asks to be and at least every kTick.
  std::vector<Blocked> Until(Nanos until, Nanos step = kTick) {
    std::vector<Blocked> said;
    for (; now_ <= until; now_ = std::min(now_ + step, std::max(watch_.next(), now_ + 1))) {
      if (const auto news = watch_.Check(now_, threads_.since != kForever, *this)) {
        said.push_back(*news);
      }
    }
    return said;
  }
  static std::vector<Blocked::Level> Levels(const std::vector<Blocked>& said) {
    std::vector<Blocked::Level> levels;
    for (const Blocked& each : said) levels.push_back(each.level);
    return levels;
  }
  void WaitSince(Nanos since) { threads_.since = since; }

  using Said = std::vector<Blocked::Level>;
  DeadlockWatch watch_{kLimit};
  WaitingThreads::State threads_;
  int looks_ = 0;
  bool moves_ = false;
  bool traced_ = false;
  Nanos now_ = 0;
};

TEST_F(DeadlockWatchTest, WhoWaitsSaysSoAfterMomentsAndAfterTheLimit) {
  WaitSince(0);
  EXPECT_EQ(Levels(Until(DeadlockWatch::kMoments - 1)), Said{});
  EXPECT_EQ(Levels(Until(kLimit - kSecond)), Said{Blocked::kForMoments});
  EXPECT_EQ(Levels(Until(3 * kLimit)), Said{Blocked::kForTheLimit}) << "once";
}

TEST_F(DeadlockWatchTest, NobodyInsideAWaitIsNotBlocked) {
  EXPECT_EQ(Levels(Until(10 * kLimit)), Said{});
}

TEST_F(DeadlockWatchTest, AWaitThatReturnsIsTakenBack) {
  WaitSince(0);
  EXPECT_EQ(Levels(Until(kSecond)), Said{Blocked::kForMoments});
  threads_.since = kForever;
  EXPECT_EQ(Levels(Until(2 * kSecond)), Said{Blocked::kNot});
}

TEST_F(DeadlockWatchTest, EachEventBeginsAnew) {
  WaitSince(0);
  for (Nanos at = 0; at < 3 * kLimit; at += kLimit - kSecond) {
    for (const Blocked::Level level : Levels(Until(at))) EXPECT_LT(level, Blocked::kForTheLimit);
    EXPECT_EQ(watch_.Move(at), at >= DeadlockWatch::kMoments);
  }
}

TEST_F(DeadlockWatchTest, WhatWasToldIsTakenBackOnceWhenSomethingMoves) {
  WaitSince(0);
  EXPECT_FALSE(watch_.Move(0));
  EXPECT_EQ(Levels(Until(kSecond)), Said{Blocked::kForMoments});
  EXPECT_TRUE(watch_.Move(now_));
  EXPECT_FALSE(watch_.Move(now_));
  EXPECT_EQ(Levels(Until(now_ + kSecond)), Said{Blocked::kForMoments}) << "and said anew";
}

TEST_F(DeadlockWatchTest, LooksNoOftenerThanItMust) {
  WaitSince(0);
  EXPECT_EQ(Levels(Until(kSecond)), Said{Blocked::kForMoments});
  looks_ = 0;
  for (int i = 0; i < 100; ++i) (void)watch_.Check(now_ + i, true, *this);
  EXPECT_LE(looks_, 1);
}

TEST_F(DeadlockWatchTest, WhatIsUnderWayMoves) {
  WaitSince(0);
  moves_ = true;
  EXPECT_EQ(Levels(Until(3 * kLimit)), Said{});
  moves_ = false;
  EXPECT_EQ(Levels(Until(3 * kLimit + kLimit - kSecond)), Said{Blocked::kForMoments});
}

TEST_F(DeadlockWatchTest, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  WaitSince(0);
  EXPECT_EQ(Levels(Until(kSecond)), Said{Blocked::kForMoments});
  now_ += 100 * kLimit;
  EXPECT_EQ(Levels(Until(now_ + kLimit - 3 * kSecond)), Said{});
  EXPECT_EQ(Levels(Until(now_ + 3 * kSecond)), Said{Blocked::kForTheLimit});
}

TEST_F(DeadlockWatchTest, TimeInWhichItIsTracedDoesNotCount) {
  WaitSince(0);
  traced_ = true;
  EXPECT_EQ(Levels(Until(10 * kLimit)), Said{Blocked::kForMoments});
  traced_ = false;
  EXPECT_EQ(Levels(Until(now_ + kLimit - 2 * kSecond)), Said{});
  EXPECT_EQ(Levels(Until(now_ + 3 * kSecond)), Said{Blocked::kForTheLimit});
  traced_ = true;
  EXPECT_EQ(Levels(Until(now_ + kSecond)), Said{Blocked::kForMoments}) << "it is taken back";
}

TEST_F(DeadlockWatchTest, AThreadThatWaitsAtOtherTimesMayComeBack) {
  WaitSince(0);
  threads_.waiter_left = 0;
  EXPECT_EQ(Levels(Until(3 * kLimit - kTick)), Said{});
  EXPECT_EQ(Levels(Until(4 * kLimit)), Said{Blocked::kForMoments}) << "not for ever";
  EXPECT_EQ(Levels(Until(7 * kLimit)), Said{Blocked::kForTheLimit});
}

TEST_F(DeadlockWatchTest, AThreadThatOnlySubmitsMakesTheLimitThreeTimesAsLong) {
  WaitSince(0);
  threads_.other_outside = true;
  EXPECT_EQ(Levels(Until(3 * kLimit - kSecond)), Said{Blocked::kForMoments});
  EXPECT_EQ(Levels(Until(3 * kLimit + kSecond)), Said{Blocked::kForTheLimit});
}

TEST_F(DeadlockWatchTest, AnswersAQuestionOnceAndOnlyWhenItIsSo) {
  WaitSince(0);
  watch_.OnQuestion({7});
  EXPECT_EQ(Levels(Until(kLimit / 2)), Said{Blocked::kForMoments});
  const std::vector<Blocked> said = Until(3 * kLimit);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].level, Blocked::kStill);
  EXPECT_EQ(said[0].question, 7);
  watch_.OnQuestion({8});
  traced_ = true;
  EXPECT_EQ(Levels(Until(now_ + kSecond)), Said{Blocked::kForMoments});
}

TEST_F(DeadlockWatchTest, WithoutALimitItIsOnlyReported) {
  DeadlockWatch watch(0);
  WaitSince(0);
  EXPECT_EQ(watch.Check(kSecond, true, *this)->level, Blocked::kForMoments);
  EXPECT_FALSE(watch.Check(1'000'000 * kSecond, true, *this).has_value());
}

}  // namespace
}  // namespace rueda
