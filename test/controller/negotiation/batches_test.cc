// When batches close and what is in them; ids; what a rank that leaves takes with it; stalls. Every
// output of the state machines is looked at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Batches, LoneTensorLeavesAtOnce) {
  Job job(2);
  job.Announce(0, Named("a"));
  EXPECT_TRUE(job.Batches().empty());
  job.Announce(1, Named("a"));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0)));
}

TEST(Batches, BurstFusesBehindTheBatchInFlight) {
  Job job(2);
  for (const char* name : {"a", "b", "c"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0)));
  EXPECT_TRUE(job.coordinator(1).HasOpenBatch(kWorldSet));
  job.CompleteBatch(1);
  job.member(1).AnnounceDone(kWorldSet);
  job.Flush(1);
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1, 2)));
}

TEST(Batches, AnnouncementCarriesThatTheLaneIsFree) {
  Job job(2);
  for (const char* name : {"a", "b"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  job.Batches();
  job.CompleteBatch(0);
  job.Announce(0, Named("c"));  // says that batch 1 is done: b leaves, though c is not ready
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1)));
}

TEST(Batches, WaitClosesTheBatch) {
  Job job(2);
  for (const char* name : {"a", "b", "c"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  job.Batches();
  job.member(0).MarkWaited(1);
  job.Flush(0);
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1, 2)));
}

TEST(Batches, WaitedTensorClosesItsBatchWhenItCompletes) {
  Job job(2);
  job.Announce(0, Named("a"));
  job.Announce(1, Named("a"));
  job.Announce(0, Named("b"));
  job.member(0).MarkWaited(1);
  job.Flush(0);
  job.Batches();
  job.Announce(1, Named("b"));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1)));
}

TEST(Batches, WaitBitInTheAnnouncementSticks) {
  Job job(2);
  job.Announce(0, Named("a"));
  job.Announce(1, Named("a"));
  job.Announce(0, Named("b"), /*waited=*/true);
  job.Batches();
  job.Announce(1, Named("b"));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1)));
}

TEST(Batches, CloseAtTheBucketSize) {
  CoordinatorOptions options = Job::Options(2);
  options.bucket_bytes = 32;  // two of the 16-byte tensors
  Job job(options);
  for (const char* name : {"a", "b", "c", "d"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
  }
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
}

TEST(Batches, CloseBeforeAnythingIncompatible) {
  Job job(2);
  const auto both = [&](const SpecPtr& spec) {
    job.Announce(0, spec);
    job.Announce(1, spec);
  };
  both(Named("a"));
  both(Named("b"));
  both(Named("c"));
  both(MakeSpec(kWorldSet, "d", Float32({4}, ReduceOp::kMax)));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
  Signature compressed = Float32({4}, ReduceOp::kMax);
  compressed.compression.compressor = Compressor::kInt8;
  both(MakeSpec(kWorldSet, "e", compressed));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(3)));
  compressed.device = DeviceType::kCuda;
  both(MakeSpec(kWorldSet, "f", compressed));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(4)));
}

TEST(Batches, WholeGroupLeavesAtOnce) {
  Job job(2);
  Signature group = Float32({4});
  group.parts.push_back({DType::kInt32, Shape({2})});
  group.part_names = {"x", "y"};
  job.Announce(0, Named("a"));
  job.Announce(1, Named("a"));
  job.Announce(0, MakeSpec(kWorldSet, "g", group));
  job.Batches();
  job.Announce(1, MakeSpec(kWorldSet, "g", group));
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(1)));
}

TEST(Ids, SecondUseNeedsNoSpec) {
  Job job(2);
  job.Announce(0, Named("a"));
  job.Announce(1, Named("a"));
  job.Submit(0, Named("a"));
  const ControlEvent* event = job.member(0).Next();
  ASSERT_NE(event, nullptr);
  const Announcement& announcement = std::get<Announced>(event->what).announcement;
  EXPECT_NE(announcement.id, kNoTensor);
  EXPECT_EQ(announcement.spec, nullptr);
}

TEST(Ids, UnnamedOperationsOfOneSignatureShareAnId) {
  Job job(2);
  for (int i = 0; i < 100; ++i) {
    job.Announce(0, Named(""));
    job.Announce(1, Named(""));
  }
  EXPECT_EQ(job.coordinator(0).tensors().size(), 1);
}

TEST(Ids, UnnamedOperationsMatchBySequence) {
  Job job(2);
  for (int i = 0; i < 3; ++i) job.Announce(0, Named("", {i + 1}));
  for (int i = 0; i < 3; ++i) {
    job.CompleteBatch(0);
    job.Announce(1, Named("", {i + 1}));
    job.CompleteBatch(1);
  }
  EXPECT_THAT(job.Batches(), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(Ids, OldestUnusedTensorIsForgotten) {
  CoordinatorOptions options = Job::Options(2);
  options.tensor_ids_max = 3;
  Job job(options);
  for (int round = 0; round < 5; ++round) {
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      job.Announce(0, Named(name));
      job.Announce(1, Named(name));
      ASSERT_EQ(job.Batches(0).size(), 1u) << name << " round " << round;
      ASSERT_EQ(job.Batches(1).size(), 1u) << name << " round " << round;
      job.CompleteBatch(0);
      job.CompleteBatch(1);
    }
  }
  EXPECT_EQ(job.coordinator(0).tensors().size(), 3);
}

// Rank 1 announces by an id which the others have forgotten before they read that.
TEST(Ids, AnnouncementUnderWayWhileItsIdIsForgottenCounts) {
  CoordinatorOptions options = Job::Options(2);
  options.tensor_ids_max = 2;
  Job job(options);
  for (const char* name : {"a", "b"}) {
    job.Announce(0, Named(name));
    job.Announce(1, Named(name));
    job.CompleteBatch(0);
    job.CompleteBatch(1);
  }
  job.Batches(0);
  job.Batches(1);
  job.Submit(1, Named("a"));
  const ControlEvent by_id = *job.member(1).Next();
  job.member(1).Pop();
  ASSERT_NE(std::get<Announced>(by_id.what).announcement.id, kNoTensor);
  job.Announce(0, Named("c"));  // takes the place of a, the oldest
  job.Announce(1, Named("c"));
  for (Rank rank : {0, 1}) {
    Plan plan;
    ASSERT_TRUE(job.coordinator(rank).Step(by_id, 0, &plan).ok());
    for (const PlanItem& item : plan) {
      ASSERT_TRUE(job.member(rank).Apply(item, &job.actions(rank)).ok());
    }
  }
  job.CompleteBatch(0);
  job.Announce(0, Named("a"));
  EXPECT_EQ(job.Batches(0).size(), 2u);
  EXPECT_EQ(job.Batches(1).size(), 2u);
}

TEST(Leaving, FailsWhatNeedsTheRankAndNothingElse) {
  Job job(2);
  job.Announce(0, Named("a"));
  job.Announce(1, Named("b"));
  job.member(1).AnnounceLeave();
  job.Flush(1);
  const std::vector<Rejected> failures = job.Failures(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("rank 1 has shut down"));
  job.Announce(0, Named("b"));  // which rank 1 had announced before it left
  EXPECT_EQ(job.Batches(0).size(), 1u);
  job.Announce(0, Named("c"));
  EXPECT_EQ(job.Failures(0).size(), 1u);
}

// Who is told first may leave too before the last one comes.
TEST(Leaving, IsTheFaultOfWhoeverLeftFirst) {
  for (const char* name : {"a", ""}) {
    SCOPED_TRACE(name);
    Job job(4);
    job.member(2).AnnounceLeave();
    job.Flush(2);
    for (const Rank rank : {1, 0, 3}) {
      job.Announce(rank, Named(name));
      const std::vector<Rejected> failures = job.Failures(rank);
      ASSERT_EQ(failures.size(), 1u);
      EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("rank 2 has shut down"));
      job.member(rank).AnnounceLeave();
      job.Flush(rank);
    }
  }
}

// What has failed for another reason is not their fault.
TEST(Leaving, IsNotBlamedForWhatTheRankHadSubmitted) {
  CoordinatorOptions options = Job::Options(3);
  options.stall_timeout = kSecond;
  Job job(options);
  job.Announce(0, Named(""));
  job.Announce(1, Named(""));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).CheckDeadlines(kSecond, &reports, &expired);
  ASSERT_EQ(expired.size(), 1u);
  job.Step({0, expired[0]});
  job.member(1).AnnounceLeave();
  job.Flush(1);
  job.Announce(2, Named(""));
  const std::vector<Rejected> failures = job.Failures(2);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("came too late"));
}

TEST(Stalls, AreReportedAtTheWarningAgeWithNames) {
  Job job(3);
  job.Announce(2, Named("early"));
  job.now = 5 * kSecond;
  job.Announce(0, Named("w"));
  job.Announce(1, Named("w"));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  EXPECT_EQ(job.coordinator(0).CheckDeadlines(9 * kSecond, &reports, &expired), 10 * kSecond);
  EXPECT_TRUE(reports.empty());
  job.coordinator(0).CheckDeadlines(15 * kSecond, &reports, &expired);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1],
            "allreduce 'w' has waited for 10.0 s: submitted by ranks 0, 1; missing: rank 2 (last "
            "submitted allreduce 'early' 15.0 s ago)");
  reports.clear();
  job.coordinator(0).CheckDeadlines(16 * kSecond, &reports, &expired);
  EXPECT_TRUE(reports.empty()) << "not again before six times the age";
  EXPECT_TRUE(expired.empty());
}

// Of its own operations, named and unnamed, and nobody else's.
TEST(Stalls, AreExplainedToARankThatAsks) {
  Job job(3);
  job.Announce(2, Named("early"));
  const Token unnamed = job.Submit(0, Named(""));
  job.now = 5 * kSecond;
  const Token named = job.Submit(0, Named("w"));
  job.member(0).Ask();
  job.member(0).Ask();
  job.Flush(0);
  std::vector<std::string> told;
  for (const Action& action : job.actions(0)) {
    if (const auto* missing = std::get_if<Missing>(&action)) {
      EXPECT_TRUE(missing->token == unnamed || missing->token == named);
      told.push_back(missing->who);
    }
  }
  const std::string who =
      "submitted by rank 0; missing: rank 1 (has submitted nothing), rank 2 (last submitted "
      "allreduce 'early' 5.0 s ago)";
  EXPECT_THAT(told, ::testing::ElementsAre(who, who));
  for (const Rank rank : {1, 2}) {
    for (const Action& action : job.actions(rank)) {
      EXPECT_FALSE(std::holds_alternative<Missing>(action));
    }
  }
}

TEST(Stalls, ExpireFailsThoseWhoSubmitted) {
  CoordinatorOptions options = Job::Options(2);
  options.stall_timeout = kSecond;
  Job job(options);
  job.Announce(0, Named("w"));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).CheckDeadlines(kSecond, &reports, &expired);
  ASSERT_EQ(expired.size(), 1u);
  Plan plan;
  ASSERT_TRUE(job.coordinator(0).Step({0, expired[0]}, kSecond, &plan).ok());
  ASSERT_EQ(plan.size(), 1u);
  ASSERT_TRUE(job.member(0).Apply(plan[0], &job.actions(0)).ok());
  const std::vector<Rejected> failures = job.Failures(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(failures[0].status));
  EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("missing: rank 1"));
}

}  // namespace
}  // namespace rueda::testing
