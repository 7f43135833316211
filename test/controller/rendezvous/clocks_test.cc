// Clocks of two hosts: the estimate from given round trips, and real ones over a link.
#include "controller/rendezvous/clocks.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/base/check.h"

namespace rueda {
namespace {

// A round trip that is asked at `asked` of ours, takes `there` and `back` on its way and `inside`
// at the other end, whose clock is ahead of ours by `ahead`.
ClockSample Sample(Nanos asked, Nanos there, Nanos inside, Nanos back, Nanos ahead) {
  const Nanos received = asked + there;
  return {asked, received + ahead, received + inside + ahead, received + inside + back};
}

TEST(Clocks, EqualWaysGiveTheOffsetItself) {
  for (const Nanos ahead : {Nanos{0}, Nanos{5}, -7 * kSecond, 1'000'000 * kSecond}) {
    const ClockOffset estimate = EstimateOffset({Sample(1'000, 100, 30, 100, ahead)});
    EXPECT_EQ(estimate.offset, ahead);
    EXPECT_EQ(estimate.uncertainty, 100);
  }
}

TEST(Clocks, UnequalWaysAreWithinTheUncertainty) {
  for (const auto& [there, back] :
       std::vector<std::pair<Nanos, Nanos>>{{0, 200}, {200, 0}, {50, 151}, {1, 0}, {0, 0}}) {
    const ClockOffset estimate = EstimateOffset({Sample(0, there, 1'000'000, back, 12'345)});
    EXPECT_LE(std::abs(estimate.offset - 12'345), estimate.uncertainty) << there << ", " << back;
    EXPECT_EQ(estimate.uncertainty, (there + back + 1) / 2) << "however long it took inside";
  }
}

TEST(Clocks, TheQuickestRoundTripWins) {
  const ClockOffset estimate = EstimateOffset({
      Sample(0, 5'000, 10, 100, 777),
      Sample(10'000, 30, 90'000, 30, 777),  // slow inside, and quick on its way
      Sample(20'000, 40, 10, 40, 777),
      Sample(30'000, 0, 10, 900, 777),
  });
  EXPECT_EQ(estimate.offset, 777);
  EXPECT_EQ(estimate.uncertainty, 30);
}

// Two ends of a link in one process, whose clocks are one.
struct Ends {
  explicit Ends(Rank asker) {
    int fds[2];
    RUEDA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    SessionScope scope;
    scope.job = "clocks";
    scope.membership = 1;
    asking = Link::Client(UniqueFd(fds[0]), scope, asker, 0);
    answering = Link::Server(UniqueFd(fds[1]), scope, 0);
  }
  std::unique_ptr<Link> asking, answering;
};

class Links : public ::testing::Test {
 protected:
  const Nanos deadline_ = MonotonicNow() + 60 * kSecond;
  Ends ends_{1};
  std::unique_ptr<Link>&asking_ = ends_.asking, &answering_ = ends_.answering;
};

TEST_F(Links, CompareClocksWithinTheUncertainty) {
  std::thread other([&] {
    EXPECT_TRUE(WaitEstablished(answering_.get(), deadline_).ok());
    EXPECT_TRUE(AnswerClocks({answering_.get()}, deadline_).ok());
  });
  EXPECT_TRUE(WaitEstablished(asking_.get(), deadline_).ok());
  const absl::StatusOr<ClockOffset> found = CompareClocks(asking_.get(), deadline_);
  other.join();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->uncertainty, 0);
  EXPECT_LE(std::abs(found->offset), found->uncertainty);
}

TEST_F(Links, NobodyGoesOnBeforeAllHaveCompared) {
  Ends second(2);
  std::thread answerer([&] {
    for (Link* link : {answering_.get(), second.answering.get()}) {
      EXPECT_TRUE(WaitEstablished(link, deadline_).ok());
    }
    EXPECT_TRUE(AnswerClocks({answering_.get(), second.answering.get()}, deadline_).ok());
  });
  std::atomic<bool> has_begun = false;
  std::thread first([&] {
    EXPECT_TRUE(WaitEstablished(asking_.get(), deadline_).ok());
    EXPECT_TRUE(CompareClocks(asking_.get(), deadline_).ok());
    EXPECT_TRUE(has_begun);
  });
  EXPECT_TRUE(WaitEstablished(second.asking.get(), deadline_).ok());
  SleepFor(50 * kMillisecond);  // time for the first to be wrong
  has_begun = true;
  EXPECT_TRUE(CompareClocks(second.asking.get(), deadline_).ok());
  first.join();
  answerer.join();
}

TEST_F(Links, TheSilenceOfOneDoesNotHoldUpTheAnswersToAnother) {
  Ends silent(2);
  std::thread answerer([&] {
    for (Link* link : {silent.answering.get(), answering_.get()}) {
      EXPECT_TRUE(WaitEstablished(link, deadline_).ok());
    }
    EXPECT_TRUE(
        absl::IsUnavailable(AnswerClocks({silent.answering.get(), answering_.get()}, deadline_)));
  });
  EXPECT_TRUE(WaitEstablished(silent.asking.get(), deadline_).ok());
  EXPECT_TRUE(WaitEstablished(asking_.get(), deadline_).ok());
  asking_->Send(FrameType::kClock, "");
  ClockSample sample;
  const absl::StatusOr<Link::Received> answer =
      WaitFrame(asking_.get(), FrameType::kClock, deadline_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(UnpackReading(answer->frame.payload, &sample).ok());
  silent.asking.reset();
  answerer.join();
}

TEST_F(Links, AnOffsetIsPassedOn) {
  std::thread other([&] {
    EXPECT_TRUE(WaitEstablished(answering_.get(), deadline_).ok());
    SendOffset(answering_.get(), {-5 * kSecond, 1'234});
    EXPECT_TRUE(WaitFlushed(answering_.get(), deadline_).ok());
  });
  EXPECT_TRUE(WaitEstablished(asking_.get(), deadline_).ok());
  const absl::StatusOr<ClockOffset> found = WaitOffset(asking_.get(), deadline_);
  other.join();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->offset, -5 * kSecond);
  EXPECT_EQ(found->uncertainty, 1'234);
}

TEST_F(Links, NonsenseIsRefused) {
  std::thread other([&] {
    EXPECT_TRUE(WaitEstablished(answering_.get(), deadline_).ok());
    SendOffset(answering_.get(), {INT64_MIN, 0});
    SendOffset(answering_.get(), {INT64_MIN, INT64_MAX});  // a reading has the same two fields
    EXPECT_TRUE(WaitFlushed(answering_.get(), deadline_).ok());
  });
  EXPECT_TRUE(WaitEstablished(asking_.get(), deadline_).ok());
  EXPECT_TRUE(absl::IsDataLoss(WaitOffset(asking_.get(), deadline_).status()));
  EXPECT_TRUE(absl::IsDataLoss(CompareClocks(asking_.get(), deadline_).status()));
  other.join();
}

}  // namespace
}  // namespace rueda
