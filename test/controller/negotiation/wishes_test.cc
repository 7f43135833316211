// What ranks wish for, and that all know of it at the same place of their programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What each launch of the rank since the last call carries.
std::vector<int> Agreements(Job* job, Rank rank) {
  std::vector<int> bits;
  for (const Launch& launch : job->Launches(rank)) bits.push_back(launch.agreed);
  return bits;
}

void Wish(Job* job, Rank rank, uint8_t bits) {
  job->member(rank).Announce(Wished{bits});
  job->Flush(rank);
}

TEST(Wishes, ALaunchCarriesWhatWasAgreedOnWhenItWasOrdered) {
  Job job(2);
  job.Announce(0, Named("a"));
  job.Announce(1, Named("a"));
  job.Announce(0, Named("b"));
  Wish(&job, 1, 2);  // between the announcements of b
  job.Announce(1, Named("b"), /*waited=*/true);
  job.Announce(0, Named("c"));
  job.Announce(1, Named("c"), /*waited=*/true);
  for (const Rank rank : {0, 1}) {
    EXPECT_THAT(Agreements(&job, rank), ElementsAre(0, 2, 2)) << rank;
  }
}

// Both are in the batch that is closed behind the wish.
TEST(Wishes, WhatIsReadyButNotOrderedCarriesThemToo) {
  Job job(2);
  for (const char* name : {"a", "b"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  EXPECT_THAT(Agreements(&job, 0), ElementsAre(0));
  Wish(&job, 0, 1);
  EXPECT_THAT(Agreements(&job, 0), IsEmpty());
  job.member(1).MarkWaited(1);
  job.Flush(1);
  EXPECT_THAT(Agreements(&job, 0), ElementsAre(1));
  EXPECT_THAT(Agreements(&job, 1), ElementsAre(0, 1));
}

TEST(Wishes, OfDifferentRanksAddUp) {
  Job job(3);
  Wish(&job, 0, 1);
  Wish(&job, 2, 4);
  Wish(&job, 1, 1);
  for (const Rank rank : {0, 1, 2}) job.Announce(rank, Named("a"));
  for (const Rank rank : {0, 1, 2}) {
    EXPECT_THAT(Agreements(&job, rank), ElementsAre(5)) << "whatever it wished itself";
  }
}

TEST(Wishes, AreInThePlanOnce) {
  Coordinator coordinator(Job::Options(2));
  const auto wish = [&](Rank rank, uint8_t bits) {
    Plan plan;
    EXPECT_TRUE(coordinator.Step({rank, Wished{bits}}, 0, &plan).ok());
    std::vector<int> agreed;
    for (const PlanItem& item : plan) agreed.push_back(std::get<Agreed>(item).bits);
    return agreed;
  };
  EXPECT_THAT(wish(0, 2), ElementsAre(2));
  EXPECT_THAT(wish(0, 2), IsEmpty());
  EXPECT_THAT(wish(1, 2), IsEmpty()) << "another's for the same";
  EXPECT_THAT(wish(1, 0), IsEmpty());
  EXPECT_THAT(wish(1, 3), ElementsAre(3)) << "all that there is, not what is new";
  EXPECT_THAT(wish(0, 1), IsEmpty());
}

// It says nothing on its own: whoever waits for nothing need not know.
TEST(Wishes, AloneStartNothing) {
  Job job(2);
  Wish(&job, 0, 255);
  for (const Rank rank : {0, 1}) EXPECT_THAT(job.actions(rank), IsEmpty());
}

using AnAggregator = OnAHost;

TEST_F(AnAggregator, PassesAWishOnAtOnce) {
  Step(2, Named("a"));
  Step({3, Wished{6}});
  ASSERT_EQ(out_.size(), 1u) << "what is incomplete stays where it is";
  EXPECT_EQ(out_[0].rank, 3);
  EXPECT_EQ(out_[0].speaks_for, SpeaksFor::kRank);
  EXPECT_EQ(std::get<Wished>(out_[0].what).bits, 6);
}

}  // namespace
}  // namespace rueda::testing
