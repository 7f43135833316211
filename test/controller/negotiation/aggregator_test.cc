// A host's voice: what it holds back and what it passes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/negotiation/aggregator.h"
#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

// A host of ranks 2 and 3 in a world of four.
TEST(Aggregator, PassesOnWhatIsCompleteOnItsHost) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  Announcement announcement;
  announcement.spec = Named("a");
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  EXPECT_TRUE(out.empty());
  ASSERT_TRUE(aggregator.Step({3, Announced{announcement}}, 0, &out).ok());
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].rank, 2);
  EXPECT_EQ(out[1].rank, 3);
}

TEST(Aggregator, PassesOnWhatIsIncompleteForLong) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  Announcement announcement;
  announcement.spec = Named("a");
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  EXPECT_EQ(aggregator.Look(0, &out), kSecond);
  EXPECT_TRUE(out.empty());
  aggregator.Look(kSecond, &out);
  ASSERT_EQ(out.size(), 1u);
  // The other one then goes straight through, and the name starts afresh.
  ASSERT_TRUE(aggregator.Step({3, Announced{announcement}}, 2 * kSecond, &out).ok());
  ASSERT_EQ(out.size(), 2u);
  out.clear();
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 2 * kSecond, &out).ok());
  EXPECT_TRUE(out.empty());
}

TEST(Aggregator, NameIsUsableAgainAfterTheRootRejectedAPart) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  Announcement announcement;
  announcement.spec = Named("a");
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  aggregator.Look(kSecond, &out);
  ASSERT_EQ(out.size(), 1u);
  ASSERT_TRUE(aggregator.Apply(Reject{Named("a"), 0, {2}, absl::CancelledError("x")}).ok());
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 2 * kSecond, &out).ok());
  EXPECT_EQ(out.size(), 1u) << "held back again";
}

// The leader alone passes on what waits for long; the replicas of the other ranks learn it from the
// rejection.
TEST(Aggregator, NameIsUsableAgainOnRanksThatPassOnNothing) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  Announcement announcement;
  announcement.spec = Named("a");
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
    ASSERT_TRUE(aggregator.Apply(Reject{Named("a"), 0, {2}, absl::CancelledError("x")}).ok());
  }
  EXPECT_TRUE(out.empty());
  ASSERT_TRUE(aggregator.Step({3, Announced{announcement}}, 0, &out).ok());
  EXPECT_TRUE(out.empty());
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  EXPECT_EQ(out.size(), 2u) << "what was rejected is not held";
}

// Nothing that a rank which has left has a part in is held back: it can't become complete.
TEST(Aggregator, HoldsNothingBackForARankThatHasLeft) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  Announcement announcement;
  announcement.spec = Named("a");
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  EXPECT_TRUE(out.empty());
  ASSERT_TRUE(aggregator.Step({3, Leave{}}, 0, &out).ok());
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].rank, 2);
  EXPECT_EQ(out[1].rank, 3);
  announcement.spec = Named("b");
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  EXPECT_EQ(out.size(), 3u);
}

TEST(Aggregator, WaitRidesInTheHeldAnnouncement) {
  Aggregator aggregator({2, 3}, 4, kSecond);
  std::vector<ControlEvent> out;
  ASSERT_TRUE(aggregator.Apply(Define{(1u << 16) | 0, Named("a")}).ok());
  Announcement announcement;
  announcement.id = (1u << 16) | 0;
  ASSERT_TRUE(aggregator.Step({2, Announced{announcement}}, 0, &out).ok());
  ASSERT_TRUE(aggregator.Step({2, Waited{announcement.id, 0}}, 0, &out).ok());
  ASSERT_TRUE(aggregator.Step({3, Announced{announcement}}, 0, &out).ok());
  ASSERT_EQ(out.size(), 2u);
  EXPECT_TRUE(std::get<Announced>(out[0].what).announcement.waited);
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
