// Ranks that have joined: what goes on without them, what can't, and what it is like afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SpecPtr JoinSpec(SetId set = kWorldSet) {
  return MakeSpec(set, "", OfKind(OpKind::kJoin));
}

SpecPtr SetOp(SetId set, const std::string& name) {
  return MakeSpec(set, name, Float32({4}));
}

TEST(Join, CountsAsAnnouncingEveryAllreduceFromThenOn) {
  Job job(3);
  job.Announce(2, JoinSpec());
  for (const char* name : {"a", "", "b"}) {
    job.Announce(0, Named(name), true);
    EXPECT_THAT(job.Launches(0), IsEmpty()) << name;
    job.Announce(1, Named(name), true);
    const std::vector<Launch> launches = job.Launches(0);
    ASSERT_EQ(launches.size(), 1u) << name;
    EXPECT_THAT(launches[0].absent, ElementsAre(2));
    EXPECT_NE(launches[0].items[0].token, kNoToken);
  }
}

TEST(Join, CompletesWhatOnlyWaitedForTheRankThatJoins) {
  Job job(3);
  for (const char* name : {"a", "b"}) {
    job.Announce(0, Named(name), true);
    job.Announce(1, Named(name), true);
  }
  job.Announce(0, Named("c"), true);
  EXPECT_THAT(job.Batches(), IsEmpty());
  job.Announce(2, JoinSpec());
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0), ElementsAre(1)));
  job.Announce(1, Named("c"), true);
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(2)));
}

TEST(Join, WhoHasJoinedLaunchesTheOthersBatchesWithTheirScaleFactors) {
  Job job(2);
  job.Announce(1, JoinSpec());
  CallExtras extras;
  extras.scaling.prescale = 0.5;
  extras.scaling.postscale = 3;
  job.Announce(0, Named("w"), true, extras);
  const std::vector<Launch> launches = job.Launches(1);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_THAT(launches[0].absent, ElementsAre(1));
  EXPECT_EQ(launches[0].scaling.prescale, 0.5);
  EXPECT_EQ(launches[0].scaling.postscale, 3);
  ASSERT_EQ(launches[0].items.size(), 1u);
  EXPECT_EQ(launches[0].items[0].token, kNoToken);
  EXPECT_EQ(launches[0].items[0].spec->name, "w");
}

TEST(Join, DoesNotTakeBackWhatWasAnnouncedBefore) {
  Job job(2);
  job.Submit(1, Named("mine"));
  job.Announce(1, JoinSpec());
  job.Announce(0, Named("mine"), true);
  const std::vector<Launch> launches = job.Launches(1);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_THAT(launches[0].absent, IsEmpty());
  EXPECT_EQ(launches[0].items[0].token, 0u);
}

TEST(Join, ClosesTheOpenBatch) {
  Job job(2);
  for (const char* name : {"a", "b", "c"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0)));
  job.Announce(1, JoinSpec());
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1, 2)));
}

// Rank 1 announced b before it joined, and not c: the two can't share a batch.
TEST(Join, BatchesHaveOneListOfAbsentRanks) {
  Job job(2);
  for (const char* name : {"busy", "b"}) job.Submit(1, Named(name));
  job.Announce(1, JoinSpec());
  for (const char* name : {"busy", "b", "c", "d"}) job.Announce(0, Named(name));
  job.member(0).MarkWaited(3);
  job.Flush(0);
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
}

Signature WithTensor(OpKind kind, Rank root = -1) {
  Signature signature = OfKind(kind);
  signature.root = root;
  if (TraitsOf(kind).reduces) signature.reduce_op = ReduceOp::kSum;
  if (TraitsOf(kind).tensors()) signature.parts.push_back({DType::kFloat32, {4}});
  return signature;
}

TEST(Join, OtherKindsGoOnWithoutThoseWhoHaveJoined) {
  for (const Signature& signature :
       {OfKind(OpKind::kBarrier), WithTensor(OpKind::kBroadcast, 0),
        WithTensor(OpKind::kReducescatter), WithTensor(OpKind::kReduce, 2)}) {
    for (const char* name : {"x", ""}) {
      Job job(4);
      const SpecPtr spec = MakeSpec(kWorldSet, name, signature);
      job.Announce(0, spec);
      job.Announce(3, JoinSpec());
      job.Announce(1, JoinSpec());
      EXPECT_THAT(job.Launches(0), IsEmpty()) << "rank 2 is waited for";
      job.Announce(2, spec);
      for (const Rank rank : {0, 1, 2, 3}) {
        const std::vector<Launch> launches = job.Launches(rank);
        ASSERT_EQ(launches.size(), 1u) << OpKindName(signature.kind);
        EXPECT_THAT(launches[0].absent, ElementsAre(1, 3));
        EXPECT_EQ(launches[0].items[0].token == kNoToken, rank % 2 == 1);
      }
    }
  }
}

CallExtras Rows(std::vector<int64_t> dims) {
  CallExtras extras;
  extras.first_dims = std::move(dims);
  return extras;
}

TEST(Join, WhoHasJoinedBringsNoRows) {
  struct Case {
    Signature signature;
    std::vector<int64_t> of_rank_0, of_rank_2, planned;
  };
  Signature two_parts = WithTensor(OpKind::kAllgather);
  two_parts.parts.push_back({DType::kInt64, {1}});
  two_parts.part_names = {"a", "b"};
  const Case kCases[] = {
      {WithTensor(OpKind::kAllgather), {5}, {7}, {5, 0, 7}},
      {two_parts, {5, 1}, {7, 2}, {5, 1, 0, 0, 7, 2}},
      {WithTensor(OpKind::kGather, 2), {5}, {7}, {5, 0, 7}},
      {WithTensor(OpKind::kAlltoall), {6}, {9}, {6, 0, 9}},
      {WithTensor(OpKind::kAlltoall), {6}, {1, 2, 3}, {2, 2, 2, 0, 0, 0, 1, 2, 3}},
      {WithTensor(OpKind::kScatter, 0), {6}, {}, {2, 2, 2}},
  };
  for (const Case& each : kCases) {
    Job job(3);
    const SpecPtr spec = MakeSpec(kWorldSet, "x", each.signature);
    job.Announce(1, JoinSpec());
    job.Announce(0, spec, true, Rows(each.of_rank_0));
    job.Announce(2, spec, true, Rows(each.of_rank_2));
    for (const Rank rank : {0, 1, 2}) {
      const std::vector<Launch> launches = job.Launches(rank);
      ASSERT_EQ(launches.size(), 1u) << OpKindName(each.signature.kind);
      EXPECT_EQ(launches[0].items[0].first_dims, each.planned);
      EXPECT_THAT(launches[0].absent, ElementsAre(1));
    }
  }
}

// Each says which rank is missed, on all who announced it.
TEST(Join, WhatNeedsARankThatHasJoinedFailsOnTheOthers) {
  Signature add = OfKind(OpKind::kAddProcessSet);
  add.ranks = {0};
  const std::pair<Signature, const char*> kCases[] = {
      {WithTensor(OpKind::kBroadcast, 1), "rank 1 has joined and can't be the root until all"},
      {WithTensor(OpKind::kReduce, 3), "rank 3 has joined and can't be the root until all"},
      {add, "ranks 1, 3 have joined; process sets can be changed when all"}};
  for (const auto& [signature, text] : kCases) {
    for (const char* name : {"x", ""}) {
      Job job(4);
      const SpecPtr spec = MakeSpec(kWorldSet, name, signature);
      job.Announce(0, spec);
      job.Announce(3, JoinSpec());
      job.Announce(1, JoinSpec());
      EXPECT_THAT(job.Failures(0), IsEmpty()) << "rank 2 may announce it";
      job.Announce(2, spec);
      for (const Rank rank : {0, 2}) {
        const std::vector<Rejected> failures = job.Failures(rank);
        ASSERT_EQ(failures.size(), 1u) << OpKindName(signature.kind);
        EXPECT_TRUE(absl::IsFailedPrecondition(failures[0].status));
        EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr(text));
      }
      EXPECT_THAT(job.Failures(1), IsEmpty());
      EXPECT_THAT(job.Failures(3), IsEmpty());
    }
  }
}

TEST(Join, PairsOfOthersGoOnAndThoseWithARankThatHasJoinedFail) {
  Job job(3);
  job.Announce(2, JoinSpec());
  job.Announce(0, Pair("p", 0, 1), true);
  job.Announce(1, Pair("p", 0, 1), true);
  EXPECT_EQ(job.Launches(0).size(), 1u);
  EXPECT_THAT(job.Launches(1).at(0).absent, IsEmpty());
  EXPECT_THAT(job.Launches(2), IsEmpty());
  job.Announce(0, Pair("q", 0, 2), true);
  const std::vector<Rejected> failures = job.Failures(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(std::string(failures[0].status.message()),
              HasSubstr("rank 2 has joined; it sends and receives nothing"));
}

TEST(Join, DecidesAboutWhatOnlyWaitedForTheRankThatJoins) {
  Job job(2);
  job.Announce(0, MakeSpec(kWorldSet, "b", OfKind(OpKind::kBarrier)));
  job.Announce(0, MakeSpec(kWorldSet, "c", WithTensor(OpKind::kBroadcast, 1)));
  job.Announce(1, JoinSpec());
  const std::vector<Action> actions = job.actions(0);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Launch>(actions[0]));
  EXPECT_THAT(std::string(std::get<Rejected>(actions[1]).status.message()),
              HasSubstr("rank 1 has joined"));
}

TEST(Join, EndsForAllWhenTheLastRankComesAndNamesIt) {
  Job job(3);
  for (const Rank rank : {2, 0}) job.Announce(rank, JoinSpec());
  EXPECT_THAT(job.Joins(0), IsEmpty());
  job.Announce(1, JoinSpec());
  for (const Rank rank : {1, 2}) {
    const std::vector<JoinDone> done = job.Joins(rank);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].last, 1);
    EXPECT_EQ(done[0].token, 0u);
  }
}

TEST(Join, UnnamedOperationsAreCountedFromTheStartAgainAfterwards) {
  Job job(2);
  job.Announce(0, Named(""), true);
  job.Announce(1, Named(""), true);
  for (int round = 0; round < 3; ++round) {
    job.Announce(1, JoinSpec());
    for (int i = 0; i <= round; ++i) job.Announce(0, Named(""), true);  // rank 0 goes ahead
    job.Announce(0, JoinSpec());
    job.Batches(0);
    job.Batches(1);
    job.Announce(0, Named(""), true);
    EXPECT_THAT(job.Batches(0), IsEmpty()) << "rank 1 has not announced it";
    job.Announce(1, Named(""), true);
    EXPECT_EQ(job.Batches(0).size(), 1u) << "round " << round;
    EXPECT_EQ(job.Batches(1).size(), 1u) << "round " << round;
  }
}

// The lane is busy, so that what the last join completes is left open behind what is in flight.
TEST(Join, WhatTheLastJoinCompletesIsOrderedBeforeItsEnd) {
  Job job(2);
  for (const Rank rank : {0, 1}) job.Announce(rank, Named("busy"));
  for (const char* name : {"a", ""}) job.Announce(1, Named(name));
  job.Announce(1, JoinSpec());
  job.Announce(0, JoinSpec());
  for (const Rank rank : {0, 1}) {
    const std::vector<Action>& actions = job.actions(rank);
    ASSERT_EQ(actions.size(), 3u);
    EXPECT_EQ(std::get<Launch>(actions[1]).items.size(), 2u);
    EXPECT_TRUE(std::holds_alternative<JoinDone>(actions[2]));
  }
}

TEST(Join, IsOfOneProcessSet) {
  CoordinatorOptions options = Job::Options(3);
  options.process_sets.push_back({0, 1});
  Job job(options);
  job.Announce(1, JoinSpec(1));
  job.Announce(0, Named("w"), true);
  job.Announce(2, Named("w"), true);
  EXPECT_THAT(job.Batches(0), IsEmpty()) << "rank 1 has not joined the world";
  job.Announce(0, SetOp(1, "s"), true);
  EXPECT_THAT(job.Batches(0), ElementsAre(ElementsAre(1)));
  job.Announce(1, Named("w"), true);
  EXPECT_THAT(job.Batches(0), ElementsAre(ElementsAre(0)));
}

TEST(Join, StallsDoNotBlameWhoHasJoined) {
  Job job(3);
  job.Announce(2, JoinSpec());
  job.Announce(0, Named("w"));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).CheckDeadlines(10 * kSecond, &reports, &expired);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_THAT(reports[0], HasSubstr("unnamed join #0 has waited"));
  EXPECT_THAT(reports[1], HasSubstr("by rank 0; missing: rank 1 (has submitted nothing)"));
}

TEST(Join, FailsWhenARankHasShutDownInstead) {
  Job job(3);
  job.Announce(2, JoinSpec());
  job.Announce(1, Named("w"));
  job.member(1).AnnounceLeave();
  job.Flush(1);
  EXPECT_THAT(std::string(job.Failures(2).at(0).status.message()),
              HasSubstr("rank 1 has shut down without submitting it"));
  // It is as if nobody had joined: rank 2 is waited for.
  job.Announce(0, Named("w"), true);
  EXPECT_THAT(job.Batches(0), IsEmpty());
  job.Announce(2, Named("w"), true);
  EXPECT_EQ(job.Batches(0).size(), 1u);
}

// Rank 2 joins, the others go on, and the join is overdue. From there on rank 2 counts on from
// where the others are.
class JoinThatFails : public ::testing::Test {
 protected:
  JoinThatFails() : job_(Options()) {}

  static CoordinatorOptions Options() {
    CoordinatorOptions options = Job::Options(3);
    options.stall_timeout = 60 * kSecond;
    options.process_sets.push_back({1, 2});
    return options;
  }
  void OnAll(const SpecPtr& spec) {
    for (const Rank rank : {0, 1, 2}) job_.Announce(rank, spec, true);
  }
  void Expire() {
    job_.now += 60 * kSecond;
    std::vector<std::string> reports;
    std::vector<rueda::Expire> expired;
    job_.coordinator(0).CheckDeadlines(job_.now, &reports, &expired);
    ASSERT_FALSE(expired.empty());
    for (const rueda::Expire& expire : expired) job_.Step({0, expire});
  }
  // Whether an unnamed operation that all announce now is launched on all of them.
  void ExpectUnnamedTogether(const SpecPtr& spec) {
    for (const Rank rank : {0, 1, 2}) job_.actions(rank).clear();
    OnAll(spec);
    for (const Rank rank : {0, 1, 2}) {
      const std::vector<Launch> launches = job_.Launches(rank);
      ASSERT_EQ(launches.size(), 1u) << "rank " << rank;
      EXPECT_THAT(launches[0].absent, IsEmpty());
    }
  }

  Job job_;
};

TEST_F(JoinThatFails, UnnamedOperationsStillMeetAfterwards) {
  OnAll(Named(""));
  job_.Announce(2, JoinSpec());
  for (int i = 0; i < 3; ++i) {
    for (const Rank rank : {0, 1}) job_.Announce(rank, Named(""), true);
  }
  const SpecPtr barrier = MakeSpec(kWorldSet, "", OfKind(OpKind::kBarrier));
  for (const Rank rank : {0, 1}) job_.Announce(rank, barrier, true);  // rejected
  Expire();
  ASSERT_EQ(job_.Failures(2).size(), 1u);
  ExpectUnnamedTogether(Named(""));
  ExpectUnnamedTogether(barrier);
}

// The lane is busy: what the others have agreed on is open still when the join fails.
TEST_F(JoinThatFails, WhatWasOpenIsOrderedBeforeItsEnd) {
  OnAll(Named("busy"));
  job_.Announce(2, JoinSpec());
  for (const Rank rank : {0, 1}) job_.Announce(rank, Named(""));
  job_.actions(2).clear();
  Expire();
  ASSERT_EQ(job_.actions(2).size(), 2u);
  EXPECT_THAT(std::get<Launch>(job_.actions(2)[0]).absent, ElementsAre(2));
  EXPECT_TRUE(std::holds_alternative<Rejected>(job_.actions(2)[1]));
  ExpectUnnamedTogether(Named(""));
}

TEST_F(JoinThatFails, WhoJoinsTooLateCountsOnWithTheOthersToo) {
  job_.Announce(2, JoinSpec());
  job_.Announce(0, Named(""));  // fails with it, and rank 1 misses it
  Expire();
  for (const Rank rank : {0, 1}) job_.Announce(rank, JoinSpec());
  EXPECT_THAT(std::string(job_.Failures(1).at(0).status.message()), HasSubstr("came too late"));
  ExpectUnnamedTogether(Named(""));
  OnAll(JoinSpec());
  EXPECT_EQ(job_.Joins(0).size(), 1u);
}

// The next that rank 2 submits is not what rank 0 waits for.
TEST_F(JoinThatFails, TakesWhatIsPendingAndHasNoNameWithIt) {
  job_.Announce(2, JoinSpec());
  job_.now += kSecond;
  job_.Announce(0, Named(""), true);
  job_.Announce(0, Named("w"), true);
  job_.now -= kSecond;
  Expire();  // of the join alone
  const std::vector<Rejected> failures = job_.Failures(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(
      std::string(failures[0].status.message()),
      HasSubstr("allreduce #0 can't complete: it went on without rank 2, which had joined"));
  job_.Announce(1, Named(""), true);
  EXPECT_THAT(std::string(job_.Failures(1).at(0).status.message()), HasSubstr("came too late"));
  ExpectUnnamedTogether(Named(""));
  for (const Rank rank : {1, 2}) job_.Announce(rank, Named("w"), true);
  EXPECT_EQ(job_.Launches(0).size(), 1u);
}

TEST_F(JoinThatFails, PairsAreCountedOnToo) {
  const SpecPtr spec = Pair("", 0, 2);
  job_.Announce(2, JoinSpec());
  job_.Announce(0, spec, true);  // rejected: rank 2 has joined
  ASSERT_EQ(job_.Failures(0).size(), 1u);
  Expire();
  job_.actions(2).clear();
  for (const Rank rank : {0, 2}) job_.Announce(rank, spec, true);
  EXPECT_EQ(job_.Launches(0).size(), 1u);
  EXPECT_EQ(job_.Launches(2).size(), 1u);
}

TEST_F(JoinThatFails, ThoseWhoRemainMeetAfterARankHasLeft) {
  const SpecPtr spec = Pair("", 1, 2);
  job_.Announce(2, JoinSpec());
  job_.Announce(1, spec, true);  // rejected: rank 2 has joined
  job_.member(0).AnnounceLeave();
  job_.Flush(0);
  for (const Rank rank : {1, 2}) ASSERT_EQ(job_.Failures(rank).size(), 1u);
  for (const Rank rank : {1, 2}) job_.Announce(rank, spec, true);
  for (const Rank rank : {1, 2}) EXPECT_EQ(job_.Launches(rank).size(), 1u) << "rank " << rank;
}

// Two sets -----------------------------------------------------------------------------------

TEST_F(JoinThatFails, AJoinOfAnotherSetGoesOn) {
  job_.Announce(2, JoinSpec(1));
  job_.Announce(2, JoinSpec());
  for (const Rank rank : {0, 1}) job_.Announce(rank, Named(""), true);
  job_.Announce(1, SetOp(1, ""), true);
  EXPECT_EQ(job_.Launches(2).size(), 2u);
  job_.Announce(1, JoinSpec(1));
  ASSERT_EQ(job_.Joins(2).size(), 1u) << "of set 1";
  Expire();
  ASSERT_EQ(job_.Failures(2).size(), 1u) << "of the world";
  ExpectUnnamedTogether(Named(""));
  for (const Rank rank : {1, 2}) job_.Announce(rank, SetOp(1, ""), true);
  for (const Rank rank : {1, 2}) EXPECT_EQ(job_.Launches(rank).size(), 1u) << "rank " << rank;
}

TEST(Join, OfTwoSetsAtOnceEndsInEachByItself) {
  CoordinatorOptions options = Job::Options(3);
  options.process_sets.push_back({0, 1});
  Job job(options);
  job.Announce(1, JoinSpec(1));
  job.Announce(1, JoinSpec());
  job.Announce(0, JoinSpec());
  job.Announce(0, SetOp(1, ""), true);
  EXPECT_EQ(job.Launches(1).at(0).absent, std::vector<Rank>{1});
  job.Announce(0, JoinSpec(1));
  EXPECT_EQ(job.Joins(1).at(0).token, 0u);
  job.Announce(2, JoinSpec());
  EXPECT_EQ(job.Joins(1).at(0).token, 1u);
  EXPECT_EQ(job.Joins(0).size(), 2u);
}

// A rank that has joined a set has an operation in flight there, and says so.
TEST(Join, OfASetThatIsToBeRemovedKeepsIt) {
  CoordinatorOptions options = Job::Options(3);
  options.process_sets.push_back({0, 1});
  Job job(options);
  Signature removal = OfKind(OpKind::kRemoveProcessSet);
  removal.ranks = {0, 1};
  const SpecPtr remove = MakeSpec(kWorldSet, "", removal);
  CallExtras none, one;
  none.first_dims = {0};
  one.first_dims = {1};
  for (const Rank rank : {0, 2}) job.Announce(rank, remove, true, none);
  job.Announce(1, JoinSpec(1));
  job.Announce(1, remove, true, one);
  EXPECT_THAT(std::string(job.Failures(0).at(0).status.message()),
              HasSubstr("rank 1 has 1 operations in flight on it"));
  job.Announce(0, JoinSpec(1));
  EXPECT_EQ(job.Joins(1).size(), 1u);
  for (const Rank rank : {0, 1, 2}) job.Announce(rank, remove, true, none);
  EXPECT_EQ(job.RemovedSets(1).size(), 1u);
}

// Joining the world rejects the removal; the set is there still, and so are its counts.
TEST(Join, OfTheWorldKeepsASetThatWasBeingRemoved) {
  CoordinatorOptions options = Job::Options(3);
  options.process_sets.push_back({0, 1});
  Job job(options);
  Signature removal = OfKind(OpKind::kRemoveProcessSet);
  removal.ranks = {0, 1};
  const SpecPtr remove = MakeSpec(kWorldSet, "", removal);
  CallExtras none;
  none.first_dims = {0};
  for (const Rank rank : {0, 2}) job.Announce(rank, remove, true, none);
  EXPECT_TRUE(job.member(0).closing(1));
  job.Announce(1, JoinSpec());
  EXPECT_THAT(std::string(job.Failures(0).at(0).status.message()), HasSubstr("rank 1 has joined"));
  EXPECT_FALSE(job.member(0).closing(1));
  for (const Rank rank : {0, 1}) job.Announce(rank, SetOp(1, ""), true);
  EXPECT_EQ(job.Launches(1).size(), 1u);
  for (const Rank rank : {0, 2}) job.Announce(rank, JoinSpec());
  for (const Rank rank : {0, 1, 2}) job.Announce(rank, remove, true, none);
  EXPECT_EQ(job.RemovedSets(1).size(), 1u);
}

// Two hosts ----------------------------------------------------------------------------------

using JoinOnAHost = OnAHost;

TEST_F(JoinOnAHost, LetsThroughWhatWasHeldBackForTheRank) {
  Step(2, Named("a"));
  Step(2, SetOp(1, "other set"));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step(3, JoinSpec());
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3));
  Step(2, Named("b"));
  Step(2, Named(""));
  EXPECT_THAT(PassedOn(), ElementsAre(2, 2)) << "nothing is held back while somebody has joined";
  Step(2, SetOp(1, "still held"));
  EXPECT_THAT(PassedOn(), IsEmpty());
}

TEST_F(JoinOnAHost, HoldsBackAgainOnceAllHaveJoined) {
  Step(2, Named(""));
  Step(3, Named(""));
  ASSERT_TRUE(aggregator_.Apply(Define{1u << 16, Named("")}).ok());
  Order order;
  order.batch.push_back({1u << 16});
  ASSERT_TRUE(aggregator_.Apply(order).ok());
  Step(3, JoinSpec());
  Step(2, Named(""));
  Step(2, JoinSpec());
  PassedOn();
  ASSERT_TRUE(aggregator_.Apply(Joined{kWorldSet, 2, 0}).ok());
  Step(2, Named(""));
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step(3, Named(""));
  EXPECT_THAT(PassedOn(), ElementsAre(2, 3));
}

TEST_F(JoinOnAHost, OfAnUnknownSetIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(aggregator_.Apply(Joined{7, 2, 0})));
}

// Nonsense -----------------------------------------------------------------------------------

TEST(JoinNonsense, AJoinThatThisRankDidNotSubmitIsRefused) {
  Member member(0, 2);
  std::vector<Action> actions;
  EXPECT_TRUE(absl::IsInvalidArgument(member.Apply(Joined{kWorldSet, 1, 0}, &actions)));
  member.Submit(0, JoinSpec(), {}, true);
  EXPECT_TRUE(absl::IsInvalidArgument(member.Apply(Joined{kWorldSet, 2, 0}, &actions)));
  EXPECT_TRUE(absl::IsInvalidArgument(member.Apply(Joined{3, 1, 0}, &actions)));
  EXPECT_TRUE(member.Apply(Joined{kWorldSet, 1, 0}, &actions).ok());
}

TEST(JoinNonsense, WhatHasNoNameAndThisRankDidNotSubmitIsNotTakenForAnother) {
  Member member(0, 2);
  std::vector<Action> actions;
  const SpecPtr barrier = MakeSpec(kWorldSet, "", OfKind(OpKind::kBarrier));
  member.Submit(0, barrier, {}, true);
  ASSERT_TRUE(member.Apply(Reject{barrier, 7, {0}, absl::InternalError("")}, &actions).ok());
  EXPECT_THAT(actions, IsEmpty());
  ASSERT_TRUE(member.Apply(Define{1 << 16, barrier}, &actions).ok());
  Order order;
  order.batch.push_back({1 << 16, 7, {}});
  EXPECT_TRUE(absl::IsInvalidArgument(member.Apply(order, &actions)));
  order.batch[0].sequence = 0;
  EXPECT_TRUE(member.Apply(order, &actions).ok());
}

TEST(JoinNonsense, NothingIsOrderedWithoutItsRoot) {
  for (const Rank root : {0, 1}) {
    Member member(0, 2);
    std::vector<Action> actions;
    const SpecPtr cast = MakeSpec(kWorldSet, "c", WithTensor(OpKind::kBroadcast, root));
    ASSERT_TRUE(member.Apply(Define{1 << 16, cast}, &actions).ok());
    Order order;
    order.batch.push_back({1 << 16, 0, {}});
    order.absent = {0};
    EXPECT_EQ(absl::IsInvalidArgument(member.Apply(order, &actions)), root == 0);
  }
}

}  // namespace
}  // namespace rueda::testing
