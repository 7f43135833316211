#include "controller/lanes/lanes.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/lanes/outputs.h"
#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/seconds.h"
#include "core/trace/recorder.h"
#include "ops/adasum/adasum_communicator.h"
#include "ops/backend/selector.h"
#include "ops/compression/compressed_communicator.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// Rank 0 hears each rank's data by itself, where the tree of leaders says the rest in one voice.
constexpr int kInlineRanksMax = 256;

// What is of low priority takes a step after so long even though others move: some rank may wait
// for it, and takes another one that is silent for lost.
constexpr Nanos kLowWaitsFor = 10 * kMillisecond;

Shape NoRows(const Shape& row) {
  std::vector<int64_t> dims = {0};
  dims.insert(dims.end(), row.dims().begin(), row.dims().end());
  return Shape(dims);
}

}  // namespace

Lanes::Lanes(Args args) : args_(std::move(args)) {
  for (const std::unique_ptr<Backend>& backend : *args_.backends) {
    if (on_device_ == nullptr) on_device_ = backend->on_device();
  }
}

Lanes::~Lanes() = default;

// A process set's ranks as seen from this one; `self` < 0: it is no member.
Members Lanes::MembersOf(SetId set_id) const {
  const World& world = *args_.world;
  const ProcessSet& set = *args_.member->process_sets().Find(set_id);
  Members members;
  members.set = set_id;
  members.generation = set.generation;
  members.ranks = set.ranks;
  members.self = set.IndexOf(world.rank);
  for (const Rank rank : set.ranks) {
    members.one_host &= world.LocalIndex(rank) >= 0;
    members.hosts.push_back(world.topology.ranks[rank].host);
  }
  return members;
}

absl::Status Lanes::Open(SetId set) {
  if (static_cast<size_t>(set) >= lanes_.size()) lanes_.resize(static_cast<size_t>(set) + 1);
  const Members members = MembersOf(set);
  if (members.self < 0) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(const Selection selection,
                         SelectBackend(args_.config->backend, members, *args_.backends));
  RUEDA_LOG(Info) << "process set " << set << " is served by " << selection.backend->name() << ":\n"
                  << selection.Table();
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         ConnectOnCpu(selection.backend, members));
  lanes_[set] = std::make_unique<Lane>(set, SplitByHost(members), members.self, *args_.config,
                                       selection.backend, std::move(communicator), &compression_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Lanes::ConnectOnCpu(Backend* backend,
                                                                  const Members& members) {
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, backend->Connect(members));
  const int count = static_cast<int>(members.ranks.size());
  communicator = std::make_unique<AdasumCommunicator>(std::move(communicator), count, members.self);
  std::function<absl::StatusOr<Levels>()> levels;
  if (!members.one_host) {
    levels = [backend, members]() -> absl::StatusOr<Levels> {
      absl::StatusOr<Levels> found = backend->ConnectLevels(members);
      // Gloo alone has none.
      return absl::IsFailedPrecondition(found.status()) ? Levels() : std::move(found);
    };
  }
  return std::make_unique<CompressedCommunicator>(std::move(communicator), count, members.self,
                                                  std::move(levels));
}

absl::Status Lanes::OpenOfLowPriority(Lane& lane) {
  Members members = MembersOf(lane.set());
  members.low_priority = true;
  Backend& backend = lane.backend(Queue::kCpu);
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         ConnectOnCpu(&backend, members));
  lane.Open(Queue::kLow, &backend, std::move(communicator));
  return absl::OkStatus();
}

absl::Status Lanes::OpenQueue(Lane& lane, Queue queue, Communicator* parent) {
  if (queue == Queue::kLow) return OpenOfLowPriority(lane);
  RUEDA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> communicator,
      on_device_->ConnectOn(MembersOf(lane.set()), queue == Queue::kUrgent, parent));
  lane.Open(queue, on_device_, std::move(communicator));
  return absl::OkStatus();
}

absl::Status Lanes::OpenOnDevice(SetId set) {
  Communicator* const world = lanes_[kWorldSet]->communicator(Queue::kDevice);
  if (world == nullptr || MembersOf(set).ranks.size() < 2) return absl::OkStatus();
  if (lanes_[set] != nullptr) return OpenQueue(*lanes_[set], Queue::kDevice, world);
  on_device_->SkipSplit(world);
  return absl::OkStatus();
}

void Lanes::Close(SetId set) {
  Lane* const lane = Find(set);
  if (lane == nullptr) return;
  for (const Queue queue : {Queue::kDevice, Queue::kUrgent}) {
    if (lane->has(queue)) on_device_->Retire(lane->Take(queue));
  }
  lanes_[set].reset();
  compression_.Forget(set);
}

// Plans go to all hosts: each has somebody who waits for this one, so that they come no faster than
// the slowest takes them.
bool Lanes::PlanBrings(const Lane& lane) const {
  const int hosts = lane.split().hosts();
  return args_.config->backend == "auto" && hosts > 1 &&
         hosts == static_cast<int>(args_.world->topology.hosts.size());
}

// Of a blocking call, which would have nothing to do until the others' data has come another way.
void Lanes::Bring(Request* request) const {
  const Lane* const lane = Find(request->spec->set);
  const Signature& signature = request->spec->signature;
  const int64_t limit = args_.config->inline_bytes;
  if (!request->waited || lane == nullptr || !PlanBrings(*lane) || limit == 0 ||
      lane->split().ranks() > kInlineRanksMax || request->extras.fault() != nullptr) {
    return;
  }
  const bool is_broadcast = signature.kind == OpKind::kBroadcast;
  const Rank self = args_.world->rank;
  // Who brings nothing to a broadcast says so only if the root may bring it.
  const int64_t largest =
      BytesBrought(signature, request->extras.first_dims, is_broadcast ? signature.root : self);
  if (largest < 0 || largest * (is_broadcast ? 1 : lane->split().ranks()) > limit) return;
  const int64_t bytes = is_broadcast && self != signature.root ? 0 : largest;
  const char* const input = bytes == 0 ? "" : static_cast<const char*>(request->parts[0].input);
  request->extras.SayData(std::string(input, static_cast<size_t>(bytes)));
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
  const Queue queue = QueueOf(first_spec.signature);  // of all of the batch
  // There is a communicator when the first comes that needs it.
  if (!lane.has(queue)) {
    if (const absl::Status status = OpenQueue(lane, queue, nullptr); !status.ok()) {
      return StatusAt(absl::StrCat("can't take part in ", SpecLabel(first_spec),
                                   IsOnDevice(queue) ? " on CUDA" : " at low priority"),
                      status);
    }
  }
  batch.data = launch.data;
  if (first_spec.signature.kind == OpKind::kBarrier && !IsOnDevice(queue) && PlanBrings(lane)) {
    // That it is ordered says that all have come.
    batch.data = std::make_shared<const std::vector<std::string>>();
  }
  // What takes part in others' operations: nothing of ours, and no rows.
  std::vector<std::vector<PartArgs>> absent_parts;
  for (const LaunchItem& item : launch.items) {
    if (item.token == kNoToken) {
      absent_parts.emplace_back();
      for (const PartSignature& part : item.spec->signature.parts) {
        absent_parts.back().emplace_back();
        absent_parts.back().back().dtype = part.dtype;
        absent_parts.back().back().shape =
            TraitsOf(item.spec->signature.kind).ragged ? NoRows(part.shape) : part.shape;
      }
      batch.operations.push_back(
          {nullptr, item.id, item.spec.get(), absent_parts.back(), item.first_dims, nullptr});
      continue;
    }
    Request* const request = requests[item.token];
    const auto allocate = [&](size_t bytes) { return Allocate(queue, bytes); };
    request->local_error =
        PrepareOutputs(request, item.first_dims, set, args_.world->rank, allocate);
    request->buckets_left = 0;
    request->buckets_to_enqueue = 0;
    request->ordered_at = now;
    request->absent = batch.absent;
    args_.tracks->Ordered(request, item.id);
    batch.scaling = request->extras.scaling;
    batch.operations.push_back(
        {request, item.id, request->spec.get(), request->parts, item.first_dims, request->ready});
  }
  LaneBuckets buckets = lane.Plan(batch, set, args_.config->fusion_threshold);
  TellOfExactAverages(buckets);
  if (!lane.busy() && !buckets.empty()) {
    ++busy_;
    args_.activity->store(buckets.front().first_id, std::memory_order_relaxed);
  }
  if (queue == Queue::kLow) {
    if (low_buckets_ == 0) low_at_ = now;
    low_buckets_ += static_cast<int>(buckets.size());
  }
  for (LaneBucket& bucket : buckets) bucket.operation.timed = args_.timeline->on();
  lane.Add(queue, std::move(buckets));
  CountBatches(lane);
  return absl::OkStatus();
}

// Once, on rank 0: the numbers are others than before 0.1. To be removed with 0.3.
void Lanes::TellOfExactAverages(const LaneBuckets& buckets) {
  if (args_.world->rank != 0 || told_of_exact_averages_) return;
  for (const LaneBucket& bucket : buckets) {
    const BucketOperation& operation = bucket.operation;
    if (operation.scaling.divisor == 1 ||
        !kernels::IsExactAverage(operation.dtype, operation.reduce_op)) {
      continue;
    }
    told_of_exact_averages_ = true;
    const Request* const request = bucket.requests.front();  // null: this rank has joined
    RUEDA_LOG(Warning) << (request == nullptr ? "allreduce" : SpecLabel(*request->spec))
                       << ": the average of " << DTypeName(operation.dtype)
                       << " is exact now. Its sum used to wrap around before it was divided.";
    return;
  }
}

// Memory for a result of unknown size.
absl::StatusOr<std::shared_ptr<void>> Lanes::Allocate(Queue queue, size_t bytes) const {
  if (IsOnDevice(queue)) return on_device_->device().Allocate(std::max<size_t>(bytes, 1));
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
  RUEDA_ASSIGN_OR_RETURN(const bool moved,
                         AdvanceQueues({Queue::kCpu, Queue::kDevice, Queue::kUrgent}, goes_on));
  if (low_buckets_ == 0 || !goes_on()) return moved;
  const Nanos now = MonotonicNow();
  if (moved && now - low_at_ < kLowWaitsFor) return true;
  low_at_ = now;
  RUEDA_ASSIGN_OR_RETURN(const bool low_moved, AdvanceQueues({Queue::kLow}, goes_on));
  return moved || low_moved;
}

absl::StatusOr<bool> Lanes::AdvanceQueues(absl::Span<const Queue> queues,
                                          absl::FunctionRef<bool()> goes_on) {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    for (const Queue queue : queues) {
      if (aborted_) return moved;
      if (lanes_[i] == nullptr || !lanes_[i]->busy(queue)) continue;
      RUEDA_ASSIGN_OR_RETURN(const bool one_moved, AdvanceQueue(*lanes_[i], queue));
      moved |= one_moved;
      if (!goes_on()) return true;
    }
  }
  return moved;
}

absl::StatusOr<bool> Lanes::AdvanceQueue(Lane& lane, Queue queue) {
  bool moved = false;
  if (IsOnDevice(queue)) {
    enqueued_.clear();
    lane.TakeEnqueued(queue, &enqueued_);
    for (Request* request : enqueued_) args_.listener->OnEnqueued(request);
    moved = !enqueued_.empty();
  }
  RUEDA_ASSIGN_OR_RETURN(const Progress progress, lane.Advance(queue));
  if (progress == Progress::kDone) OnBucketDone(lane, queue);
  return moved || progress != Progress::kBlocked;
}

void Lanes::OnBucketDone(Lane& lane, Queue queue) {
  const LaneBuckets popped = lane.Pop(queue);
  const LaneBucket& bucket = popped.front();
  if (queue == Queue::kLow) --low_buckets_;
  if (lane.busy()) {
    const Queue other = *std::find_if(std::begin(kQueues), std::end(kQueues),
                                      [&](Queue candidate) { return lane.busy(candidate); });
    args_.activity->store(lane.front(lane.busy(queue) ? queue : other).first_id,
                          std::memory_order_relaxed);
  } else {
    --busy_;
    args_.activity->store(kNoTensor, std::memory_order_relaxed);
  }
  args_.tracks->BucketDone(lane, queue, bucket);
  CountBatches(lane);
  for (Request* request : bucket.requests) {
    if (request != nullptr && --request->buckets_left == 0) {
      args_.listener->OnLastBucketDone(request, bucket.done_at);
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
  const Nanos now = MonotonicNow();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const std::optional<Silence> silence = lane->SilentMember(now);
    if (!silence.has_value()) continue;
    const ProcessSet& set = *args_.member->process_sets().Find(lane->set());
    const std::string between =
        absl::StrCat("the network between its host and that of rank ", world.rank, " (",
                     world.infos[world.rank].host_name, ")");
    return Watch::Lost{
        set.ranks[static_cast<size_t>(silence->member)],
        silence->is_of_large
            ? absl::StrCat("large packets to it have been lost for ", Seconds(silence->time),
                           ", and small ones are answered: ", between,
                           " takes smaller packets than the network interfaces (their MTU)")
            : absl::StrCat("silent for ", Seconds(silence->time), ": ", between,
                           " carries nothing any more")};
  }
  return std::nullopt;
}

void Lanes::Abort() {
  aborted_ = true;
  ForEach([](Lane& lane) {
    for (const Queue queue : kQueues) {
      if (!lane.busy(queue)) continue;
      for (Request* request : lane.front(queue).requests) {
        if (request != nullptr) request->started_at = lane.front(queue).started_at;
      }
    }
    lane.Abort();
  });
}

}  // namespace rueda
