// A host's voice: what it holds back and what it passes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using AnAggregator = OnAHost;

TEST_F(AnAggregator, PassesOnWhatIsCompleteOnItsHost) {
  Step(2, Named("a"));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step(3, Named("a"));
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3));
}

TEST_F(AnAggregator, PassesOnWhatIsIncompleteForLong) {
  Step(2, Named("a"));
  EXPECT_EQ(aggregator_.Look(0, &out_), kSecond);
  EXPECT_THAT(PassedOn(), IsEmpty());
  aggregator_.Look(kSecond, &out_);
  EXPECT_THAT(PassedOn(), ElementsAre(2));
  // The other one then goes straight through, and the name starts afresh.
  Step(3, Named("a"), 2 * kSecond);
  EXPECT_THAT(PassedOn(), ElementsAre(3));
  Step(2, Named("a"), 2 * kSecond);
  EXPECT_THAT(PassedOn(), IsEmpty());
}

TEST_F(AnAggregator, NameIsUsableAgainAfterTheRootRejectedAPart) {
  Step(2, Named("a"));
  aggregator_.Look(kSecond, &out_);
  EXPECT_THAT(PassedOn(), ElementsAre(2));
  ASSERT_TRUE(aggregator_.Apply(Reject{Named("a"), 0, {2}, absl::CancelledError("x")}).ok());
  Step(2, Named("a"), 2 * kSecond);
  EXPECT_THAT(PassedOn(), IsEmpty()) << "held back again";
}

// The leader alone passes on what waits for long; the replicas of the other ranks learn it from the
// rejection.
TEST_F(AnAggregator, NameIsUsableAgainOnRanksThatPassOnNothing) {
  for (int round = 0; round < 2; ++round) {
    Step(2, Named("a"));
    ASSERT_TRUE(aggregator_.Apply(Reject{Named("a"), 0, {2}, absl::CancelledError("x")}).ok());
  }
  Step(3, Named("a"));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step(2, Named("a"));
  EXPECT_THAT(PassedOn(), ElementsAre(3, 2)) << "what was rejected is not held";
}

// Nothing that a rank which has left has a part in is held back: it can't become complete.
TEST_F(AnAggregator, HoldsNothingBackForARankThatHasLeft) {
  Step(2, Named("a"));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step({3, Leave{}});
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3));
  Step(2, Named("b"));
  EXPECT_THAT(PassedOn(), ElementsAre(2));
}

TEST_F(AnAggregator, WaitRidesInTheHeldAnnouncement) {
  ASSERT_TRUE(aggregator_.Apply(Define{(1u << 16) | 0, Named("a")}).ok());
  Announcement announcement;
  announcement.id = (1u << 16) | 0;
  Step({2, Announced{announcement}});
  Step({2, Waited{announcement.id, 0}});
  Step({3, Announced{announcement}});
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_TRUE(std::get<Announced>(out_[0].what).announcement.waited);
}

// The records of operations under way are used again, in another order.
TEST(Aggregator, KeepsTheOrderOfARanksUnnamedOperations) {
  for (const bool by_join : {false, true}) {
    Aggregator aggregator({2, 3}, 4, kSecond);
    std::vector<ControlEvent> out;
    const auto step = [&](Rank rank, const SpecPtr& spec) {
      Announcement announcement;
      announcement.spec = spec;
      ASSERT_TRUE(aggregator.Step({rank, Announced{announcement}}, 0, &out).ok());
    };
    for (const char* name : {"a", "b", "c"}) step(2, Named(name));
    for (const char* name : {"a", "b", "c"}) step(3, Named(name));
    out.clear();
    for (int64_t i = 0; i < 3; ++i) step(2, Named("", {i}));
    if (by_join) {
      step(3, MakeSpec(kWorldSet, "", OfKind(OpKind::kJoin)));
    } else {
      aggregator.Look(kSecond, &out);
    }
    ASSERT_GE(out.size(), 3u);
    for (int64_t i = 0; i < 3; ++i) {
      const Announcement& announcement = std::get<Announced>(out[i].what).announcement;
      EXPECT_EQ(*announcement.spec, *Named("", {i})) << i;
    }
  }
}

}  // namespace
}  // namespace rueda::testing
