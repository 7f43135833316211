// A rank's connections over real sockets, with a peer that sends what it likes.
#include "controller/runtime/connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "core/base/doorbell.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

const SessionScope kScope = {"secret", "job", 1};
constexpr Rank kPeer = 1;

class ConnectionsTest : public ::testing::Test, public Connections::Listener {
 protected:
  ConnectionsTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    peer_ = Link::Client(UniqueFd(fds[0]), kScope, kPeer, 0);
    links_.push_back({LinkRole::kParent, Link::Server(UniqueFd(fds[1]), kScope, 0)});
    while (!peer_->established() || !links_[0].link->established()) {
      EXPECT_TRUE(peer_->OnWritable().ok() && links_[0].link->OnWritable().ok());
      EXPECT_TRUE(peer_->OnReadable().ok() && links_[0].link->OnReadable().ok());
    }
    bell_ = *Doorbell::Create();
    absl::StatusOr<WaitPoint> point = WaitPoint::Create(&bell_, &bell_);
    EXPECT_TRUE(point.ok()) << point.status();
    wait_point_.emplace(*std::move(point));
    connections_.emplace(&links_, &*wait_point_, Nanos{0}, 1, this);
    EXPECT_TRUE(connections_->Open(board_->bell_fd()).ok());
  }

  bool goes_on() const override { return goes_on_; }
  bool waiting() const override { return false; }
  void OnFailureTold(Rank peer, Failure failure) override {
    EXPECT_EQ(peer, kPeer);
    told_.push_back(std::move(failure));
    goes_on_ = false;
  }
  void OnLinkLost(Rank peer, const absl::Status&) override { lost_.push_back(peer); }
  void OnNonsense(Rank, const absl::Status& what) override {
    nonsense_.push_back(std::string(what.message()));
  }
  void OnWatched(std::optional<Watch::Lost>) override { ++watched_; }

  // The peer's words, and a turn.
  void Hear(FrameType type, absl::string_view payload) {
    peer_->Send(type, payload);
    EXPECT_TRUE(peer_->OnWritable().ok());
    Pump();
  }
  void Pump() {
    connections_->MayBeReady();
    connections_->Pump(MonotonicNow());
  }
  Frame Received() {
    Link::Received received;
    EXPECT_TRUE(peer_->OnReadable().ok());
    EXPECT_TRUE(peer_->Next(&received));
    return received.frame;
  }

  bool goes_on_ = true;
  const std::unique_ptr<VerdictBoard> board_ = *VerdictBoard::Create(2);
  std::unique_ptr<Link> peer_;
  std::vector<RoleLink> links_;
  Doorbell bell_;
  std::optional<WaitPoint> wait_point_;
  std::optional<Connections> connections_;
  std::vector<Failure> told_;
  std::vector<Rank> lost_;
  std::vector<std::string> nonsense_;
  int watched_ = 0;
};

TEST_F(ConnectionsTest, CarryEventsUpToTheParentAlone) {
  connections_->SendPlanDown("plan");
  connections_->SendEventsUp("events");
  EXPECT_TRUE(connections_->flushed());
  const Frame frame = Received();
  EXPECT_EQ(frame.type, FrameType::kEvents);
  EXPECT_EQ(frame.payload, "events");
}

TEST_F(ConnectionsTest, AFailureIsToldAndNothingAfterIt) {
  peer_->Send(FrameType::kFailure, EncodeFailure({.rank = 2, .cause = "killed"}));
  Hear(FrameType::kEvents, "nobody reads this");
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].rank, 2);
  EXPECT_TRUE(nonsense_.empty());
}

TEST_F(ConnectionsTest, WhatTheParentMayNotSendIsNonsense) {
  Hear(FrameType::kEvents, "");
  Hear(FrameType::kStoreSet, "");
  ASSERT_EQ(nonsense_.size(), 2u);
  EXPECT_THAT(nonsense_[0], HasSubstr("events from one that is not below it"));
  EXPECT_THAT(nonsense_[1], HasSubstr("a store request between threads"));
}

TEST_F(ConnectionsTest, AHeartbeatIsNothingToTell) {
  Hear(FrameType::kHeartbeat, "");
  EXPECT_TRUE(told_.empty() && lost_.empty() && nonsense_.empty());
}

TEST_F(ConnectionsTest, AConnectionIsLostOnce) {
  peer_.reset();
  Pump();
  Pump();
  EXPECT_THAT(lost_, ::testing::ElementsAre(kPeer));
}

TEST_F(ConnectionsTest, TheLastWordsOfAPeerComeBeforeItsEnd) {
  peer_->Send(FrameType::kFailure, EncodeFailure({.rank = 2, .cause = "killed"}));
  EXPECT_TRUE(peer_->OnWritable().ok());
  peer_.reset();
  Pump();
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ConnectionsTest, EndWithTheRecordOfTheFailure) {
  connections_->EndWith("record");
  const Frame frame = Received();
  EXPECT_EQ(frame.type, FrameType::kFailure);
  EXPECT_EQ(frame.payload, "record");
}

// Nobody forgets the launcher's rings; each is heard all the same, and none twice.
TEST_F(ConnectionsTest, AVerdictEndsTheSleepAndIsLookedAtOnce) {
  for (int verdicts = 1; verdicts <= 2; ++verdicts) {
    board_->Write(1, {11, 9});
    wait_point_->Sleep(WaitPoint::Sleeper::kWaiter, kForever);
    for (int i = 0; i < 2; ++i) Pump();
    EXPECT_EQ(watched_, verdicts);
    EXPECT_TRUE(wait_point_->ReadySockets().empty());
  }
  connections_->EndWith("record");
  board_->Write(1, {11, 9});
  EXPECT_TRUE(wait_point_->ReadySockets().empty()) << "its threads would never sleep again";
}

}  // namespace
}  // namespace rueda
