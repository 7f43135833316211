// Where a rank's threads sleep: bells and sockets, real ones.
#include "controller/runtime/wait_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Sleeper = WaitPoint::Sleeper;

class WaitPointTest : public ::testing::Test {
 protected:
  WaitPointTest() : background_(*Doorbell::Create()), waiter_(*Doorbell::Create()) {
    absl::StatusOr<WaitPoint> point = WaitPoint::Create(&background_, &waiter_);
    EXPECT_TRUE(point.ok()) << point.status();
    point_.emplace(*std::move(point));
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours_.reset(fds[0]);
    theirs_.reset(fds[1]);
    EXPECT_TRUE(point_->AddSocket(ours_.get()).ok());
  }

  Doorbell background_;
  Doorbell waiter_;
  UniqueFd ours_;
  UniqueFd theirs_;
  std::optional<WaitPoint> point_;
};

TEST_F(WaitPointTest, ARingEndsTheSleepOfItsSleeperAndIsForgotten) {
  background_.Ring();
  point_->Sleep(Sleeper::kBackground, kForever);
  waiter_.Ring();
  point_->SleepOnBell(Sleeper::kWaiter, kForever);
  // Both are forgotten: these sleep until their time is up.
  for (const Sleeper sleeper : {Sleeper::kBackground, Sleeper::kWaiter}) {
    const Nanos deadline = MonotonicNow() + kMillisecond;
    point_->Sleep(sleeper, deadline);
    EXPECT_GE(MonotonicNow(), deadline);
  }
}

TEST_F(WaitPointTest, ASocketEndsTheSleepOfBoth) {
  ASSERT_EQ(write(theirs_.get(), "x", 1), 1);
  point_->Sleep(Sleeper::kBackground, kForever);
  point_->Sleep(Sleeper::kWaiter, kForever);
  EXPECT_THAT(point_->ReadySockets(), ElementsAre(ours_.get()));
}

TEST_F(WaitPointTest, ASleepOnTheBellIsNotEndedByASocket) {
  ASSERT_EQ(write(theirs_.get(), "x", 1), 1);
  const Nanos deadline = MonotonicNow() + kMillisecond;
  point_->SleepOnBell(Sleeper::kBackground, deadline);
  EXPECT_GE(MonotonicNow(), deadline);
}

TEST_F(WaitPointTest, SocketsAreReadyToBeWrittenOnlyIfThatIsAsked) {
  EXPECT_THAT(point_->ReadySockets(), IsEmpty());
  point_->WantWrite(ours_.get(), true);
  EXPECT_THAT(point_->ReadySockets(), ElementsAre(ours_.get()));
  point_->WantWrite(ours_.get(), false);
  EXPECT_THAT(point_->ReadySockets(), IsEmpty());
}

TEST_F(WaitPointTest, ASocketThatIsRemovedIsNeverReady) {
  ASSERT_EQ(write(theirs_.get(), "x", 1), 1);
  point_->RemoveSocket(ours_.get());
  EXPECT_THAT(point_->ReadySockets(), IsEmpty());
  point_->RemoveSocket(-1);  // harmless
}

}  // namespace
}  // namespace rueda
