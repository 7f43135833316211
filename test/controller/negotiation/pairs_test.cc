// Send and receive: operations of two ranks that nobody else has a part in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ControlEvent Announces(Rank rank, SpecPtr spec) {
  Announcement announcement;
  announcement.spec = std::move(spec);
  return {rank, Announced{announcement}};
}

TEST(Pairs, AreCompleteWhenTheTwoHaveAnnounced) {
  Job job(4);
  job.Announce(3, Pair("p", 1, 3));
  EXPECT_THAT(job.Batches(3), IsEmpty());
  job.Announce(1, Pair("p", 1, 3));
  for (const Rank rank : {1, 3}) EXPECT_THAT(job.Batches(rank), ElementsAre(ElementsAre(0)));
  for (const Rank rank : {0, 2}) EXPECT_THAT(job.Launches(rank), IsEmpty());
}

TEST(Pairs, CountAsBatchesOfTheLaneForThoseWithoutAPartToo) {
  Job job(3);
  for (const Rank rank : {0, 1}) job.Announce(rank, Pair("p", 0, 1));
  for (Rank rank = 0; rank < 3; ++rank) job.Announce(rank, Named("a"), true);
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<Launch> launches = job.Launches(rank);
    ASSERT_FALSE(launches.empty());
    EXPECT_EQ(launches.back().number, 1u) << "rank " << rank;
  }
  EXPECT_EQ(job.member(2).completed_on(kWorldSet), 1u);
}

TEST(Pairs, MayUseOneNameAtTheSameTime) {
  Job job(4);
  job.Announce(0, Pair("x", 0, 1));
  job.Announce(2, Pair("x", 3, 2));
  job.Announce(3, Pair("x", 3, 2));
  EXPECT_THAT(job.Batches(0), IsEmpty());
  EXPECT_EQ(job.Batches(3).size(), 1u);
  job.Announce(1, Pair("x", 0, 1));
  EXPECT_EQ(job.Batches(0).size(), 1u);
}

TEST(Pairs, ThatFailLeaveOthersOfTheSameNameAlone) {
  Job job(3);
  const Token lives = job.Submit(1, Pair("x", 1, 2));
  const Token fails = job.Submit(1, Pair("x", 0, 1, kWorldSet, 3));
  job.Flush(1);
  job.Announce(0, Pair("x", 0, 1, kWorldSet, 5));
  const std::vector<Rejected> failures = job.Failures(1);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].token, fails);
  job.Announce(2, Pair("x", 1, 2));
  EXPECT_THAT(job.Batches(1), ElementsAre(ElementsAre(lives)));
}

TEST(Pairs, OfTwoDirectionsAreTwoOperations) {
  Job job(2);
  job.Announce(0, Pair("x", 0, 1));
  job.Announce(1, Pair("x", 1, 0));
  EXPECT_THAT(job.Batches(0), IsEmpty());
}

TEST(Pairs, WithoutANameAreCountedByPairAndDirection) {
  Job job(3);
  for (int i = 0; i < 3; ++i) job.Announce(0, Pair("", 0, 1), true);
  job.Announce(0, Pair("", 2, 0), true);
  EXPECT_THAT(job.Batches(0), IsEmpty());
  job.Announce(2, Pair("", 2, 0));
  EXPECT_THAT(job.Batches(0), ElementsAre(ElementsAre(3)));
  job.Announce(1, Pair("", 0, 1));
  job.Announce(1, Pair("", 0, 1));
  EXPECT_THAT(job.Batches(0), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(Pairs, ThatDisagreeAreToldWhoSentWhatAndNobodyElseIs) {
  Job job(3);
  job.Announce(2, Pair("p", 2, 0, kWorldSet, 4));
  job.Announce(0, Pair("p", 2, 0, kWorldSet, 5));
  for (const Rank rank : {0, 2}) {
    EXPECT_EQ(job.Failures(rank).at(0).status.message(),
              "tensor 'p': the ranks disagree on the shape: rank 2 sent send/recv(from 2 to 0) "
              "float32[4]; rank 0 sent send/recv(from 2 to 0) float32[5]");
  }
  EXPECT_THAT(job.Failures(1), IsEmpty());
}

TEST(Pairs, AnnouncedByAThirdRankEndTheMembership) {
  Coordinator coordinator(Job::Options(3));
  Plan plan;
  const absl::Status status = coordinator.Step(Announces(2, Pair("p", 0, 1)), 0, &plan);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in which it has no part"));
}

TEST(Pairs, AnnouncedFromOutsideTheSetEndTheMembership) {
  CoordinatorOptions options = Job::Options(3);
  options.process_sets.push_back({0, 1});
  Coordinator coordinator(options);
  Plan plan;
  EXPECT_FALSE(coordinator.Step(Announces(2, Pair("p", 0, 2, 1)), 0, &plan).ok());
}

TEST(Pairs, FailWhenThePeerHasShutDown) {
  Job job(3);
  job.Announce(0, Pair("p", 0, 1));
  job.member(2).AnnounceLeave();
  job.Flush(2);
  EXPECT_THAT(job.Failures(0), IsEmpty()) << "rank 2 has no part in it";
  job.member(1).AnnounceLeave();
  job.Flush(1);
  EXPECT_THAT(std::string(job.Failures(0).at(0).status.message()),
              HasSubstr("rank 1 has shut down"));
}

TEST(Pairs, ThatStallMissThePeerAlone) {
  Job job(3);
  job.Announce(2, Pair("p", 1, 2));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).CheckDeadlines(10 * kSecond, &reports, &expired);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], HasSubstr("by rank 2; missing: rank 1 (has submitted nothing)"));
}

// A host holds a pair back only for those of its ranks that are in it.
TEST(Pairs, AcrossHostsAreNotHeldBack) {
  Aggregator aggregator(TwoHosts(), 2, SpeaksFor::kHost, kSecond);
  std::vector<ControlEvent> out;
  ASSERT_TRUE(aggregator.Step(Announces(2, Pair("p", 2, 1)), 0, &out).ok());
  EXPECT_EQ(out.size(), 1u);
  ASSERT_TRUE(aggregator.Step(Announces(3, Pair("p", 2, 3)), 0, &out).ok());
  EXPECT_EQ(out.size(), 1u);
  ASSERT_TRUE(aggregator.Step(Announces(2, Pair("p", 2, 3)), 0, &out).ok());
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[1].speaks_for, SpeaksFor::kHost) << "both at once";
  EXPECT_FALSE(aggregator.Step(Announces(3, Pair("q", 0, 1)), 0, &out).ok());
}

}  // namespace
}  // namespace rueda::testing
