// The last words of a rank whose start fails when its neighbours may have begun.
#include "controller/rendezvous/start_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

namespace rueda {
namespace {

using ::testing::HasSubstr;

class StartGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    segment_ = Segment::Create(2, 1 << 16).value();
    for (int i = 0; i < 2; ++i) {
      bells_.push_back({Doorbell::Create().value(), Doorbell::Create().value()});
    }
  }
  static Failure Words(absl::string_view cause) {
    Failure words;
    words.rank = 1;
    words.cause = std::string(cause);
    return words;
  }
  static bool Rings(const Doorbell& bell) {
    pollfd wait = {bell.fd(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }
  void ExpectSaid(absl::string_view cause) const {
    EXPECT_THAT(DecodeFailure(segment_->failure()).ToString(), HasSubstr(std::string(cause)));
    for (const Bells& bells : bells_) {
      EXPECT_TRUE(Rings(bells.background));
      EXPECT_TRUE(Rings(bells.waiter));
    }
  }

  std::unique_ptr<Segment> segment_;
  std::vector<Bells> bells_;
};

TEST_F(StartGuardTest, SaysItsWordsWhenItGoes) {
  {
    StartGuard guard(Words("out of memory"), bells_.size());
    guard.Begin(segment_.get(), bells_);
    StartGuard moved = std::move(guard);
    EXPECT_FALSE(segment_->failed());
  }
  ExpectSaid("out of memory");
}

TEST_F(StartGuardTest, SaysBetterWordsAtOnceWhereThereAreSome) {
  StartGuard guard(Words("out of memory"), bells_.size());
  guard.Begin(segment_.get(), bells_);
  guard.Say(Words("no descriptors"));
  ExpectSaid("no descriptors");
}

TEST_F(StartGuardTest, SaysNothingBeforeItBeginsAndAfterItEnds) {
  { const StartGuard idle(Words("out of memory"), bells_.size()); }
  {
    StartGuard guard(Words("out of memory"), bells_.size());
    guard.Begin(segment_.get(), bells_);
    guard.End();
  }
  EXPECT_FALSE(segment_->failed());
  for (const Bells& bells : bells_) EXPECT_FALSE(Rings(bells.background) || Rings(bells.waiter));
}

}  // namespace
}  // namespace rueda
