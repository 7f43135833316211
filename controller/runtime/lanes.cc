#include "controller/runtime/lanes.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/runtime/outputs.h"
#include "core/base/log.h"
#include "core/base/seconds.h"
#include "core/trace/recorder.h"
#include "ops/adasum/adasum_communicator.h"
#include "ops/backend/selector.h"
#include "ops/compression/compressed_communicator.h"

namespace rueda {

Lanes::Lanes(Args args) : args_(std::move(args)) {
  for (const std::unique_ptr<Backend>& backend : *args_.backends) {
    if (on_device_ == nullptr) on_device_ = backend->on_device();
  }
}

Lanes::~Lanes() = default;

// A process set's ranks as seen from this one; `self` < 0: it is no member.
Group Lanes::GroupOf(SetId set_id) const {
  const World& world = *args_.world;
  const ProcessSet& set = *args_.member->process_sets().Find(set_id);
  Group group;
  group.set = set_id;
  group.generation = set.generation;
  group.ranks = set.ranks;
  group.self = set.IndexOf(world.rank);
  for (const Rank rank : set.ranks) {
    group.one_host &= world.LocalIndex(rank) >= 0;
    group.hosts.push_back(world.topology.ranks[rank].host);
  }
  return group;
}

absl::Status Lanes::Open(SetId set) {
  if (static_cast<size_t>(set) >= lanes_.size()) lanes_.resize(static_cast<size_t>(set) + 1);
  const Group group = GroupOf(set);
  if (group.self < 0) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(const Selection selection,
                         SelectBackend(args_.config->backend, group, *args_.backends));
  RUEDA_LOG(Info) << "process set " << set << " is served by " << selection.backend->name() << ":\n"
                  << selection.Table();
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         selection.backend->Connect(group));
  const int members = static_cast<int>(group.ranks.size());
  communicator = std::make_unique<AdasumCommunicator>(std::move(communicator), members, group.self);
  std::function<absl::StatusOr<Levels>()> levels;
  if (!group.one_host) {
    levels = [backend = selection.backend, group]() -> absl::StatusOr<Levels> {
      absl::StatusOr<Levels> found = backend->ConnectLevels(group);
      // Gloo alone has none.
      return absl::IsFailedPrecondition(found.status()) ? Levels() : std::move(found);
    };
  }
  communicator = std::make_unique<CompressedCommunicator>(std::move(communicator), members,
                                                          group.self, std::move(levels));
  lanes_[set] =
      std::make_unique<Lane>(set, selection.backend, std::move(communicator), &compression_);
  return absl::OkStatus();
}

absl::Status Lanes::OpenWay(Lane& lane, Way way, Communicator* parent) {
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         on_device_->ConnectOn(GroupOf(lane.set()), way == Way::kUrgent, parent));
  lane.Open(way, on_device_, std::move(communicator));
  return absl::OkStatus();
}

absl::Status Lanes::OpenOnDevice(SetId set) {
  Communicator* const world = lanes_[kWorldSet]->communicator(Way::kDevice);
  if (world == nullptr || GroupOf(set).ranks.size() < 2) return absl::OkStatus();
  if (lanes_[set] != nullptr) return OpenWay(*lanes_[set], Way::kDevice, world);
  on_device_->LeaveOut(world);
  return absl::OkStatus();
}

void Lanes::Close(SetId set) {
  Lane* const lane = Find(set);
  if (lane == nullptr) return;
  for (const Way way : {Way::kDevice, Way::kUrgent}) {
    if (lane->has(way)) on_device_->Retire(lane->Take(way));
  }
  lanes_[set].reset();
  compression_.Forget(set);
}

absl::Status Lanes::Launch(const rueda::Launch& launch, absl::Span<Request* const> requests) {
  RUEDA_CHECK(!aborted_);
  const ProcessSet& set = *args_.member->process_sets().Find(launch.lane);
  Lane& lane = *lanes_[launch.lane];
  const Nanos now = trace::Record(trace::Event::kOrder, 0, static_cast<uint64_t>(launch.lane),
                                  launch.items.size());
  LaneBatch batch;
  batch.scaling = launch.scaling;
  batch.sequence = static_cast<uint64_t>(set.generation) << 32 | (launch.number & UINT32_MAX);
  for (const Rank rank : launch.absent) batch.absent.push_back(set.IndexOf(rank));
  const LaunchItem& first = launch.items.front();
  const TensorSpec& first_spec =
      first.token == kNoToken ? *first.spec : *requests[first.token]->spec;
  const Way way = WayOf(first_spec.signature);  // of all of the batch
  // Tensors on a device have a communicator when the first of them comes: the same operation on all
  // members.
  if (!lane.has(way)) {
    if (const absl::Status status = OpenWay(lane, way, nullptr); !status.ok()) {
      return StatusAt(absl::StrCat("can't take part in ", SpecLabel(first_spec), " on CUDA"),
                      status);
    }
  }
  // What takes part in others' operations: nothing of ours.
  std::vector<std::vector<PartArgs>> absent_parts;
  for (const LaunchItem& item : launch.items) {
    if (item.token == kNoToken) {
      absent_parts.emplace_back();
      for (const PartSignature& part : item.spec->signature.parts) {
        absent_parts.back().emplace_back();
        absent_parts.back().back().dtype = part.dtype;
        absent_parts.back().back().shape = part.shape;
      }
      batch.operations.push_back(
          {nullptr, item.id, item.spec.get(), absent_parts.back(), {}, nullptr});
      continue;
    }
    Request* const request = requests[item.token];
    const auto allocate = [&](size_t bytes) { return Allocate(way, bytes); };
    request->local_error =
        PrepareOutputs(request, item.first_dims, set, args_.world->rank, allocate);
    request->buckets_left = 0;
    request->buckets_to_enqueue = 0;
    request->ordered_at = now;
    args_.tracks->Ordered(request, item.id);
    batch.scaling = request->extras.scaling;
    batch.operations.push_back(
        {request, item.id, request->spec.get(), request->parts, item.first_dims, request->ready});
  }
  std::vector<LaneBucket> buckets = lane.Plan(batch, set, args_.config->fusion_threshold);
  if (!lane.busy() && !buckets.empty()) {
    ++busy_;
    args_.activity->store(buckets.front().first_id, std::memory_order_relaxed);
  }
  for (LaneBucket& bucket : buckets) bucket.collective.timed = args_.timeline->on();
  lane.Add(way, std::move(buckets));
  CountBatches(lane);
  return absl::OkStatus();
}

// Memory for a result of unknown size.
absl::StatusOr<std::shared_ptr<void>> Lanes::Allocate(Way way, size_t bytes) const {
  if (way != Way::kCpu) return on_device_->device().Allocate(std::max<size_t>(bytes, 1));
  std::shared_ptr<void> memory(malloc(std::max<size_t>(bytes, 1)), &free);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
}

void Lanes::CountBatches(Lane& lane) {
  for (int left = lane.TakeFinishedBatches(); left > 0; --left) {
    args_.member->CompletedBatch(lane.set());
  }
}

absl::StatusOr<bool> Lanes::Advance(absl::FunctionRef<bool()> goes_on) {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    for (const Way way : kWays) {
      if (aborted_) return moved;
      if (lanes_[i] == nullptr || !lanes_[i]->busy(way)) continue;
      RUEDA_ASSIGN_OR_RETURN(const bool one_moved, AdvanceWay(*lanes_[i], way));
      moved |= one_moved;
      if (!goes_on()) return true;
    }
  }
  return moved;
}

absl::StatusOr<bool> Lanes::AdvanceWay(Lane& lane, Way way) {
  bool moved = false;
  if (way != Way::kCpu) {
    enqueued_.clear();
    lane.TakeEnqueued(way, &enqueued_);
    for (Request* request : enqueued_) args_.listener->OnEnqueued(request);
    moved = !enqueued_.empty();
  }
  RUEDA_ASSIGN_OR_RETURN(const Progress progress, lane.Advance(way));
  if (progress == Progress::kDone) OnBucketDone(lane, way);
  return moved || progress != Progress::kBlocked;
}

void Lanes::OnBucketDone(Lane& lane, Way way) {
  const LaneBucket bucket = lane.Pop(way);
  if (lane.busy()) {
    const Way other = *std::find_if(std::begin(kWays), std::end(kWays),
                                    [&](Way candidate) { return lane.busy(candidate); });
    args_.activity->store(lane.front(lane.busy(way) ? way : other).first_id,
                          std::memory_order_relaxed);
  } else {
    --busy_;
    args_.activity->store(kNoTensor, std::memory_order_relaxed);
  }
  args_.tracks->BucketDone(lane, way, bucket);
  CountBatches(lane);
  for (Request* request : bucket.requests) {
    if (request != nullptr && --request->buckets_left == 0) {
      args_.listener->OnLastBucketDone(request);
    }
  }
}

bool Lanes::SayFarewell(bool begin) {
  bool over = true;
  ForEach([&](Lane& lane) {
    const bool said = begin ? lane.BeginFarewell() : lane.AdvanceFarewell();
    over &= said || NeighbourIsThrough(lane.set());
  });
  return over;
}

// Whether another member on this host has left: then all members have come to the barrier. It may
// have failed here, as one on another host was faster still, and nobody else would tell this rank.
bool Lanes::NeighbourIsThrough(SetId set_id) const {
  const World& world = *args_.world;
  const ProcessSet& set = *args_.member->process_sets().Find(set_id);
  for (const Rank rank : world.topology.host_of(world.rank).ranks) {
    if (rank == world.rank || !set.Contains(rank)) continue;
    const RankPage& page = world.neighbourhood.segment->page(world.LocalIndex(rank));
    if (page.left.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

std::optional<Watch::Lost> Lanes::SilentRank() const {
  const World& world = *args_.world;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const std::optional<Silence> silence = lane->SilentMember();
    if (!silence.has_value()) continue;
    const ProcessSet& set = *args_.member->process_sets().Find(lane->set());
    return Watch::Lost{
        set.ranks[static_cast<size_t>(silence->member)],
        absl::StrCat("silent for ", Seconds(silence->time),
                     ": the network between its host and that of rank ", world.rank, " (",
                     world.infos[world.rank].host_name, ") carries nothing any more")};
  }
  return std::nullopt;
}

void Lanes::Abort() {
  aborted_ = true;
  ForEach([](Lane& lane) {
    for (const Way way : kWays) {
      if (!lane.busy(way)) continue;
      for (Request* request : lane.front(way).requests) {
        if (request != nullptr) request->started_at = lane.front(way).started_at;
      }
    }
    lane.Abort();
  });
}

}  // namespace rueda
