#include "ops/hierarchical/hierarchical_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/backend/make.h"
#include "ops/gloo/blocking_communicator.h"
#include "ops/hierarchical/cross_lane.h"
#include "ops/hierarchical/hierarchical_allreduce.h"

namespace rueda {
namespace {

class HierarchicalCommunicator : public Communicator, public SilenceProbe {
 public:
  // `lane` null: this rank has no stripe. `flat`: of all members, for what is not done here.
  HierarchicalCommunicator(HostSplit split, const CutLimits& limits, uint32_t generation,
                           std::unique_ptr<LocalRing> ring, std::unique_ptr<CrossLane> lane,
                           std::unique_ptr<Communicator> flat)
      : split_(std::move(split)),
        flat_(std::move(flat)),
        flat_probe_(flat_->silence_probe()),
        ring_(std::move(ring)),
        lane_(std::move(lane)),
        allreduce_(&split_, limits, FirstCount(generation), ring_.get(), lane_.get()) {}

  void Start(const Collective& collective) override {
    here_ = HierarchicalAllreduce::Does(collective.kind);
    if (here_) return allreduce_.Start(collective);
    flat_->Start(collective);
  }
  absl::StatusOr<Progress> Advance() override {
    return here_ ? allreduce_.Advance() : flat_->Advance();
  }
  PhaseTimes phase_times() const override {
    return here_ ? allreduce_.phase_times() : flat_->phase_times();
  }
  SilenceProbe* silence_probe() override { return this; }
  // Of another host the one who has this rank's stripe.
  std::optional<Silence> SilentMember() override {
    if (!here_) return flat_probe_->SilentMember();
    if (lane_ == nullptr) return std::nullopt;
    std::optional<Silence> silence = lane_->SilentHost();
    if (silence.has_value()) {
      const auto& members = split_.members[static_cast<size_t>(silence->member)];
      silence->member = members[static_cast<size_t>(split_.local)];
    }
    return silence;
  }
  void Abort() override {
    if (lane_ != nullptr) lane_->Abort();
    flat_->Abort();
  }

 private:
  const HostSplit split_;
  const std::unique_ptr<Communicator> flat_;
  SilenceProbe* const flat_probe_;  // Gloo has one
  const std::unique_ptr<LocalRing> ring_;
  const std::unique_ptr<CrossLane> lane_;
  HierarchicalAllreduce allreduce_;
  bool here_ = true;
};

}  // namespace

absl::Status HierarchicalBackend::Viable(const Group& group) const {
  if (group.one_host) return absl::FailedPreconditionError("the ranks are on one host");
  return across_->Viable(group);
}

absl::StatusOr<std::unique_ptr<Communicator>> HierarchicalBackend::Connect(const Group& group) {
  HostSplit split = SplitByHost(group);
  const CutLimits limits = LimitsFor(split.hosts(), split.stripes, block_bytes_);
  std::vector<Rank> neighbours;
  for (const int member : split.own()) neighbours.push_back(group.ranks[member]);
  LocalRingArgs ring_args;
  RUEDA_ASSIGN_OR_RETURN(ring_args.members, local_->MembersOf(group.set, neighbours));
  ring_args.self = split.local;
  ring_args.neighbours = local_->neighbours();
  ring_args.arena = local_->own_arena();
  ring_args.input_bytes = neighbours.size() > 1 ? limits.block_bytes : 0;
  ring_args.output_bytes = limits.stripe_bytes;
  auto ring = std::make_unique<LocalRing>(std::move(ring_args));
  std::unique_ptr<CrossLane> lane;
  if (split.local < split.stripes) {
    CrossLaneArgs lane_args;
    RUEDA_ASSIGN_OR_RETURN(lane_args.module,
                           across_->ArgsFor(group, absl::StrCat("stripe", split.local)));
    lane_args.module.members = split.hosts();
    lane_args.module.self = split.host;
    lane_args.limits = limits;
    lane_args.stripe = split.local;
    lane_args.ring = ring.get();
    RUEDA_ASSIGN_OR_RETURN(lane, CrossLane::Create(std::move(lane_args)));
  }
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> flat, across_->Connect(group));
  return std::make_unique<HierarchicalCommunicator>(std::move(split), limits, group.generation,
                                                    std::move(ring), std::move(lane),
                                                    std::move(flat));
}

absl::StatusOr<Levels> HierarchicalBackend::ConnectLevels(const Group& group) {
  HostSplit split = SplitByHost(group);
  Levels levels;
  levels.host = split.host;
  levels.local = split.local;
  levels.stripes = split.stripes;
  Group inside = group;
  inside.ranks.clear();
  for (const int member : split.own()) inside.ranks.push_back(group.ranks[member]);
  inside.self = split.local;
  inside.one_host = true;
  inside.hosts.clear();
  // In areas whose blocks the ring between hosts does not use.
  RUEDA_ASSIGN_OR_RETURN(levels.inside, local_->Connect(inside));
  if (split.local < split.stripes) {
    RUEDA_ASSIGN_OR_RETURN(ModuleArgs args,
                           across_->ArgsFor(group, absl::StrCat("level", split.local)));
    args.members = split.hosts();
    args.self = split.host;
    RUEDA_ASSIGN_OR_RETURN(levels.across, BlockingCommunicator::Create(std::move(args)));
  }
  levels.hosts = std::move(split.members);
  return levels;
}

std::unique_ptr<Backend> MakeHierarchical(const BackendArgs& args) {
  return std::make_unique<HierarchicalBackend>(static_cast<ShmBackend*>(args.other("shm")),
                                               static_cast<GlooBackend*>(args.other("gloo")));
}

}  // namespace rueda
