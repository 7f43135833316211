// When a rank that leads nobody wakes its leader.
#include "controller/negotiation/host_tally.h"

#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

constexpr TensorId kId = 1u << 16;         // the first slot's first
constexpr TensorId kOther = 1u << 16 | 1;  // the second slot's
constexpr TensorId kLater = 2u << 16;      // the first slot's second

// Writers 0 and 1 of the log are ranks 2 and 3 of four.
class ATally : public ::testing::Test {
 protected:
  bool Announces(int writer, const SpecPtr& spec) {
    Announcement announcement;
    announcement.spec = spec;
    return tally_.Step(writer, {writer + 2, Announced{announcement}});
  }
  bool Waits(int writer, TensorId id) { return tally_.Step(writer, {writer + 2, Waited{id, 0}}); }
  ProcessSetTable sets_{4, std::vector<std::vector<Rank>>{{0, 2}}};
  HostTally tally_{std::vector<Rank>{2, 3}, &sets_};
};

TEST_F(ATally, LeaderIsNeededWhenAllHaveAnnounced) {
  tally_.Apply(Define{kId, Named("a")});
  for (int use = 0; use < 3; ++use) {
    EXPECT_FALSE(tally_.Announces(1, kId, false)) << use;
    EXPECT_TRUE(tally_.Announces(0, kId, false)) << use;
  }
}

TEST_F(ATally, FirstUseCountsTogetherWithTheId) {
  EXPECT_FALSE(Announces(0, Named("a")));
  tally_.Apply(Define{kId, Named("a")});
  EXPECT_TRUE(tally_.Announces(1, kId, false));
}

// Of one name two signatures: rank 0 has to hear of it.
TEST_F(ATally, MismatchCountsAsOne) {
  tally_.Apply(Define{kId, Named("a", {1})});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  EXPECT_TRUE(Announces(1, Named("a", {2})));
}

TEST_F(ATally, OnlyMembersAreWaitedFor) {
  EXPECT_TRUE(Announces(0, MakeSpec(1, "a", Float32({1})))) << "rank 3 is not in set 1";
}

TEST_F(ATally, UnnamedAreWholeOneByOne) {
  tally_.Apply(Define{kId, Named("", {1})});
  tally_.Apply(Define{kOther, Named("", {2})});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  EXPECT_FALSE(tally_.Announces(0, kOther, false));
  EXPECT_TRUE(tally_.Announces(1, kId, false));
  EXPECT_TRUE(tally_.Announces(1, kOther, false));
}

TEST_F(ATally, RejectedIsNotCounted) {
  tally_.Apply(Define{kId, Named("a")});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  tally_.Apply(Reject{Named("a"), 0, {2}, absl::CancelledError("x")});
  EXPECT_FALSE(tally_.Announces(1, kId, false));
  EXPECT_TRUE(tally_.Announces(0, kId, false));
}

TEST_F(ATally, ForgottenIdIsKnownStill) {
  tally_.Apply(Define{kId, Named("a")});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  tally_.Apply(Forget{kId});
  tally_.Apply(Define{kLater, Named("a")});
  EXPECT_TRUE(tally_.Announces(1, kLater, false));
  EXPECT_FALSE(tally_.Announces(1, kId, false)) << "was under way";
  EXPECT_TRUE(tally_.Announces(0, kLater, false));
  EXPECT_TRUE(tally_.Announces(0, 3u << 16, false)) << "nobody knows that one: the leader says so";
}

TEST_F(ATally, FirstWaitOfWhatWasPassedOnIsNews) {
  tally_.Apply(Define{kId, Named("a")});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  EXPECT_FALSE(Waits(0, kId)) << "held still";
  EXPECT_TRUE(tally_.Announces(1, kId, false));
  EXPECT_FALSE(Waits(1, kId)) << "one waits already";
  tally_.Announces(0, kId, false);
  tally_.Announces(1, kId, false);
  EXPECT_TRUE(Waits(1, kId));
  EXPECT_FALSE(Waits(0, kId));
}

// Nothing is held back any more.
TEST_F(ATally, LeaderHearsEverythingOnceSomebodyHasJoinedOrLeft) {
  tally_.Apply(Define{kId, Named("a")});
  EXPECT_TRUE(Announces(1, MakeSpec(kWorldSet, "", OfKind(OpKind::kJoin))));
  EXPECT_TRUE(tally_.Announces(0, kId, false));
  tally_.Apply(Joined{kWorldSet, 2, 0});
  EXPECT_FALSE(tally_.Announces(0, kId, false));
  EXPECT_TRUE(tally_.Step(1, {3, Leave{}}));
  EXPECT_TRUE(tally_.Announces(0, kId, false));
}

}  // namespace
}  // namespace rueda::testing
