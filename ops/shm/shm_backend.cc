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
  ShmCommunicator(std::vector<ShmMember> shm_members, const Members& members,
                  const Neighbours* neighbours, std::shared_ptr<Arena> arena)
      : group_(std::move(shm_members), members.self, neighbours, members.generation),
        arena_(std::move(arena)),
        small_(&group_),
        staged_(&group_),
        direct_(&group_, arena_.get(), &staged_),
        exchange_(&group_),
        pair_(&group_) {}

  EarlyStart* early_start() override { return this; }
  bool Prepare(const BucketOperation& operation) override {
    const ShmAlgorithm* const algorithm = AlgorithmFor(operation);
    if (algorithm == &small_) small_.Prepare(operation);
    if (algorithm == &direct_) direct_.Prepare(operation);
    return algorithm == &small_ || algorithm == &direct_;
  }
  void TakeBack() override { group_.TakeBackArrival(/*never=*/false); }
  void Drop() override { group_.TakeBackArrival(/*never=*/true); }

  void Start(const BucketOperation& operation) override {
    algorithm_ = AlgorithmFor(operation);
    algorithm_->Start(operation);
  }
  absl::StatusOr<Progress> Advance() override { return algorithm_->Advance(); }
  PhaseTimes phase_times() const override { return algorithm_->phase_times(); }
  // Nothing runs outside Advance.
  void Abort() override {}

 private:
  ShmAlgorithm* AlgorithmFor(const BucketOperation& operation) {
    if (operation.kind == OpKind::kSendRecv) return &pair_;
    if (Channels::Carry(operation.kind)) return &exchange_;
    if (SmallAlgorithm::Fits(operation, group_.size())) return &small_;
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

absl::Status ShmBackend::Viable(const Members& members) const {
  if (members.one_host) return absl::OkStatus();
  return absl::FailedPreconditionError("the ranks are on several hosts");
}

absl::StatusOr<std::vector<ShmMember>> ShmBackend::MembersOf(const Members& members,
                                                             absl::Span<const Rank> ranks) const {
  RUEDA_ASSIGN_OR_RETURN(Area* const areas, segment_->Areas(members.set, members.low_priority));
  std::vector<ShmMember> shm_members;
  for (const Rank rank : ranks) {
    const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
    if (it == ranks_.end() || *it != rank) {
      return absl::InternalError("a process set on one host has a rank of another");
    }
    const int local = static_cast<int>(it - ranks_.begin());
    shm_members.push_back({&areas[local], local, arenas_[local]});
  }
  return shm_members;
}

absl::StatusOr<std::unique_ptr<Communicator>> ShmBackend::Connect(const Members& members) {
  RUEDA_ASSIGN_OR_RETURN(std::vector<ShmMember> shm_members, MembersOf(members, members.ranks));
  return std::make_unique<ShmCommunicator>(std::move(shm_members), members, neighbours_,
                                           own_arena_);
}

std::unique_ptr<Backend> MakeShm(const BackendArgs& args) {
  return std::make_unique<ShmBackend>(args.segment, args.neighbours, args.host_ranks, args.arenas,
                                      args.own_arena);
}

}  // namespace rueda
