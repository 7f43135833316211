// Who speaks for a host: what it holds back and what it passes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using AnAggregator = OnAHost;

constexpr TensorId kId = 1u << 16;  // the first slot's first

TEST_F(AnAggregator, PassesOnWhatIsCompleteOnItsHost) {
  Step(2, Named("a"));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step(3, Named("a"));
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3));
}

TEST_F(AnAggregator, PassesOnWhatIsIncompleteForLong) {
  Step(2, Named("a"));
  EXPECT_EQ(aggregator_.CheckDeadlines(0, &out_), kSecond);
  EXPECT_THAT(PassedOn(), IsEmpty());
  aggregator_.CheckDeadlines(kSecond, &out_);
  EXPECT_THAT(PassedOn(), ElementsAre(2));
  // The other one then goes straight through, and the name starts afresh.
  Step(3, Named("a"), 2 * kSecond);
  EXPECT_THAT(PassedOn(), ElementsAre(3));
  Step(2, Named("a"), 2 * kSecond);
  EXPECT_THAT(PassedOn(), IsEmpty());
}

TEST_F(AnAggregator, NameIsUsableAgainAfterTheRootRejectedAPart) {
  Step(2, Named("a"));
  aggregator_.CheckDeadlines(kSecond, &out_);
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
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3)) << "what was rejected is not held";
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

TEST_F(AnAggregator, SpeaksForAllOnceAllHaveAnnounced) {
  ASSERT_TRUE(aggregator_.Apply(Define{kId, Named("a")}).ok());
  Announcement announcement;
  announcement.id = kId;
  announcement.done = 65'535;
  Step({3, Announced{announcement}});
  announcement.done = 1;  // a little more
  Step({2, Announced{announcement}});
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].rank, 2);
  EXPECT_EQ(out_[0].speaks_for, SpeaksFor::kHost);
  const Announcement& together = std::get<Announced>(out_[0].what).announcement;
  EXPECT_EQ(together.id, kId);
  EXPECT_EQ(together.done, 1);
  EXPECT_FALSE(together.waited);
}

// Then each says it for itself.
TEST_F(AnAggregator, SpeaksForNobodyWhoseWordsDiffer) {
  Step(2, Named("a", {1}));
  Step(3, Named("a", {2}));
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_EQ(out_[0].speaks_for, SpeaksFor::kRank);
  out_.clear();
  Announcement scaled;
  scaled.spec = Named("b");
  scaled.extras.scaling.prescale = 0.5;
  Step({2, Announced{scaled}});
  scaled.extras.scaling.prescale = 0.25;
  Step({3, Announced{scaled}});
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_EQ(std::get<Announced>(out_[0].what).announcement.extras.scaling.prescale, 0.5);
  EXPECT_EQ(std::get<Announced>(out_[1].what).announcement.extras.scaling.prescale, 0.25);
}

// The first wait closes a batch. That all wait is said once; that some do, when nothing moves.
TEST_F(AnAggregator, PassesOnWaitsOnceAndForAll) {
  ASSERT_TRUE(aggregator_.Apply(Define{kId, Named("a")}).ok());
  Announcement announcement;
  announcement.id = kId;
  for (const Rank rank : {2, 3}) Step({rank, Announced{announcement}});
  out_.clear();
  Step({3, Waited{kId, 0}});
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].rank, 3);
  Step({3, Waited{kId, 0}});
  EXPECT_EQ(out_.size(), 1u);
  Step({2, Waited{kId, 0}});
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_EQ(out_[1].rank, 2);
  EXPECT_EQ(out_[1].speaks_for, SpeaksFor::kHost);
  out_.clear();
  EXPECT_EQ(aggregator_.CheckDeadlines(10 * kSecond, &out_), kForever);
  EXPECT_THAT(out_, IsEmpty());
  // Once it is ordered, a wait that was under way concerns the batch alone.
  Order order;
  order.batch.push_back({kId});
  ASSERT_TRUE(aggregator_.Apply(order).ok());
  Step({2, Waited{kId, 0}});
  EXPECT_THAT(PassedOn(), ElementsAre(2));
}

TEST_F(AnAggregator, SaysWhoWaitsWhenNothingMoves) {
  ASSERT_TRUE(aggregator_.Apply(Define{kId, Named("a")}).ok());
  Announcement announcement;
  announcement.id = kId;
  announcement.waited = true;
  Step({2, Announced{announcement}});
  announcement.waited = false;
  Step({3, Announced{announcement}});
  EXPECT_TRUE(std::get<Announced>(out_.at(0).what).announcement.partly);
  out_.clear();
  aggregator_.CheckDeadlines(kSecond, &out_);
  EXPECT_THAT(PassedOn(), ElementsAre(2));
  aggregator_.CheckDeadlines(2 * kSecond, &out_);
  EXPECT_THAT(PassedOn(), IsEmpty()) << "said already";
}

// Hosts {0, 1}, {2, 3} and {4, 5}, each below the one before.
class ASubtree : public ::testing::Test {
 protected:
  ControlEvent Says(Rank rank, SpeaksFor speaks_for, bool waited = false) {
    Announcement announcement;
    announcement.spec = Named("a");
    announcement.waited = waited;
    return {rank, Announced{announcement}, speaks_for};
  }
  LeaderTree leaders_{std::vector<std::vector<Rank>>{{0, 1}, {2, 3}, {4, 5}}, 1};
  Aggregator aggregator_{leaders_, 2, SpeaksFor::kSubtree, kSecond};
  std::vector<ControlEvent> out_;
};

TEST_F(ASubtree, HasOneVoice) {
  ASSERT_TRUE(aggregator_.Step(Says(2, SpeaksFor::kHost), 0, &out_).ok());
  EXPECT_THAT(out_, IsEmpty());
  ASSERT_TRUE(aggregator_.Step(Says(4, SpeaksFor::kHost, true), 0, &out_).ok());
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].rank, 2);
  EXPECT_EQ(out_[0].speaks_for, SpeaksFor::kSubtree);
  EXPECT_TRUE(std::get<Announced>(out_[0].what).announcement.partly) << "ranks 2 and 3 do not wait";
}

TEST_F(ASubtree, PassesOnWhatItHasWhenOthersAreLate) {
  ASSERT_TRUE(aggregator_.Step(Says(4, SpeaksFor::kHost), 0, &out_).ok());
  ASSERT_TRUE(aggregator_.Step(Says(3, SpeaksFor::kRank), 0, &out_).ok());
  aggregator_.CheckDeadlines(kSecond, &out_);
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_EQ(out_[0].speaks_for, SpeaksFor::kHost);
  EXPECT_EQ(out_[1].rank, 3);
  ASSERT_TRUE(aggregator_.Step(Says(2, SpeaksFor::kRank), 2 * kSecond, &out_).ok());
  EXPECT_EQ(out_.size(), 3u);
}

TEST_F(ASubtree, HearsOnlyThoseBelow) {
  EXPECT_FALSE(aggregator_.Step(Says(0, SpeaksFor::kHost), 0, &out_).ok());
  EXPECT_FALSE(aggregator_.Step(Says(5, SpeaksFor::kHost), 0, &out_).ok()) << "no leader";
  EXPECT_FALSE(aggregator_.Step(Says(2, SpeaksFor::kSubtree), 0, &out_).ok()) << "that is its own";
  Aggregator host(leaders_, 4, SpeaksFor::kHost, kSecond);
  EXPECT_FALSE(host.Step(Says(4, SpeaksFor::kHost), 0, &out_).ok()) << "in a log each says his own";
}

TEST_F(AnAggregator, WaitRidesInTheHeldAnnouncement) {
  ASSERT_TRUE(aggregator_.Apply(Define{(1u << 16) | 0, Named("a")}).ok());
  Announcement announcement;
  announcement.id = (1u << 16) | 0;
  Step({2, Announced{announcement}});
  Step({2, Waited{announcement.id, 0}});
  Step({3, Announced{announcement}});
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_TRUE(std::get<Announced>(out_[0].what).announcement.waited);
  EXPECT_TRUE(std::get<Announced>(out_[0].what).announcement.partly);
}

// What is asked of rank 0 comes behind what it must know to answer.
TEST_F(OnAHost, PassesOnWhatItHoldsWithAQuestion) {
  Step(3, Named("w"));
  EXPECT_TRUE(PassedOn().empty());
  Step({3, Asked{}});
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Announced>(out_[0].what));
  EXPECT_TRUE(std::holds_alternative<Asked>(out_[1].what));
}

// And on another host, which has not been asked, when somebody has been told.
TEST_F(OnAHost, PassesOnWhatItHoldsOnceSomebodyWasToldWhoIsMissing) {
  Step(3, Named("w"));
  EXPECT_TRUE(PassedOn().empty());
  aggregator_.CheckDeadlines(0, &out_);
  EXPECT_TRUE(PassedOn().empty());
  ASSERT_TRUE(aggregator_.Apply(Told{0, Named("w"), 0, "missing: rank 3"}).ok());
  aggregator_.CheckDeadlines(0, &out_);
  EXPECT_EQ(PassedOn(), std::vector<Rank>{3});
}

// The records of operations under way are used again, in another order.
TEST(Aggregator, KeepsTheOrderOfARanksUnnamedOperations) {
  for (const bool by_join : {false, true}) {
    Aggregator aggregator(TwoHosts(), 2, SpeaksFor::kHost, kSecond);
    std::vector<ControlEvent> out;
    const auto step = [&](Rank rank, const SpecPtr& spec) {
      Announcement announcement;
      announcement.spec = spec;
      ASSERT_TRUE(aggregator.Step({rank, Announced{announcement}}, 0, &out).ok());
    };
    for (const char* name : {"a", "b", "c"}) step(2, Named(name));
    for (const char* name : {"a", "b", "c"}) step(3, Named(name));
    out.clear();
    Order order;
    for (TensorId slot = 0; slot < 3; ++slot) {
      const TensorId id = (1u << 16) | slot;
      ASSERT_TRUE(aggregator.Apply(Define{id, Named(std::string(1, 'a' + slot))}).ok());
      order.batch.push_back({id});
    }
    ASSERT_TRUE(aggregator.Apply(order).ok());
    for (int64_t i = 0; i < 3; ++i) step(2, Named("", {i}));
    if (by_join) {
      step(3, MakeSpec(kWorldSet, "", OfKind(OpKind::kJoin)));
    } else {
      aggregator.CheckDeadlines(kSecond, &out);
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
