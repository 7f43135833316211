#include "ops/hierarchical/hierarchical_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/backend/make.h"
#include "ops/gloo/blocking_communicator.h"
#include "ops/hierarchical/block_pipeline.h"
#include "ops/hierarchical/cross_wire.h"
#include "ops/hierarchical/gloo_exchange.h"
#include "ops/hierarchical/hierarchical_allreduce.h"
#include "ops/hierarchical/hierarchical_exchange.h"
#include "ops/hierarchical/hierarchical_reducescatter.h"
#include "ops/hierarchical/socket_exchange.h"

namespace rueda {
namespace {

// Of what is different for each member, how much a host may have for all that copies inside the
// hosts cost less than the flat path's connections.
constexpr size_t kOwnBytesMax = 4 << 20;

class HierarchicalCommunicator : public Communicator, public SilenceProbe {
 public:
  // `exchange` null: this rank has no stripe. `flat`: of all members, for what is not done here.
  HierarchicalCommunicator(HostSplit split, const CutLimits& limits, bool narrow,
                           uint32_t generation, std::unique_ptr<LocalRing> ring,
                           std::unique_ptr<StripeExchange> exchange,
                           std::unique_ptr<Communicator> flat, bool over_sockets)
      : ring_(std::move(ring)),
        context_{std::move(split), limits, narrow, ring_.get()},
        allreduce_(&context_),
        exchange_operation_(&context_),
        reducescatter_(&context_),
        flat_(std::move(flat)),
        flat_probe_(flat_->silence_probe()),
        exchange_(std::move(exchange)),
        over_sockets_(over_sockets),
        pipeline_(&context_.split, FirstCount(generation), ring_.get(), exchange_.get()) {}

  void Start(const BucketOperation& operation) override {
    BlockOperation* const work = WorkFor(operation);
    here_ = work != nullptr;
    if (here_) return pipeline_.Start(work, operation);
    flat_->Start(operation);
  }
  absl::StatusOr<Progress> Advance() override {
    return here_ ? pipeline_.Advance() : flat_->Advance();
  }
  PhaseTimes phase_times() const override {
    return here_ ? pipeline_.phase_times() : flat_->phase_times();
  }
  SilenceProbe* silence_probe() override { return this; }
  // Of another host the one who has this rank's stripe.
  std::optional<Silence> SilentMember() override {
    if (!here_) return flat_probe_->SilentMember();
    if (exchange_ == nullptr) return std::nullopt;
    std::optional<Silence> silence = exchange_->SilentHost();
    if (silence.has_value()) {
      const HostSplit& split = context_.split;
      const auto& members = split.members[static_cast<size_t>(silence->member)];
      silence->member = members[static_cast<size_t>(split.local)];
    }
    return silence;
  }
  void Abort() override {
    if (exchange_ != nullptr) exchange_->Abort();
    flat_->Abort();
  }

 private:
  // Null: it goes flat. Of what goes over Gloo, that sends as few bytes where every host has one
  // member, unless they are passed on, or where each member gets bytes of its own; it sends from
  // the tensors themselves, but over loopback inside the hosts. The bits are the same.
  BlockOperation* WorkFor(const BucketOperation& operation) {
    const OpKind kind = operation.kind;
    if (HierarchicalAllreduce::Does(kind)) return &allreduce_;
    const HostSplit& split = context_.split;
    const bool passes_on = kind == OpKind::kBroadcast && split.hosts() > 2;
    if (!over_sockets_ && split.ranks() == split.hosts() && !passes_on) return nullptr;
    if (HierarchicalReducescatter::Does(kind)) return &reducescatter_;
    if (!HierarchicalExchange::Does(kind)) return nullptr;
    const bool are_own =
        kind == OpKind::kAlltoall || kind == OpKind::kScatter || kind == OpKind::kGather;
    int64_t elements = 0;
    for (const int64_t count : operation.counts) elements += count;
    const auto most = static_cast<int64_t>(kOwnBytesMax / DTypeSize(operation.dtype));
    return !over_sockets_ && are_own && elements / split.hosts() > most ? nullptr
                                                                        : &exchange_operation_;
  }

  const std::unique_ptr<LocalRing> ring_;
  const BlockContext context_;
  HierarchicalAllreduce allreduce_;
  HierarchicalExchange exchange_operation_;
  HierarchicalReducescatter reducescatter_;
  const std::unique_ptr<Communicator> flat_;
  SilenceProbe* const flat_probe_;                  // Gloo has one
  const std::unique_ptr<StripeExchange> exchange_;  // ends before what it works on
  const bool over_sockets_;                         // what the exchanges are, on all members
  BlockPipeline pipeline_;
  bool here_ = true;
};

}  // namespace

absl::Status HierarchicalBackend::Viable(const Members& members) const {
  if (members.one_host) return absl::FailedPreconditionError("the ranks are on one host");
  return across_->Viable(members);
}

absl::StatusOr<std::unique_ptr<Communicator>> HierarchicalBackend::Connect(const Members& members) {
  HostSplit split = SplitByHost(members);
  BlockSizes blocks = options_.connector != nullptr ? kBlocksOverSockets : kBlocksOverGloo;
  if (options_.block_bytes > 0) blocks.most = blocks.reduced = options_.block_bytes;
  const CutLimits limits = LimitsFor(split.hosts(), split.stripes, blocks);
  std::vector<Rank> neighbours;
  for (const int member : split.own()) neighbours.push_back(members.ranks[member]);
  LocalRingArgs ring_args;
  RUEDA_ASSIGN_OR_RETURN(ring_args.members, local_->MembersOf(members, neighbours));
  ring_args.self = split.local;
  ring_args.neighbours = local_->neighbours();
  ring_args.arena = local_->own_arena();
  ring_args.input_bytes = neighbours.size() > 1 ? limits.block_bytes : 0;
  ring_args.output_bytes = limits.stripe_bytes;
  auto ring = std::make_unique<LocalRing>(std::move(ring_args));
  std::unique_ptr<StripeExchange> exchange;
  if (split.local < split.stripes) {
    RUEDA_ASSIGN_OR_RETURN(exchange, Across(members, split, limits, ring.get()));
  }
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> flat, across_->Connect(members));
  return std::make_unique<HierarchicalCommunicator>(
      std::move(split), limits, options_.narrow, members.generation, std::move(ring),
      std::move(exchange), std::move(flat), options_.connector != nullptr);
}

absl::StatusOr<std::unique_ptr<StripeExchange>> HierarchicalBackend::Across(const Members& members,
                                                                            const HostSplit& split,
                                                                            const CutLimits& limits,
                                                                            LocalRing* ring) const {
  RUEDA_ASSIGN_OR_RETURN(ModuleArgs lane,
                         across_->ArgsFor(members, absl::StrCat("stripe", split.local)));
  lane.members = split.hosts();
  lane.self = split.host;
  if (options_.connector == nullptr) return GlooExchange::Create({std::move(lane), limits, ring});
  SocketExchangeArgs args;
  args.lane = std::move(lane);
  for (const std::vector<int>& host : split.members) {
    args.ranks.push_back(
        members.ranks[static_cast<size_t>(host[static_cast<size_t>(split.local)])]);
  }
  args.self = split.host;
  args.connector = options_.connector;
  args.wait_set = options_.wait_set;
  args.limits = limits;
  args.first = FirstCount(members.generation);
  args.ring = ring;
  return SocketExchange::Create(std::move(args));
}

absl::StatusOr<Levels> HierarchicalBackend::ConnectLevels(const Members& members) {
  HostSplit split = SplitByHost(members);
  Levels levels;
  levels.host = split.host;
  levels.local = split.local;
  levels.stripes = split.stripes;
  Members inside = members;
  inside.ranks.clear();
  for (const int member : split.own()) inside.ranks.push_back(members.ranks[member]);
  inside.self = split.local;
  inside.one_host = true;
  inside.hosts.clear();
  // In areas whose blocks the ring between hosts does not use.
  RUEDA_ASSIGN_OR_RETURN(levels.inside, local_->Connect(inside));
  if (split.local < split.stripes) {
    RUEDA_ASSIGN_OR_RETURN(ModuleArgs args,
                           across_->ArgsFor(members, absl::StrCat("level", split.local)));
    args.members = split.hosts();
    args.self = split.host;
    RUEDA_ASSIGN_OR_RETURN(levels.across, BlockingCommunicator::Create(std::move(args)));
  }
  levels.hosts = std::move(split.members);
  return levels;
}

std::unique_ptr<Backend> MakeHierarchical(const BackendArgs& args) {
  HierarchicalOptions options;
  options.narrow = TravelsNarrow(*args.config);
  if (args.config->cross != "gloo") {
    options.connector = args.connector;
    options.wait_set = args.wait_set;
  }
  return std::make_unique<HierarchicalBackend>(static_cast<ShmBackend*>(args.other("shm")),
                                               static_cast<GlooBackend*>(args.other("gloo")),
                                               options);
}

}  // namespace rueda
