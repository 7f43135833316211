// Process sets that come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::IsEmpty;

void AddByAll(Job* job, int world_size, std::vector<Rank> ranks) {
  Signature add = OfKind(OpKind::kAddProcessSet);
  add.ranks = std::move(ranks);
  for (Rank rank = 0; rank < world_size; ++rank) job->Announce(rank, MakeSpec(kWorldSet, "", add));
}

SpecPtr RemovalOf(std::vector<Rank> ranks) {
  Signature remove = OfKind(OpKind::kRemoveProcessSet);
  remove.ranks = std::move(ranks);
  return MakeSpec(kWorldSet, "", remove);
}

// `in_flight`: how many operations each rank has in flight there.
void RemoveByAll(Job* job, const std::vector<Rank>& ranks, const std::vector<int64_t>& in_flight) {
  for (size_t rank = 0; rank < in_flight.size(); ++rank) {
    job->Announce(static_cast<Rank>(rank), RemovalOf(ranks), false,
                  {.first_dims = {in_flight[rank]}});
  }
}

SpecPtr SetOp(const std::string& name) {
  return MakeSpec(1, name, Float32({4}));
}

TEST(ProcessSets, AreAddedInPlanOrderAndUsableByTheirMembers) {
  Job job(3);
  Signature add = OfKind(OpKind::kAddProcessSet);
  add.ranks = {0, 2};
  for (Rank rank = 0; rank < 3; ++rank) job.Announce(rank, MakeSpec(kWorldSet, "", add));
  EXPECT_EQ(std::get<NewSet>(job.actions(1).at(0)).set, 1);
  job.actions(0).clear();
  const SpecPtr spec = MakeSpec(1, "t", Float32({4}));
  job.Announce(0, spec);
  job.Announce(2, spec);
  EXPECT_EQ(job.Batches(0).size(), 1u);
  EXPECT_EQ(job.Batches(1).size(), 0u);
  EXPECT_EQ(job.Batches(2).size(), 1u);
}

TEST(ProcessSets, DuplicateIsRejectedEverywhere) {
  Job job(2);
  Signature add = OfKind(OpKind::kAddProcessSet);
  add.ranks = {0, 1};
  for (Rank rank = 0; rank < 2; ++rank) job.Announce(rank, MakeSpec(kWorldSet, "", add));
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<Rejected> failures = job.Failures(rank);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_TRUE(absl::IsAlreadyExists(failures[0].status));
  }
}

TEST(ProcessSets, RemovalEndsForAllRanksAndFreesTheIdAndItsTensors) {
  Job job(3);
  for (int round = 0; round < 3; ++round) {
    AddByAll(&job, 3, {0, 2});
    for (Rank rank = 0; rank < 3; ++rank) {
      const std::vector<NewSet> added = job.NewSets(rank);
      ASSERT_EQ(added.size(), 1u);
      EXPECT_EQ(added[0].set, 1);
      EXPECT_TRUE(added[0].asked);
      EXPECT_EQ(job.member(rank).process_sets().Find(1)->generation, static_cast<uint32_t>(round));
    }
    for (const char* name : {"t", "", ""}) {
      for (const Rank rank : {0, 2}) job.Announce(rank, SetOp(name), true);
      EXPECT_EQ(job.Batches(2).size(), 1u) << "round " << round << " name " << name;
      for (const Rank rank : {0, 2}) job.CompleteBatch(rank, 1);
    }
    RemoveByAll(&job, {0, 2}, {0, 0, 0});
    for (Rank rank = 0; rank < 3; ++rank) {
      const std::vector<RemovedSet> removed = job.RemovedSets(rank);
      ASSERT_EQ(removed.size(), 1u);
      EXPECT_EQ(removed[0].set, 1);
      EXPECT_TRUE(removed[0].asked);
      EXPECT_EQ(job.member(rank).process_sets().Find(1), nullptr);
      for (const char* name : {"t", ""}) {
        EXPECT_EQ(job.member(rank).tensors().Find(*SetOp(name)), kNoTensor);
        EXPECT_EQ(job.coordinator(rank).tensors().Find(*SetOp(name)), kNoTensor);
      }
    }
  }
}

// The earlier set had two members, which announced five unnamed operations.
TEST(ProcessSets, TheNextSetOfAnIdStartsFromNothing) {
  Job job(4);
  AddByAll(&job, 4, {0, 1});
  for (int i = 0; i < 5; ++i) {
    for (const Rank rank : {0, 1}) job.Announce(rank, SetOp(""), true);
    for (const Rank rank : {0, 1}) job.CompleteBatch(rank, 1);
  }
  RemoveByAll(&job, {0, 1}, {0, 0, 0, 0});
  AddByAll(&job, 4, {1, 2, 3});
  job.Batches(3);
  for (const Rank rank : {3, 1}) job.Announce(rank, SetOp(""), true);
  EXPECT_THAT(job.Launches(3), IsEmpty());
  job.Announce(2, SetOp(""), true);
  const std::vector<Launch> launches = job.Launches(3);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].number, 0u);
}

TEST(ProcessSets, RemovalWithOperationsInFlightIsRefusedAndNamesTheRankAndTheirNumber) {
  Job job(3);
  AddByAll(&job, 3, {0, 1});
  job.Announce(1, SetOp("w"));
  for (Rank rank = 0; rank < 3; ++rank) job.NewSets(rank);
  RemoveByAll(&job, {0, 1}, {0, 7, 0});
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<Rejected> failures = job.Failures(rank);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_TRUE(absl::IsFailedPrecondition(failures[0].status));
    EXPECT_EQ(failures[0].status.message(),
              "process set 1 can't be removed: rank 1 has 7 operations in flight on it; wait for "
              "them first");
    EXPECT_FALSE(job.member(rank).closing(1));
  }
  job.Announce(0, SetOp("w"), true);
  EXPECT_EQ(job.Batches(1).size(), 1u) << "it goes on";
}

TEST(ProcessSets, RemovalIsRefusedWhereARankHasMiscountedWhatItHasInFlight) {
  Job job(3);
  AddByAll(&job, 3, {0, 1});
  job.Announce(1, SetOp("w"));
  job.actions(2).clear();
  RemoveByAll(&job, {0, 1}, {0, 0, 0});
  EXPECT_EQ(job.Failures(2).at(0).status.message(),
            "process set 1 can't be removed: an operation on it is pending");
  job.Announce(0, SetOp("w"), true);
  EXPECT_EQ(job.Batches(1).size(), 1u) << "it goes on";
}

// A rank may keep quiet about a lane only if it has nothing in flight there.
TEST(ProcessSets, AreClosingOnRanksThatHaveNothingInFlightThere) {
  Job job(2);
  AddByAll(&job, 2, {0});
  job.Submit(0, RemovalOf({0}), false, {.first_dims = {3}});
  EXPECT_FALSE(job.member(0).closing(1));
  job.Submit(1, RemovalOf({0}), false, {.first_dims = {0}});
  EXPECT_TRUE(job.member(1).closing(1));
}

TEST(ProcessSets, RemovalOfWhatIsNotThereIsNotFound) {
  Job job(2);
  RemoveByAll(&job, {0}, {0, 0});
  EXPECT_TRUE(absl::IsNotFound(job.Failures(1).at(0).status));
  RemoveByAll(&job, {0, 1}, {0, 0});
  EXPECT_TRUE(absl::IsNotFound(job.Failures(0).at(0).status)) << "the world stays";
}

TEST(ProcessSets, RanksThatRemoveDifferentOnesDisagree) {
  CoordinatorOptions options = Job::Options(2);
  options.process_sets = {{0}, {1}};
  Coordinator coordinator(options);
  Plan plan;
  for (const Rank rank : {0, 1}) {
    Announced announced;
    announced.announcement.spec = RemovalOf({rank});
    announced.announcement.extras.first_dims = {0};
    ASSERT_TRUE(coordinator.Step({rank, announced}, 0, &plan).ok());
  }
  const auto* reject = std::get_if<Reject>(&plan.back());
  ASSERT_NE(reject, nullptr);
  EXPECT_THAT(std::string(reject->status.message()),
              ::testing::HasSubstr("the ranks disagree on the list of ranks: rank 0 sent"));
}

TEST(ProcessSets, APlanThatRemovesWhatIsNotThereIsRefused) {
  Member member(0, 2);
  std::vector<Action> actions;
  EXPECT_FALSE(member.Apply(SetRemoved{kWorldSet, 0}, &actions).ok());
  EXPECT_FALSE(member.Apply(SetRemoved{4, 0}, &actions).ok());
}

}  // namespace
}  // namespace rueda::testing
