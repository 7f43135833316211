// Ranks of one host that meet over unix sockets, where somebody else has the name already.
#include "controller/rendezvous/unix_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/bus/socket.h"
#include "test/controller/rendezvous/offer.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kLogBytes = 1 << 16;

class UnixMeetingTest : public ::testing::Test {
 protected:
  // Another job's door: it has the name of this one's rank 0, and answers.
  void SetUp() override {
    absl::StatusOr<UniqueFd> listener = ListenUnix(MeetingSocketName(scope_, "0"));
    ASSERT_TRUE(listener.ok()) << listener.status();
    other_ = *std::move(listener);
  }

  absl::StatusOr<Neighbourhood> Introduce(std::vector<Rank> ranks) {
    UnixMeeting meeting(scope_, 0, static_cast<int>(ranks.size()));
    return meeting.Introduce(ranks, 0, MakeOffer(), kLogBytes, MonotonicNow() + kSecond);
  }

  SessionScope scope_{"", "unix_meeting_test", 1};
  UniqueFd other_;
};

// Programs that no launcher has started have one name, and nothing to do with each other.
TEST_F(UnixMeetingTest, ARankAloneNeedsNoName) {
  const absl::StatusOr<Neighbourhood> alone = Introduce({0});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->arenas.size(), 1U);
  EXPECT_EQ(alone->bells.size(), 1U);
}

TEST_F(UnixMeetingTest, AJobThatAnotherHasTheNameOfSaysSo) {
  const absl::StatusOr<Neighbourhood> two = Introduce({0, 1});
  EXPECT_EQ(two.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(two.status().message(), HasSubstr("a job of the same name, 'unix_meeting_test'"));
}

}  // namespace
}  // namespace rueda
