// The negotiation's state machines, driven by hand: one event at a time, every output looked at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/negotiation/aggregator.h"
#include "controller/negotiation/coordinator.h"
#include "controller/negotiation/member.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Signature Float32(std::initializer_list<int64_t> dims, ReduceOp op = ReduceOp::kSum) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = op;
  signature.parts.push_back({DType::kFloat32, Shape(dims)});
  return signature;
}

Signature OfKind(OpKind kind) {
  Signature signature;
  signature.kind = kind;
  return signature;
}

SpecPtr Named(const std::string& name, std::initializer_list<int64_t> dims = {4}) {
  return MakeSpec(kWorldSet, name, Float32(dims));
}

// All ranks of a job over one log: every rank has a member and a replica of the coordinator.
class Job {
 public:
  explicit Job(CoordinatorOptions options) : options_(options) {
    for (Rank rank = 0; rank < options.world_size; ++rank) {
      members_.push_back(std::make_unique<Member>(rank, options.world_size));
      coordinators_.push_back(std::make_unique<Coordinator>(options));
      next_token_.push_back(0);
    }
    actions_.resize(options.world_size);
  }
  explicit Job(int world_size) : Job(Options(world_size)) {}

  static CoordinatorOptions Options(int world_size) {
    CoordinatorOptions options;
    options.world_size = world_size;
    return options;
  }

  Token Submit(Rank rank, SpecPtr spec, bool waited = false, CallExtras extras = {}) {
    const Token token = next_token_[rank]++;
    members_[rank]->Submit(token, std::move(spec), std::move(extras), waited);
    return token;
  }
  // Puts everything that `rank` has to say into the log, and lets all ranks read it.
  void Flush(Rank rank) {
    while (const ControlEvent* event = members_[rank]->Next()) {
      const ControlEvent copy = *event;
      members_[rank]->Pop();
      for (size_t r = 0; r < members_.size(); ++r) {
        Plan plan;
        ASSERT_TRUE(coordinators_[r]->Step(copy, now, &plan).ok());
        for (const PlanItem& item : plan) {
          const absl::Status status = members_[r]->Apply(item, &actions_[r]);
          ASSERT_TRUE(status.ok()) << status;
        }
      }
    }
  }
  void Announce(Rank rank, SpecPtr spec, bool waited = false, CallExtras extras = {}) {
    Submit(rank, std::move(spec), waited, std::move(extras));
    Flush(rank);
  }
  // The batches ordered since the last call, as rank 0 sees them: tokens by batch.
  std::vector<std::vector<Token>> Batches(Rank rank = 0) {
    std::vector<std::vector<Token>> batches;
    for (const Action& action : actions_[rank]) {
      if (const auto* launch = std::get_if<Launch>(&action)) {
        batches.emplace_back();
        for (const LaunchItem& item : launch->items) batches.back().push_back(item.token);
      }
    }
    actions_[rank].clear();
    return batches;
  }
  std::vector<Rejected> Failures(Rank rank) {
    std::vector<Rejected> failures;
    for (const Action& action : actions_[rank]) {
      if (const auto* failure = std::get_if<Rejected>(&action)) failures.push_back(*failure);
    }
    actions_[rank].clear();
    return failures;
  }
  void CompleteBatch(Rank rank, SetId lane = kWorldSet) { members_[rank]->CompletedBatch(lane); }

  Nanos now = 0;
  Member& member(Rank rank) { return *members_[rank]; }
  Coordinator& coordinator(Rank rank) { return *coordinators_[rank]; }
  std::vector<Action>& actions(Rank rank) { return actions_[rank]; }

 private:
  const CoordinatorOptions options_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Coordinator>> coordinators_;
  std::vector<Token> next_token_;
  std::vector<std::vector<Action>> actions_;
};

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
  half.prescale = 0.5;
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

TEST(Stalls, AreReportedAtTheWarningAgeWithNames) {
  Job job(3);
  job.Announce(2, Named("early"));
  job.now = 5 * kSecond;
  job.Announce(0, Named("w"));
  job.Announce(1, Named("w"));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  EXPECT_EQ(job.coordinator(0).Look(9 * kSecond, &reports, &expired), 10 * kSecond);
  EXPECT_TRUE(reports.empty());
  job.coordinator(0).Look(15 * kSecond, &reports, &expired);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1],
            "allreduce 'w' has waited for 10.0 s: submitted by ranks 0, 1; missing: rank 2 (last "
            "submitted allreduce 'early' 15.0 s ago)");
  reports.clear();
  job.coordinator(0).Look(16 * kSecond, &reports, &expired);
  EXPECT_TRUE(reports.empty()) << "not again before six times the age";
  EXPECT_TRUE(expired.empty());
}

TEST(Stalls, ExpireFailsThoseWhoSubmitted) {
  CoordinatorOptions options = Job::Options(2);
  options.stall_timeout = kSecond;
  Job job(options);
  job.Announce(0, Named("w"));
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).Look(kSecond, &reports, &expired);
  ASSERT_EQ(expired.size(), 1u);
  Plan plan;
  ASSERT_TRUE(job.coordinator(0).Step({0, expired[0]}, kSecond, &plan).ok());
  ASSERT_EQ(plan.size(), 1u);
  ASSERT_TRUE(job.member(0).Apply(plan[0], &job.actions(0)).ok());
  const std::vector<Rejected> failures = job.Failures(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(failures[0].status));
  EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("missing: rank 1"));
}

TEST(Stalls, DeadlockOfAllRanksIsReportedSoon) {
  Job job(2);
  job.Announce(0, Named("a"), /*waited=*/true);
  job.Announce(1, Named("b"), /*waited=*/true);
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  job.coordinator(0).Look(kSecond, &reports, &expired);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], HasSubstr("every rank waits"));
  EXPECT_THAT(reports[0], HasSubstr("allreduce 'a'"));
  EXPECT_THAT(reports[0], HasSubstr("allreduce 'b'"));
}

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

// Peers that speak nonsense ---------------------------------------------------------------------

SpecPtr Gathered() {
  Signature signature = OfKind(OpKind::kAllgather);
  signature.parts.push_back({DType::kFloat32, {4}});
  return MakeSpec(kWorldSet, "g", signature);
}

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
    member.Submit(0, Gathered(), {1, 1, {3}}, false);
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

// Each part can be counted, all together can't.
TEST(Mismatch, WhatIsTooLargeToBeGatheredIsRejectedEverywhere) {
  Job job(32);
  for (Rank rank = 0; rank < 32; ++rank) {
    job.Announce(rank, Gathered(), false, {1, 1, {int64_t{1} << 56}});
  }
  for (const Rank rank : {0, 31}) {
    const std::vector<Rejected> failures = job.Failures(rank);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_THAT(std::string(failures[0].status.message()), HasSubstr("too large to be counted"));
  }
  for (Rank rank = 0; rank < 32; ++rank) job.Announce(rank, Gathered(), true, {1, 1, {rank}});
  EXPECT_EQ(job.Batches(0).size(), 1u) << "the name is usable again";
}

}  // namespace
}  // namespace rueda
