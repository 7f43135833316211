#include "ops/shm/shm_backend.h"

#include <algorithm>

#include "ops/backend/make.h"
#include "ops/shm/direct.h"
#include "ops/shm/exchange.h"
#include "ops/shm/pair.h"
#include "ops/shm/small.h"
#include "ops/shm/staged.h"

namespace rueda {
namespace {

// Chooses the algorithm for each operation. What it goes by is the same on all members.
class ShmCommunicator : public Communicator, public EarlyStart {
 public:
  ShmCommunicator(std::vector<ShmMember> members, const Group& group, const Neighbours* neighbours,
                  std::shared_ptr<Arena> arena)
      : group_(std::move(members), group.self, neighbours, group.generation),
        arena_(std::move(arena)),
        small_(&group_),
        staged_(&group_),
        direct_(&group_, arena_.get(), &staged_),
        exchange_(&group_),
        pair_(&group_) {}

  EarlyStart* early_start() override { return this; }
  bool Prepare(const Collective& collective) override {
    const ShmAlgorithm* const algorithm = AlgorithmFor(collective);
    if (algorithm == &small_) small_.Prepare(collective);
    if (algorithm == &direct_) direct_.Prepare(collective);
    return algorithm == &small_ || algorithm == &direct_;
  }
  void TakeBack(bool never) override { group_.TakeBackArrival(never); }

  void Start(const Collective& collective) override {
    algorithm_ = AlgorithmFor(collective);
    algorithm_->Start(collective);
  }
  absl::StatusOr<Progress> Advance() override { return algorithm_->Advance(); }
  PhaseTimes phase_times() const override { return algorithm_->phase_times(); }
  // Nothing runs outside Advance.
  void Abort() override {}

 private:
  ShmAlgorithm* AlgorithmFor(const Collective& collective) {
    if (collective.kind == OpKind::kSendRecv) return &pair_;
    if (Channels::Carry(collective.kind)) return &exchange_;
    if (SmallAlgorithm::Fits(collective, group_.size())) return &small_;
    return &direct_;
  }

  ShmGroup group_;
  const std::shared_ptr<Arena> arena_;
  SmallAlgorithm small_;
  StagedAlgorithm staged_;
  DirectAlgorithm direct_;
  ExchangeAlgorithm exchange_;
  PairAlgorithm pair_;
  ShmAlgorithm* algorithm_ = nullptr;
};

}  // namespace

ShmBackend::ShmBackend(const Segment* segment, const Neighbours* neighbours,
                       std::vector<Rank> ranks, std::vector<std::shared_ptr<SharedMemory>> arenas,
                       std::shared_ptr<Arena> own_arena)
    : segment_(segment),
      neighbours_(neighbours),
      ranks_(std::move(ranks)),
      arenas_(std::move(arenas)),
      own_arena_(std::move(own_arena)) {}

absl::Status ShmBackend::Viable(const Group& group) const {
  if (group.one_host) return absl::OkStatus();
  return absl::FailedPreconditionError("the ranks are on several hosts");
}

absl::StatusOr<std::vector<ShmMember>> ShmBackend::MembersOf(SetId set,
                                                             absl::Span<const Rank> ranks) const {
  std::vector<ShmMember> members;
  for (const Rank rank : ranks) {
    const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
    if (it == ranks_.end() || *it != rank) {
      return absl::InternalError("a process set on one host has a rank of another");
    }
    const int local = static_cast<int>(it - ranks_.begin());
    members.push_back({&segment_->area(set, local), local, arenas_[local]});
  }
  return members;
}

absl::StatusOr<std::unique_ptr<Communicator>> ShmBackend::Connect(const Group& group) {
  RUEDA_ASSIGN_OR_RETURN(std::vector<ShmMember> members, MembersOf(group.set, group.ranks));
  return std::make_unique<ShmCommunicator>(std::move(members), group, neighbours_, own_arena_);
}

std::unique_ptr<Backend> MakeShm(const BackendArgs& args) {
  return std::make_unique<ShmBackend>(args.segment, args.neighbours, args.host_ranks, args.arenas,
                                      args.own_arena);
}

}  // namespace rueda
