// The first dimensions that the plan carries: every rank must know what every other one brings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Dims = std::vector<int64_t>;

SpecPtr Rows(OpKind kind, Rank root = -1) {
  Signature signature = OfKind(kind);
  signature.root = root;
  signature.parts.push_back({DType::kFloat32, {4}});
  return MakeSpec(kWorldSet, "x", signature);
}

// What the plan says when rank r brings dims[r].
Dims Planned(const SpecPtr& spec, const std::vector<Dims>& dims) {
  Job job(static_cast<int>(dims.size()));
  for (size_t rank = 0; rank < dims.size(); ++rank) {
    job.Announce(static_cast<Rank>(rank), spec, true, {.first_dims = dims[rank]});
  }
  const std::vector<Launch> launches = job.Launches(0);
  EXPECT_EQ(launches.size(), 1u);
  return launches.empty() ? Dims{-1} : launches[0].items[0].first_dims;
}

TEST(PlannedDims, OfGatherAndAllgatherAreByMember) {
  EXPECT_THAT(Planned(Rows(OpKind::kAllgather), {{3}, {0}, {5}}), ElementsAre(3, 0, 5));
  EXPECT_THAT(Planned(Rows(OpKind::kGather, 1), {{3}, {0}, {5}}), ElementsAre(3, 0, 5));
}

TEST(PlannedDims, OfAGroupAreByMemberThenByPart) {
  Signature group = OfKind(OpKind::kAllgather);
  for (int part = 0; part < 2; ++part) group.parts.push_back({DType::kInt8, {2}});
  group.part_names = {"a", "b"};
  EXPECT_THAT(Planned(MakeSpec(kWorldSet, "a", group), {{1, 2}, {3, 4}}), ElementsAre(1, 2, 3, 4));
}

TEST(PlannedDims, OfAnEqualAlltoallAreOneNumberAMember) {
  EXPECT_THAT(Planned(Rows(OpKind::kAlltoall), {{6}, {0}, {3}}), ElementsAre(6, 0, 3));
}

TEST(PlannedDims, OfARaggedAlltoallAreBySenderThenByReceiver) {
  EXPECT_THAT(Planned(Rows(OpKind::kAlltoall), {{1, 2, 0}, {9}, {0, 0, 7}}),
              ElementsAre(1, 2, 0, 3, 3, 3, 0, 0, 7));
}

TEST(PlannedDims, OfAScatterAreWhatTheRootSays) {
  EXPECT_THAT(Planned(Rows(OpKind::kScatter, 1), {{}, {6}, {}}), ElementsAre(2, 2, 2));
  EXPECT_THAT(Planned(Rows(OpKind::kScatter, 1), {{}, {1, 0, 7}, {}}), ElementsAre(1, 0, 7));
  EXPECT_THAT(Planned(Rows(OpKind::kScatter, 0), {{8}}), ElementsAre(8));
}

TEST(PlannedDims, OfAllOthersAreNone) {
  EXPECT_THAT(Planned(Named("w"), {{}, {}}), IsEmpty());
}

absl::Status Announce(const SpecPtr& spec, Rank rank, Dims dims) {
  Coordinator coordinator(Job::Options(3));
  Announced announced;
  announced.announcement.spec = spec;
  announced.announcement.extras.first_dims = std::move(dims);
  Plan plan;
  return coordinator.Step({rank, announced}, 0, &plan);
}

TEST(PlannedDims, ThatDoNotGoWithTheKindEndTheMembership) {
  const SpecPtr alltoall = Rows(OpKind::kAlltoall), scatter = Rows(OpKind::kScatter, 1);
  EXPECT_TRUE(Announce(alltoall, 0, {1}).ok());
  EXPECT_TRUE(Announce(alltoall, 0, {1, 2, 3}).ok());
  EXPECT_FALSE(Announce(alltoall, 0, {}).ok());
  EXPECT_FALSE(Announce(alltoall, 0, {1, 2}).ok());
  EXPECT_TRUE(Announce(scatter, 1, {1, 2, 3}).ok());
  EXPECT_TRUE(Announce(scatter, 0, {}).ok());
  EXPECT_FALSE(Announce(scatter, 1, {}).ok());
  EXPECT_FALSE(Announce(scatter, 0, {1}).ok());
}

// A ragged alltoall of n ranks takes n * n numbers.
TEST(PlannedDims, ThatThePlanHasNoRoomForAreRefusedOnEveryRank) {
  for (const auto& [ranks, fits] : {std::pair{1'024, true}, std::pair{1'025, false}}) {
    ASSERT_EQ(int64_t{ranks} * ranks <= kPlannedDimsMax, fits);
    Coordinator coordinator(Job::Options(ranks));
    Plan plan;
    for (Rank rank = 0; rank < ranks; ++rank) {
      Announced announced;
      announced.announcement.spec = Rows(OpKind::kAlltoall);
      announced.announcement.extras.first_dims = {ranks};
      if (rank == 7) announced.announcement.extras.first_dims.assign(ranks, 1);
      ASSERT_TRUE(coordinator.Step({rank, announced}, 0, &plan).ok());
    }
    const auto* reject = std::get_if<Reject>(&plan.back());
    ASSERT_EQ(reject == nullptr, fits);
    if (fits) continue;
    EXPECT_EQ(reject->ranks.size(), static_cast<size_t>(ranks));
    EXPECT_THAT(std::string(reject->status.message()),
                HasSubstr("1050625 first dimensions are too many for the plan"));
  }
}

// What each sends can be counted; what rank 0 gets can't.
TEST(PlannedDims, WhoseSumCannotBeCountedAreRefused) {
  Job job(32);
  Dims splits(32, 0);
  splits[0] = int64_t{1} << 56;
  for (Rank rank = 0; rank < 32; ++rank) {
    job.Announce(rank, Rows(OpKind::kAlltoall), false, {.first_dims = splits});
  }
  EXPECT_THAT(std::string(job.Failures(31).at(0).status.message()),
              HasSubstr("too large to be counted"));
}

absl::Status Ordering(const SpecPtr& spec, Dims own, Dims planned) {
  Member member(0, 3);
  member.Submit(0, spec, {.first_dims = std::move(own)}, false);
  std::vector<Action> actions;
  EXPECT_TRUE(member.Apply(Define{1 << 16, spec}, &actions).ok());
  Order order;
  order.batch.push_back({1 << 16, 0, std::move(planned)});
  return member.Apply(order, &actions);
}

TEST(PlannedDims, OfAnotherNumberAreRefusedByTheMember) {
  const SpecPtr alltoall = Rows(OpKind::kAlltoall);
  EXPECT_TRUE(Ordering(alltoall, {3}, {3, 3, 3}).ok());
  EXPECT_TRUE(Ordering(alltoall, {3}, Dims(9, 1)).ok());
  EXPECT_FALSE(Ordering(alltoall, {3}, {3}).ok());
  EXPECT_FALSE(Ordering(Rows(OpKind::kScatter, 1), {}, {1, 2}).ok());
  EXPECT_FALSE(Ordering(Named("w"), {}, {1, 1, 1}).ok());
}

}  // namespace
}  // namespace rueda::testing
