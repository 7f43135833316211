// What the ranks disagree on is told to all of them in the same words; peers that speak nonsense
// are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

SpecPtr Gathered() {
  Signature signature = OfKind(OpKind::kAllgather);
  signature.parts.push_back({DType::kFloat32, {4}});
  return MakeSpec(kWorldSet, "g", signature);
}

TEST(Mismatch, EveryRankGetsTheSameErrorWithRanksGrouped) {
  Job job(4);
  job.Announce(0, Named("w", {1000}));
  job.Announce(1, Named("w", {1001}));
  job.Announce(2, Named("w", {1000}));
  job.Announce(3, Named("w", {1000}));
  std::string first;
  for (Rank rank = 0; rank < 4; ++rank) {
    const std::vector<Rejected> failures = job.Failures(rank);
    ASSERT_EQ(failures.size(), 1u);
    const std::string message(failures[0].status.message());
    if (rank == 0) first = message;
    EXPECT_EQ(message, first);
  }
  EXPECT_EQ(first,
            "tensor 'w': the ranks disagree on the shape: ranks 0, 2, 3 sent allreduce(sum) "
            "float32[1000]; rank 1 sent allreduce(sum) float32[1001]");
}

TEST(Mismatch, EachPropertyIsNamed) {
  Signature int32 = Float32({4});
  int32.parts[0].dtype = DType::kInt32;
  Signature broadcast = Float32({4}, ReduceOp::kNone);
  broadcast.kind = OpKind::kBroadcast;
  broadcast.root = 0;
  Signature other_root = broadcast;
  other_root.root = 1;
  const std::vector<std::tuple<Signature, Signature, std::string>> cases = {
      {Float32({4}), int32, "dtype"},
      {Float32({4}), Float32({2, 2}), "shape"},
      {Float32({4}), Float32({4}, ReduceOp::kMax), "reduce operation"},
      {Float32({4}), broadcast, "kind of operation"},
      {broadcast, other_root, "root"},
  };
  for (const auto& [a, b, word] : cases) {
    Job job(2);
    job.Announce(0, MakeSpec(kWorldSet, "t", a));
    job.Announce(1, MakeSpec(kWorldSet, "t", b));
    const std::vector<Rejected> failures = job.Failures(0);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("disagree on the " + word));
  }
}

TEST(Mismatch, ScaleFactorsAreCompared) {
  Job job(2);
  CallExtras half;
  half.scaling.prescale = 0.5;
  job.Announce(0, Named("t"), false, half);
  job.Announce(1, Named("t"));
  const std::vector<Rejected> failures = job.Failures(1);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("scale factors"));
}

TEST(Mismatch, NameIsUsableAgainAtOnce) {
  Job job(2);
  job.Announce(0, Named("w", {1}));
  job.Announce(1, Named("w", {2}));
  EXPECT_EQ(job.Failures(0).size(), 1u);
  job.Announce(0, Named("w", {2}));
  job.Announce(1, Named("w", {2}));
  EXPECT_EQ(job.Batches(0).size(), 1u);
}

// Each part can be counted, all together can't.
TEST(Mismatch, WhatIsTooLargeToBeGatheredIsRejectedEverywhere) {
  Job job(32);
  for (Rank rank = 0; rank < 32; ++rank) {
    job.Announce(rank, Gathered(), false, {.first_dims = {int64_t{1} << 56}});
  }
  for (const Rank rank : {0, 31}) {
    const std::vector<Rejected> failures = job.Failures(rank);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("too large to be counted"));
  }
  for (Rank rank = 0; rank < 32; ++rank)
    job.Announce(rank, Gathered(), true, {.first_dims = {rank}});
  EXPECT_EQ(job.Batches(0).size(), 1u) << "the name is usable again";
}

// Peers that speak nonsense ---------------------------------------------------------------------

TEST(Nonsense, FirstDimensionsMustGoWithTheTensors) {
  const auto step = [](const SpecPtr& spec, std::vector<int64_t> first_dims) {
    Coordinator coordinator(Job::Options(2));
    Announced announced;
    announced.announcement.spec = spec;
    announced.announcement.extras.first_dims = std::move(first_dims);
    Plan plan;
    return coordinator.Step({0, announced}, 0, &plan);
  };
  EXPECT_TRUE(step(Gathered(), {3}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(step(Gathered(), {})));
  EXPECT_TRUE(absl::IsInvalidArgument(step(Gathered(), {3, 3})));
  EXPECT_TRUE(step(Named("w"), {}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(step(Named("w"), {3})));
}

TEST(Nonsense, OrdersWithOtherFirstDimensionsAreRefused) {
  const auto apply = [](std::vector<int64_t> first_dims) {
    Member member(0, 2);
    member.Submit(0, Gathered(), {.first_dims = {3}}, false);
    std::vector<Action> actions;
    EXPECT_TRUE(member.Apply(Define{1 << 16, Gathered()}, &actions).ok());
    Order order;
    order.batch.push_back({1 << 16, 0, std::move(first_dims)});
    return member.Apply(order, &actions);
  };
  EXPECT_TRUE(apply({3, 4}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(apply({3})));
  EXPECT_TRUE(absl::IsInvalidArgument(apply({3, 4, 5})));
}

TEST(Nonsense, OnlyRanksOfTheWorldCanLeave) {
  Member member(0, 2);
  std::vector<Action> actions;
  EXPECT_TRUE(member.Apply(Left{1}, &actions).ok());
  for (const Rank rank : {-1, 2, 60'000}) {
    EXPECT_TRUE(absl::IsInvalidArgument(member.Apply(Left{rank}, &actions))) << rank;
  }
}

}  // namespace
}  // namespace rueda::testing
