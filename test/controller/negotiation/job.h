// The negotiation of a whole job driven by hand, one event at a time: what its tests share. The
// test's own thread. PURE
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controller/negotiation/aggregator.h"
#include "controller/negotiation/coordinator.h"
#include "controller/negotiation/member.h"

namespace rueda::testing {

inline Signature Float32(std::initializer_list<int64_t> dims, ReduceOp op = ReduceOp::kSum) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = op;
  signature.parts.push_back({DType::kFloat32, Shape(dims)});
  return signature;
}

inline Signature OfKind(OpKind kind) {
  Signature signature;
  signature.kind = kind;
  return signature;
}

inline SpecPtr Named(const std::string& name, std::initializer_list<int64_t> dims = {4}) {
  return MakeSpec(kWorldSet, name, Float32(dims));
}

// A send/recv of float32.
inline SpecPtr Pair(const std::string& name, Rank from, Rank to, SetId set = kWorldSet,
                    int64_t elements = 4) {
  Signature signature = OfKind(OpKind::kSendRecv);
  signature.root = from;
  signature.peer = to;
  signature.parts.push_back({DType::kFloat32, {elements}});
  return MakeSpec(set, name, signature);
}

// Ranks 0 and 1 on one host, 2 and 3 on another.
inline const LeaderTree& TwoHosts() {
  static const LeaderTree tree(std::vector<std::vector<Rank>>{{0, 1}, {2, 3}}, 32);
  return tree;
}

// A host of ranks 2 and 3 in a world of four, in which they have process set 1.
class OnAHost : public ::testing::Test {
 protected:
  void Step(Rank rank, SpecPtr spec, Nanos now = 0) {
    Announcement announcement;
    announcement.spec = std::move(spec);
    Step({rank, Announced{announcement}}, now);
  }
  void Step(const ControlEvent& event, Nanos now = 0) {
    ASSERT_TRUE(aggregator_.Step(event, now, &out_).ok());
  }
  // For whom events were passed on since the last call.
  std::vector<Rank> PassedOn() {
    std::vector<Rank> ranks;
    for (const ControlEvent& event : out_) {
      const absl::Span<const Rank> all = TwoHosts().RanksOf(event.rank, event.speaks_for);
      ranks.insert(ranks.end(), all.begin(), all.end());
    }
    out_.clear();
    return ranks;
  }

  Aggregator aggregator_{TwoHosts(), 2, SpeaksFor::kHost, kSecond,
                         std::vector<std::vector<Rank>>{{2, 3}}};
  std::vector<ControlEvent> out_;
};

// All ranks of a job over one log: every rank has a member and a replica of the coordinator.
class Job {
 public:
  explicit Job(CoordinatorOptions options) : options_(options) {
    for (Rank rank = 0; rank < options.world_size; ++rank) {
      members_.push_back(std::make_unique<Member>(rank, options.world_size, options.process_sets));
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
      Step(copy);
    }
  }
  // One event of the log, on all ranks.
  void Step(const ControlEvent& event) {
    for (size_t r = 0; r < members_.size(); ++r) {
      Plan plan;
      ASSERT_TRUE(coordinators_[r]->Step(event, now, &plan).ok());
      for (const PlanItem& item : plan) {
        const absl::Status status = members_[r]->Apply(item, &actions_[r]);
        ASSERT_TRUE(status.ok()) << status;
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
  std::vector<Launch> Launches(Rank rank) { return Take<Launch>(rank); }
  std::vector<Rejected> Failures(Rank rank) { return Take<Rejected>(rank); }
  std::vector<JoinDone> Joins(Rank rank) { return Take<JoinDone>(rank); }
  std::vector<NewSet> NewSets(Rank rank) { return Take<NewSet>(rank); }
  std::vector<RemovedSet> RemovedSets(Rank rank) { return Take<RemovedSet>(rank); }
  void CompleteBatch(Rank rank, SetId lane = kWorldSet) { members_[rank]->CompletedBatch(lane); }

  Nanos now = 0;
  Member& member(Rank rank) { return *members_[rank]; }
  Coordinator& coordinator(Rank rank) { return *coordinators_[rank]; }
  std::vector<Action>& actions(Rank rank) { return actions_[rank]; }

 private:
  // The actions of one kind; the others are dropped with them.
  template <typename T>
  std::vector<T> Take(Rank rank) {
    std::vector<T> taken;
    for (const Action& action : actions_[rank]) {
      if (const auto* each = std::get_if<T>(&action)) taken.push_back(*each);
    }
    actions_[rank].clear();
    return taken;
  }

  const CoordinatorOptions options_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Coordinator>> coordinators_;
  std::vector<Token> next_token_;
  std::vector<std::vector<Action>> actions_;
};

}  // namespace rueda::testing
