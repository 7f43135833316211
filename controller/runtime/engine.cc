#include "controller/runtime/engine.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controller/bus/log_bus.h"
#include "controller/protocol/codec.h"
#include "controller/runtime/callbacks.h"
#include "controller/runtime/outputs.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/threads.h"
#include "core/trace/recorder.h"
#include "ops/adasum/adasum_communicator.h"
#include "ops/backend/selector.h"
#include "ops/backends.h"
#include "ops/compression/compressed_communicator.h"

namespace rueda {
namespace {

// How long the others may take to be done when everybody has left.
constexpr Nanos kFarewellPatience = 2 * kSecond;
// How long a failure may take to be written down.
constexpr Nanos kRecordPatience = 100 * kMillisecond;

struct Callback {
  CallbackFn function;
  void* user;
  Handle handle;
  absl::StatusCode code;
  Timeline* timeline;
  uint32_t track;  // of the operation
};

// A callback can tell nobody of an exception: it ends the program, on whatever thread it runs.
void CallBack(const Callback& callback) {
  const Nanos began = callback.timeline->on() ? MonotonicNow() : 0;
  try {
    callback.function(callback.user, callback.handle, callback.code);
  } catch (...) {
    RUEDA_LOG(Error) << "a completion callback threw: " << CurrentException().message();
    std::terminate();
  }
  if (began != 0 && callback.timeline->on()) {
    callback.timeline->Span("CALLBACK", Timeline::ThreadTrack(), callback.track, began,
                            MonotonicNow());
  }
}

}  // namespace

// Set-up --------------------------------------------------------------------------------------

Engine::Engine(EngineArgs args)
    : world_(std::move(args.world)),
      config_(*args.config),
      submissions_(args.submissions),
      completions_(args.completions),
      sleepers_(args.sleepers),
      timeline_(args.timeline),
      turns_without_sockets_max_(args.turns_without_sockets),
      arena_(std::move(args.arena)),
      tracks_(args.timeline, world_.rank),
      member_(world_.rank, world_.size(), world_.process_sets),
      left_(world_.size()) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineArgs args) {
  std::unique_ptr<Engine> engine(new Engine(std::move(args)));
  const absl::Status status = WithoutExceptions([&] { return engine->Init(); });
  if (status.ok()) return engine;
  // The neighbours may have started, and threads have no connection that would break.
  Failure failure;
  failure.rank = engine->world_.rank;
  failure.cause = absl::StrCat("it failed to start: ", status.message());
  engine->TellNeighbours(std::move(failure));
  const std::string record = engine->world_.neighbourhood.segment->failure();
  for (RoleLink& role_link : engine->world_.links) {
    role_link.link->Send(FrameType::kFailure, record);
    (void)role_link.link->OnWritable();
  }
  return status;
}

absl::Status Engine::Init() {
  Neighbourhood& around = world_.neighbourhood;
  neighbours_ = std::make_unique<Neighbours>(around.segment.get(), world_.local_rank(),
                                             std::move(around.bells));
  RUEDA_ASSIGN_OR_RETURN(WaitPoint point, WaitPoint::Create(&neighbours_->own_bells().background,
                                                            &neighbours_->own_bells().waiter));
  wait_point_ = std::make_unique<WaitPoint>(std::move(point));
  for (RoleLink& role_link : world_.links) {
    RUEDA_RETURN_IF_ERROR(wait_point_->AddSocket(role_link.link->fd()));
  }
  if (config_.agent_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(verdicts_, VerdictBoard::Open(static_cast<int>(config_.agent_fd)));
    verdicts_->Blame(world_.rank, -1);
  }

  detector_.emplace(world_.rank, world_.size(), verdicts_.get());
  watch_.emplace(&world_.links, static_cast<Nanos>(config_.heartbeat_limit_s * kSecond),
                 MonotonicNow());
  store_ = world_.store;
  if (store_ == nullptr) {
    Link* up = nullptr;
    for (RoleLink& role_link : world_.links) {
      if (role_link.role == LinkRole::kParent || role_link.role == LinkRole::kLeader) {
        up = role_link.link.get();
      }
    }
    link_store_ = std::make_shared<LinkStore>([this] { WakeSelf(); });
    relay_ = std::make_unique<StoreRelay>(up, link_store_.get());
    store_ = link_store_;
  }

  CoordinatorOptions options;
  options.world_size = world_.size();
  options.process_sets = world_.process_sets;
  options.bucket_bytes = config_.fusion_threshold;
  options.stall_warn = static_cast<Nanos>(config_.stall_warn_s * kSecond);
  options.stall_timeout = static_cast<Nanos>(config_.stall_timeout_s * kSecond);
  options.leaders = world_.leaders;
  const std::vector<Rank>& log_ranks = world_.log_ranks;
  const LogLayout layout = LogLayout::For(static_cast<int>(log_ranks.size()));
  void* memory = around.segment->log();
  if (config_.bus == "tcp") {
    memory = own_log_ = aligned_alloc(64, layout.bytes() / 64 * 64 + 64);
    if (memory == nullptr)
      return absl::ResourceExhaustedError("no memory for the announcement log");
    // The side ring need not be zero, and is not touched before it is used.
    memset(memory, 0, layout.bytes() - layout.side_bytes);
  }
  const auto position = std::find(log_ranks.begin(), log_ranks.end(), world_.rank);
  auto log =
      std::make_unique<HostLog>(memory, layout, static_cast<int>(position - log_ranks.begin()));
  const WakeFn wake = [this](Rank rank) { neighbours_->Wake(world_.LocalIndex(rank)); };
  if (world_.one_log) {
    bus_ = std::make_unique<LogBus>(std::move(log), world_.rank, options, wake, [this](Rank rank) {
      neighbours_->WakeIdle(world_.LocalIndex(rank));
    });
  } else {
    auto bus =
        std::make_unique<HostsBus>(std::move(log), log_ranks, world_.rank, options, wake, this);
    hosts_bus_ = bus.get();
    bus_ = std::move(bus);
  }

  BackendArgs backends;
  backends.config = &config_;
  backends.job = world_.job;
  backends.epoch = world_.epoch;
  backends.store = store_;
  backends.wake = [this] { WakeSelf(); };
  backends.network_interface = world_.network_interface;
  backends.host_ranks = world_.topology.host_of(world_.rank).ranks;
  backends.local_rank = world_.local_rank();
  backends.segment = around.segment.get();
  backends.neighbours = neighbours_.get();
  backends.arenas = around.arenas;
  backends.own_arena = arena_;
  backends_ = MakeBackends(std::move(backends));
  for (const std::unique_ptr<Backend>& backend : backends_) {
    if (on_device_ == nullptr) on_device_ = backend->on_device();
  }
  for (SetId set = 0; set < member_.process_sets().end(); ++set) {
    RUEDA_RETURN_IF_ERROR(OpenLane(set));
  }
  return absl::OkStatus();
}

Engine::~Engine() {
  // When all have left in peace nothing is under way anywhere.
  const bool in_peace = membership_.state() == Membership::State::kOver;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane != nullptr && !in_peace) lane->Abort();
  }
  lanes_.clear();
  bus_.reset();
  free(own_log_);
}

Group Engine::GroupOf(SetId set_id) const {
  const ProcessSet& set = *member_.process_sets().Find(set_id);
  Group group;
  group.set = set_id;
  group.generation = set.generation;
  group.ranks = set.ranks;
  group.self = set.IndexOf(world_.rank);
  for (const Rank rank : set.ranks) {
    group.one_host &= world_.LocalIndex(rank) >= 0;
    group.hosts.push_back(world_.topology.ranks[rank].host);
  }
  return group;
}

absl::Status Engine::OpenLane(SetId set_id) {
  if (static_cast<size_t>(set_id) >= lanes_.size()) lanes_.resize(set_id + 1);
  const Group group = GroupOf(set_id);
  if (group.self < 0) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(const Selection selection,
                         SelectBackend(config_.backend, group, backends_));
  RUEDA_LOG(Info) << "process set " << set_id << " is served by " << selection.backend->name()
                  << ":\n"
                  << selection.Table();
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         selection.backend->Connect(group));
  communicator = std::make_unique<AdasumCommunicator>(
      std::move(communicator), static_cast<int>(group.ranks.size()), group.self);
  std::function<absl::StatusOr<Levels>()> levels;
  if (!group.one_host) {
    levels = [backend = selection.backend, group]() -> absl::StatusOr<Levels> {
      absl::StatusOr<Levels> found = backend->ConnectLevels(group);
      // Gloo alone has none.
      return absl::IsFailedPrecondition(found.status()) ? Levels() : std::move(found);
    };
  }
  communicator = std::make_unique<CompressedCommunicator>(
      std::move(communicator), static_cast<int>(group.ranks.size()), group.self, std::move(levels));
  lanes_[set_id] =
      std::make_unique<Lane>(set_id, selection.backend, std::move(communicator), &compression_);
  return absl::OkStatus();
}

// The way of tensors on a device, when the first of them comes: the same operation on all members.
absl::Status Engine::OpenWay(Lane& lane, Way way, Communicator* parent) {
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         on_device_->ConnectOn(GroupOf(lane.set()), way == Way::kUrgent, parent));
  lane.Open(way, on_device_, std::move(communicator));
  return absl::OkStatus();
}

// A process set that is added while the world uses devices gets its communicator at once, out of
// the world's: not in the middle of a step.
absl::Status Engine::SplitWorldsDevice(SetId set) {
  Communicator* const world = lanes_[kWorldSet]->communicator(Way::kDevice);
  if (world == nullptr || GroupOf(set).ranks.size() < 2) return absl::OkStatus();
  if (lanes_[set] != nullptr) return OpenWay(*lanes_[set], Way::kDevice, world);
  on_device_->LeaveOut(world);
  return absl::OkStatus();
}

// A turn --------------------------------------------------------------------------------------

template <typename Fn, typename Result>
Result Engine::Guarded(Fn fn, Result otherwise) {
  try {
    return fn();
  } catch (...) {
    OnException(CurrentException());
  }
  return otherwise;
}

// There may be no memory: if the epoch can't be ended, this process ends, and the others are told
// by that.
void Engine::OnException(const absl::Status& thrown) {
  try {
    if (membership_.has_failed()) {
      FinishEpoch();  // the exception came in the middle of that
    } else {
      FailEpoch({.cause = absl::StrCat("rank ", world_.rank, " can't go on: ", thrown.message())});
    }
  } catch (...) {
    RUEDA_CHECK(false) << "rank " << world_.rank << " can't go on, nor tell the others: " << thrown;
  }
}

bool Engine::Turn() {
  return Guarded([this] { return TurnOnce(); }, true);
}

bool Engine::TurnOnce() {
  if (!membership_.goes_on()) return false;
  if (__builtin_expect(world_.neighbourhood.segment->failed(), 0)) return LookForFailure();
  bool moved = DrainSubmissions();
  if (__builtin_expect(requests_.load(std::memory_order_relaxed) != 0, 0)) {
    FulfilRequests();
    if (!membership_.goes_on()) return true;
  }
  moved |= Announce();
  if (!membership_.goes_on()) return true;
  const absl::StatusOr<bool> read = ReadPlan();
  if (!read.ok()) {
    FailEpoch(
        {.cause = absl::StrCat("rank ", world_.rank, " can't go on: ", read.status().message())});
  }
  if (!membership_.goes_on()) return true;
  moved |= *read;
  if (busy_lanes_ > 0 && !detector_->suspects()) moved |= AdvanceLanes();
  if (!membership_.goes_on()) return true;
  if (!ending_joins_.empty()) moved |= EndJoins();
  if (relay_ != nullptr && relay_->Pump()) {
    look_at_sockets_ = true;
    moved = true;
  }
  if (look_at_sockets_ || hosts_bus_ != nullptr ||
      ++turns_without_sockets_ >= turns_without_sockets_max_) {
    moved |= LookAtSockets();
  }
  if (detector_->suspects()) moved |= AccuseIfDecided();
  if (membership_.state() > Membership::State::kRunning) UpdateFinished();
  return moved;
}

bool Engine::LastTurn() {
  return Guarded([this] { return TurnOnce() || (membership_.goes_on() && bus_->LastLook()); },
                 true);
}

bool Engine::DrainSubmissions() {
  if (!submissions_->HasWork()) return false;
  submissions_->Take(&taken_, &marked_);
  for (Request* request : taken_) {
    Begin(request);
    trace::RecordAt(request->submitted_at, trace::Event::kSubmit, 0, request->handle());
    member_.Submit(request->token, request->spec, request->extras, request->waited);
  }
  taken_.clear();
  for (; !marked_.empty(); marked_.pop_back()) {
    Request* const request = marked_.back();
    if (request->token < live_.size() && live_[request->token] == request) {
      member_.MarkWaited(request->token);
    }
    submissions_->table().Unreference(request);
  }
  return true;
}

void Engine::Begin(Request* request) {
  if (request->token >= live_.size()) live_.resize(request->token + 1);
  live_[request->token] = request;
  if (Lane* lane = lanes_[request->spec->set].get()) lane->Began();
}

// Queues what this rank must say of the batches that it has completed.
void Engine::AnnounceDone() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane != nullptr && !member_.closing(lane->set()) &&
        bus_->MustAnnounceDone(lane->set(), member_.completed_on(lane->set()))) {
      member_.AnnounceDone(lane->set());
    }
  }
}

bool Engine::Announce() {
  AnnounceDone();
  bool moved = false;
  while (const ControlEvent* event = member_.Next()) {
    if (std::holds_alternative<Announced>(event->what)) {
      const Request& request = *live_[member_.next_token()];
      if (Lane* lane = lanes_[request.spec->set].get()) lane->Prepare(request);
    }
    const absl::StatusOr<bool> sent = bus_->Send(*event);
    if (!sent.ok()) {
      FailEpoch({.cause = absl::StrCat("rank ", world_.rank, ": ", sent.status().message())});
      return true;
    }
    if (!*sent) break;
    member_.Pop();
    moved = true;
  }
  return moved;
}

absl::StatusOr<bool> Engine::ReadPlan() {
  plan_.clear();
  RUEDA_ASSIGN_OR_RETURN(const bool moved, bus_->Poll(now_, &plan_));
  if (plan_.empty()) return moved;
  actions_.clear();
  for (const PlanItem& item : plan_) {
    if (const auto* define = std::get_if<Define>(&item)) {
      trace::RecordName(define->id, define->spec->name);
    }
    RUEDA_RETURN_IF_ERROR(member_.Apply(item, &actions_));
  }
  for (const Action& action : actions_) {
    Do(action);
    if (!membership_.goes_on()) break;
  }
  return true;
}

void Engine::Do(const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action)) {
    OnLaunch(*launch);
  } else if (const auto* rejected = std::get_if<Rejected>(&action)) {
    Request* const request = live_[rejected->token];
    trace::Record(trace::Event::kReject, 0, request->handle());
    if (request->spec->signature.kind == OpKind::kJoin) {
      ending_joins_.push_back({rejected->token, rejected->status});
    } else {
      Complete(request, rejected->status);
    }
  } else if (const auto* added = std::get_if<NewSet>(&action)) {
    const ProcessSet& set = *member_.process_sets().Find(added->set);
    submissions_->AddSet(set.ranks);
    tracks_.Note("PROCESS_SET",
                 absl::StrCat("process set ", added->set, ": ", RanksText(set.ranks)));
    absl::Status status = OpenLane(added->set);
    if (status.ok()) status = SplitWorldsDevice(added->set);
    if (!status.ok()) {
      FailEpoch({.cause = absl::StrCat("rank ", world_.rank, ": ", status.message())});
      return;
    }
    if (added->asked) CompleteWith(added->token, added->set);
  } else if (const auto* removed = std::get_if<RemovedSet>(&action)) {
    submissions_->RemoveSet(removed->set);
    tracks_.Note("PROCESS_SET", absl::StrCat("process set ", removed->set, " is removed"));
    for (const Way way : {Way::kDevice, Way::kUrgent}) {
      Lane* const lane = lanes_[removed->set].get();
      if (lane != nullptr && lane->has(way)) on_device_->Retire(lane->Take(way));
    }
    lanes_[removed->set].reset();
    compression_.Forget(removed->set);
    if (removed->asked) CompleteWith(removed->token, removed->set);
  } else if (const auto* joined = std::get_if<JoinDone>(&action)) {
    tracks_.Note("JOIN", absl::StrCat("all have joined, rank ", joined->last, " last"));
    ending_joins_.push_back({joined->token, joined->last});
  } else {
    const Rank rank = std::get<Left>(action).rank;
    left_.Insert(rank);
    tracks_.Note("LEFT", absl::StrCat("rank ", rank, " has shut down"));
  }
}

void Engine::CompleteWith(Token token, int64_t value) {
  live_[token]->value = value;
  Complete(live_[token], absl::OkStatus());
}

void Engine::OnLaunch(const Launch& launch) {
  const ProcessSet& set = *member_.process_sets().Find(launch.lane);
  Lane& lane = *lanes_[launch.lane];
  const Nanos now = trace::Record(trace::Event::kOrder, 0, static_cast<uint64_t>(launch.lane),
                                  launch.items.size());
  LaneBatch batch;
  batch.prescale = launch.prescale;
  batch.postscale = launch.postscale;
  batch.sequence = static_cast<uint64_t>(set.generation) << 32 | (launch.number & UINT32_MAX);
  for (const Rank rank : launch.absent) batch.absent.push_back(set.IndexOf(rank));
  const LaunchItem& first = launch.items.front();
  const TensorSpec& first_spec = first.token == kNoToken ? *first.spec : *live_[first.token]->spec;
  const Way way = WayOf(first_spec.signature);  // of all of the batch
  if (!lane.has(way)) {
    if (absl::Status status = OpenWay(lane, way, nullptr); !status.ok()) {
      FailEpoch({.culprit = world_.rank,
                 .cause = absl::StrCat("rank ", world_.rank, " can't take part in ",
                                       SpecLabel(first_spec), " on CUDA: ", status.message())});
      return;
    }
  }
  // What takes part in others' operations: nothing of ours.
  std::vector<std::vector<PartArgs>> absent_parts;
  for (const LaunchItem& item : launch.items) {
    Request* const request = item.token == kNoToken ? nullptr : live_[item.token];
    const TensorSpec& spec = request == nullptr ? *item.spec : *request->spec;
    absl::Status supported;
    for (const PartSignature& part : spec.signature.parts) {
      supported.Update(
          lane.backend(way).Supports(spec.signature.kind, part.dtype, spec.signature.reduce_op));
    }
    if (!supported.ok()) {  // the same verdict on all members
      if (request != nullptr) Complete(request, std::move(supported));
      continue;
    }
    if (request == nullptr) {
      absent_parts.emplace_back();
      for (const PartSignature& part : spec.signature.parts) {
        absent_parts.back().emplace_back();
        absent_parts.back().back().dtype = part.dtype;
        absent_parts.back().back().shape = part.shape;
      }
      batch.operations.push_back({nullptr, item.id, &spec, absent_parts.back(), {}, nullptr});
      continue;
    }
    const auto allocate = [&](size_t bytes) { return AllocateOn(way, bytes); };
    request->local_error = PrepareOutputs(request, item.first_dims, set, world_.rank, allocate);
    request->buckets_left = 0;
    request->buckets_to_enqueue = 0;
    request->ordered_at = now;
    tracks_.Ordered(request, item.id);
    batch.prescale = request->extras.prescale;
    batch.postscale = request->extras.postscale;
    batch.operations.push_back(
        {request, item.id, &spec, request->parts, item.first_dims, request->ready});
  }
  if (batch.operations.empty()) return;
  std::vector<LaneBucket> buckets = lane.Plan(batch, set, config_.fusion_threshold);
  if (!lane.busy() && !buckets.empty()) {
    ++busy_lanes_;
    neighbours_->own_page().activity.store(buckets.front().first_id, std::memory_order_relaxed);
  }
  for (LaneBucket& bucket : buckets) bucket.timed = timeline_->on();
  lane.Add(way, std::move(buckets));
  CountBatches(lane);
}

// Memory for a result of unknown size.
absl::StatusOr<std::shared_ptr<void>> Engine::AllocateOn(Way way, size_t bytes) {
  if (way != Way::kCpu) return on_device_->device().Allocate(std::max<size_t>(bytes, 1));
  std::shared_ptr<void> memory(malloc(std::max<size_t>(bytes, 1)), &free);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
}

void Engine::CountBatches(Lane& lane) {
  for (int left = lane.TakeFinishedBatches(); left > 0; --left) {
    member_.CompletedBatch(lane.set());
  }
}

bool Engine::AdvanceLanes() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    for (const Way way : kWays) {
      if (lanes_[i] == nullptr || !lanes_[i]->busy(way)) continue;
      moved |= AdvanceWay(*lanes_[i], way);
      if (!membership_.goes_on() || detector_->suspects()) return true;
    }
  }
  return moved;
}

bool Engine::AdvanceWay(Lane& lane, Way way) {
  bool moved = false;
  if (way != Way::kCpu) {
    enqueued_.clear();
    lane.TakeEnqueued(way, &enqueued_);
    for (Request* request : enqueued_) {
      submissions_->FreeNames(request);
      request->enqueued.store(1, std::memory_order_release);
      sleepers_->WakeFor(request);
    }
    moved = !enqueued_.empty();
  }
  const absl::StatusOr<Progress> progress = lane.Advance(way);
  if (!progress.ok()) {
    std::string cause = absl::StrCat("rank ", world_.rank, ": ", progress.status().message());
    if (absl::IsUnavailable(progress.status())) {
      detector_->OnConnectionLost(std::move(cause), MonotonicNow());
      return true;
    }
    FailEpoch({.cause = std::move(cause)});
    return true;
  }
  if (*progress == Progress::kDone) OnBucketDone(lane, way);
  return moved || *progress != Progress::kBlocked;
}

// A join ends for this rank when it has done its part of what was ordered before.
bool Engine::EndJoins() {
  if (!membership_.goes_on()) return false;
  return std::erase_if(ending_joins_, [&](const EndingJoin& join) {
           if (lanes_[live_[join.token]->spec->set]->busy()) return false;
           if (join.last.ok()) {
             CompleteWith(join.token, *join.last);
           } else {
             Complete(live_[join.token], join.last.status());
           }
           return true;
         }) > 0;
}

void Engine::OnBucketDone(Lane& lane, Way way) {
  const LaneBucket bucket = lane.Pop(way);
  std::atomic<uint32_t>& activity = neighbours_->own_page().activity;
  if (lane.busy()) {
    const Way other = *std::find_if(std::begin(kWays), std::end(kWays),
                                    [&](Way candidate) { return lane.busy(candidate); });
    activity.store(lane.front(lane.busy(way) ? way : other).first_id, std::memory_order_relaxed);
  } else {
    --busy_lanes_;
    activity.store(kNoTensor, std::memory_order_relaxed);
  }
  tracks_.BucketDone(lane, way, bucket);
  CountBatches(lane);
  for (Request* request : bucket.requests) {
    if (request != nullptr && --request->buckets_left == 0) Complete(request, request->local_error);
  }
}

void Engine::Complete(Request* request, absl::Status status, FailurePtr failure) {
  // What may throw comes first: then nothing has happened.
  if (absl::IsDeadlineExceeded(status)) {  // that is how a call ends whose operation goes on
    status = absl::CancelledError(status.message());
  }
  if (!status.ok()) request->status = DeepCopy(status);
  tracks_.Ended(request);
  live_[request->token] = nullptr;
  if (Lane* lane = lanes_[request->spec->set].get()) lane->Ended(*request);
  request->failure = std::move(failure);
  trace::Record(trace::Event::kComplete, 0, request->handle(),
                static_cast<uint64_t>(request->status.code()));
  submissions_->Ended(*request);
  // Kept here, as whoever sees `done` may release the request.
  const Callback callback = {request->callback, request->callback_user,
                             request->handle(), request->status.code(),
                             timeline_,         request->track};
  bool run_inline = request->callback_inline;
  request->done.store(1, std::memory_order_release);
  sleepers_->WakeFor(request);
  submissions_->table().Unreference(request);
  if (callback.function == nullptr) return;
  if (!run_inline) {
    try {
      completions_->Add([callback] { CallBack(callback); });
    } catch (const std::bad_alloc&) {
      run_inline = true;  // better on this thread than never
    }
  }
  if (run_inline) {
    const TurnScope scope;
    CallBack(callback);
  }
}

// Sockets -------------------------------------------------------------------------------------

bool Engine::LookAtSockets() {
  look_at_sockets_ = false;
  turns_without_sockets_ = 0;
  if (world_.links.empty()) return false;
  bool moved = false;
  const Nanos now = MonotonicNow();
  const std::vector<int> ready = wait_point_->ReadySockets();
  for (RoleLink& role_link : world_.links) {
    Link& link = *role_link.link;
    absl::Status status;
    if (std::find(ready.begin(), ready.end(), link.fd()) != ready.end()) {
      moved = true;
      watch_->OnHeard(&link, now);
      status = link.OnReadable();  // and writes, behind the last words of a peer that is gone
    }
    // Frames may also have come behind the handshake, before this engine was.
    Link::Received received;
    while (link.Next(&received)) {
      moved = true;
      OnFrame(role_link, std::move(received));
      if (!membership_.goes_on()) return true;
    }
    if (!status.ok()) {
      wait_point_->RemoveSocket(link.fd());
      OnLinkLost(role_link, status);
      if (!membership_.goes_on()) return true;
    }
  }
  if (now >= watch_->next(waiting())) LookAtPeers();
  // What was queued meanwhile leaves now, or when the socket can take it.
  for (RoleLink& role_link : world_.links) {
    if (!role_link.link->wants_write()) continue;
    (void)role_link.link->OnWritable();  // a broken connection shows when it is read
    wait_point_->WantWrite(role_link.link->fd(), role_link.link->wants_write());
  }
  return moved;
}

void Engine::OnFrame(RoleLink& role_link, Link::Received received) {
  const Frame& frame = received.frame;
  absl::Status status;
  switch (frame.type) {
    case FrameType::kEvents: {
      if (role_link.role != LinkRole::kChild) {
        status = absl::InvalidArgumentError("events from one that is not below it");
        break;
      }
      status = hosts_bus_->DeliverEvents(frame.payload, role_link.link->peer(), now_);
      break;
    }
    case FrameType::kPlan:
      if (role_link.role != LinkRole::kParent) {
        status = absl::InvalidArgumentError("a plan from one that is not above it");
        break;
      }
      status = hosts_bus_->DeliverPlan(frame.payload);
      break;
    case FrameType::kFailure:
      OnFailure(role_link.link->peer(), DecodeFailure(frame.payload));
      return;
    case FrameType::kStoreSet:
    case FrameType::kStoreGet:
    case FrameType::kStoreValue:
      status = relay_ == nullptr ? absl::InvalidArgumentError("a store request between threads")
                                 : relay_->OnFrame(role_link.link.get(), frame);
      break;
    case FrameType::kHeartbeat:
      break;
    case FrameType::kRoster: {  // it could not start, and this rank had already
      const absl::Status why = WhyItGaveUp(frame);
      const Rank peer = role_link.link->peer();
      OnFailure(peer, {.rank = LostRank(why).value_or(peer), .cause = std::string(why.message())});
      return;
    }
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("a frame of type ", static_cast<int>(frame.type)));
  }
  if (!status.ok()) {
    FailEpoch({.cause = absl::StrCat("rank ", role_link.link->peer(), " sent rank ", world_.rank,
                                     " ", status.message())});
  }
}

void Engine::SendEventsUp(std::string packed) {
  for (RoleLink& role_link : world_.links) {
    if (role_link.role != LinkRole::kParent) continue;
    role_link.link->Send(FrameType::kEvents, packed);
    (void)role_link.link->OnWritable();
    if (role_link.link->wants_write()) look_at_sockets_ = true;
  }
}

void Engine::SendPlanDown(const std::string& packed) {
  for (RoleLink& role_link : world_.links) {
    if (role_link.role != LinkRole::kChild) continue;
    role_link.link->Send(FrameType::kPlan, packed);
    (void)role_link.link->OnWritable();
    if (role_link.link->wants_write()) look_at_sockets_ = true;
  }
}

// Failing -------------------------------------------------------------------------------------

void Engine::OnLinkLost(RoleLink& role_link, const absl::Status& why) {
  const Rank peer = role_link.link->peer();
  if (!membership_.goes_on()) return;
  // A rank may close once it knows that all have left, a little before we do: read on first.
  const absl::StatusOr<bool> read = ReadPlan();
  if (!read.ok()) {
    FailEpoch(
        {.cause = absl::StrCat("rank ", world_.rank, " can't go on: ", read.status().message())});
  }
  if (!membership_.goes_on() || left_.count() == world_.size()) return;
  detector_->OnLinkLost(peer, std::string(why.message()), world_.LocalIndex(peer) >= 0,
                        MonotonicNow());
  AccuseIfDecided();
}

// A rank that is silent or stopped closes nothing.
void Engine::LookAtPeers() {
  std::optional<Watch::Lost> lost = watch_->Look(waiting(), MonotonicNow());
  if (!lost.has_value()) lost = LookAtLanes();
  if (!lost.has_value() || left_.Contains(lost->rank)) return;
  detector_->OnSilence(lost->rank, std::move(lost->how), MonotonicNow());
}

// The network between two hosts may be cut though both still hear those above them in the tree.
std::optional<Watch::Lost> Engine::LookAtLanes() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const std::optional<Silence> silence = lane->SilentMember();
    if (!silence.has_value()) continue;
    const ProcessSet& set = *member_.process_sets().Find(lane->set());
    return Watch::Lost{
        set.ranks[static_cast<size_t>(silence->member)],
        absl::StrFormat("silent for %.1f s: the network between its host and that of "
                        "rank %d (%s) carries nothing any more",
                        static_cast<double>(silence->time) / kSecond, world_.rank,
                        world_.infos[world_.rank].host_name)};
  }
  return std::nullopt;
}

// What another host says.
void Engine::OnFailure(Rank from, Failure failure) {
  if (failure.accuser < 0 || failure.accuser >= world_.size()) failure.accuser = from;
  TurnAroundIfItIsUs(&failure);
  FailEpoch(std::move(failure));
}

void Engine::TurnAroundIfItIsUs(Failure* failure) const {
  const bool was_away = watch_->WasAway(MonotonicNow());
  if (!TurnAround(world_.rank, world_.size(), was_away, failure)) return;
  failure->pid = world_.infos[failure->rank].pid;
  failure->host = world_.infos[failure->rank].host_name;
}

bool Engine::AccuseIfDecided() {
  std::optional<Failure> failure =
      detector_->Decide([this](Rank rank) { return left_.Contains(rank); }, MonotonicNow());
  if (!failure.has_value()) return false;
  FailEpoch(*std::move(failure));
  return true;
}

void Engine::RequestAbort(std::string reason) {
  {
    MutexLock lock(abort_mutex_);
    if (abort_reason_.empty()) abort_reason_ = std::move(reason);
  }
  requests_.fetch_or(kAbort, std::memory_order_release);
}

void Engine::FulfilRequests() {
  const uint32_t requests = requests_.load(std::memory_order_acquire);
  if ((requests & kAbort) != 0) {
    Failure failure;
    {
      MutexLock lock(abort_mutex_);
      failure.cause = absl::StrCat("rank ", world_.rank, " aborted the job: ", abort_reason_);
    }
    failure.culprit = world_.rank;
    failure.recoverable = true;
    FailEpoch(std::move(failure));
    return;
  }
  if ((requests & kLeave) != 0 && membership_.Leave()) member_.AnnounceLeave();
}

// As far as it can be known here: of a rank of this host what it did, else what this rank waits
// for.
void Engine::SayWhatItWasDoing(Failure* failure) const {
  SpecPtr spec;
  if (const int local = world_.LocalIndex(failure->rank); local >= 0) {
    const Segment& segment = *world_.neighbourhood.segment;
    spec =
        member_.tensors().GetOrRecall(segment.page(local).activity.load(std::memory_order_relaxed));
  }
  if (spec == nullptr && failure->rank != world_.rank) {
    const Request* oldest = nullptr;
    for (const Request* request : live_) {
      if (request == nullptr || request->spec == nullptr) continue;
      const ProcessSet* const set = member_.process_sets().Find(request->spec->set);
      if (set == nullptr || !set->Contains(failure->rank)) continue;
      if (oldest == nullptr || request->submitted_at < oldest->submitted_at) oldest = request;
    }
    if (oldest == nullptr) return;
    spec = oldest->spec;
    failure->awaiter = world_.rank;
  }
  if (spec == nullptr) return;
  failure->operation = std::string(OpKindName(spec->signature.kind));
  failure->tensor = spec->name;
}

// Writes the failure down for everybody, unless somebody did before.
void Engine::TellNeighbours(Failure failure) {
  Segment& segment = *world_.neighbourhood.segment;
  failure.epoch = world_.epoch;
  if (failure.accuser < 0) failure.accuser = world_.rank;
  if (failure.rank >= 0 && failure.rank < world_.size()) {
    failure.pid = world_.infos[failure.rank].pid;
    failure.host = world_.infos[failure.rank].host_name;
    if (failure.operation.empty()) SayWhatItWasDoing(&failure);
  }
  segment.Fail(EncodeFailure(failure));
  neighbours_->RingAll();
}

// The same, and ends this rank's epoch.
void Engine::FailEpoch(Failure failure) {
  if (!membership_.goes_on()) return;
  TellNeighbours(std::move(failure));
  LookForFailure();
}

// Another's failure, or ours once it is written. Returns whether the epoch has ended.
bool Engine::LookForFailure() {
  std::string record = world_.neighbourhood.segment->failure();
  if (record.empty()) {  // being written; unless its writer died over it
    const Nanos now = MonotonicNow();
    record_due_ = std::min(record_due_, now + kRecordPatience);
    if (now < record_due_) return false;
    Failure failure;
    failure.epoch = world_.epoch;
    failure.cause = "a rank died while it reported a failure";
    record = EncodeFailure(failure);
  }
  for (RoleLink& role_link : world_.links) {
    if (role_link.role == LinkRole::kChild || role_link.role == LinkRole::kParent) {
      role_link.link->Send(FrameType::kFailure, record);
    }
    if (role_link.link->wants_write()) (void)role_link.link->OnWritable();
    // A socket that is closed before all is read takes what it has sent with it.
    (void)role_link.link->OnReadable();
    wait_point_->RemoveSocket(role_link.link->fd());
  }
  Failure failure = DecodeFailure(record);
  TurnAroundIfItIsUs(&failure);
  EndEpoch(std::move(failure));
  return true;
}

void Engine::EndEpoch(Failure failure) {
  if (!membership_.Fail()) return;
  detector_->Clear();
  trace::Record(trace::Event::kFail, 0, static_cast<uint64_t>(failure.rank));
  const Rank culprit = failure.rank >= 0 ? failure.rank : failure.culprit;
  if (verdicts_ != nullptr) verdicts_->Blame(world_.rank, culprit);
  auto shared = std::make_shared<const Failure>(std::move(failure));
  {
    MutexLock lock(failure_mutex_);
    failure_ = std::move(shared);
  }
  FinishEpoch();
}

// What follows from failure_. If an exception comes out of it, it is called again and goes on.
void Engine::FinishEpoch() {
  const FailurePtr failed = failure();
  const absl::Status status = failed->ToStatus();
  store_->Abort();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    for (const Way way : kWays) {
      if (!lane->busy(way)) continue;
      for (Request* request : lane->front(way).requests) {
        if (request != nullptr) request->started_at = lane->front(way).started_at;
      }
    }
    lane->Abort();
  }
  neighbours_->own_page().left.store(1, std::memory_order_release);
  submissions_->Close(status);
  DrainAtEnd();
  tracks_.Note("FAILURE", std::string(status.message()));
  for (size_t token = 0; token < live_.size(); ++token) {
    if (live_[token] == nullptr) continue;
    if (live_[token]->spec->signature.device != DeviceType::kCpu) {
      for (const OutputMemory& output : live_[token]->outputs) abandoned_.push_back(output.data);
    }
    ++failed_operations_;
    Complete(live_[token], status, failed);
  }
  membership_.End();
  report_due_.store(true, std::memory_order_release);
  RingBackground();
}

void Engine::ReportFailure() {
  if (!report_due_.load(std::memory_order_acquire) || !report_due_.exchange(false)) return;
  (void)timeline_->Stop();
  const absl::StatusOr<std::string> dump = trace::DumpToFile();
  RUEDA_LOG(Error) << failure()->ToString() << " (" << failed_operations_
                   << " operations in flight here failed"
                   << (dump.ok() ? "; flight recorder: " : "") << (dump.ok() ? *dump : "") << ")";
}

// What was submitted and not begun: what a turn had taken when it was broken off, then the rest.
void Engine::DrainAtEnd() {
  for (const bool is_rest : {false, true}) {
    if (is_rest) submissions_->Take(&taken_, &marked_);
    for (; !marked_.empty(); marked_.pop_back()) submissions_->table().Unreference(marked_.back());
    for (; !taken_.empty(); taken_.pop_back()) Begin(taken_.back());
  }
}

FailurePtr Engine::failure() const {
  MutexLock lock(failure_mutex_);
  return failure_;
}

// Nobody closes before all are done. True when that is so, or was waited for long enough.
// Whether another member on this host is: then all members have come to the barrier. It may have
// failed there, as one on another host was faster still, and nobody else would tell this rank.
bool Engine::NeighbourIsThrough(SetId set_id) const {
  const ProcessSet& set = *member_.process_sets().Find(set_id);
  for (const Rank rank : world_.topology.host_of(world_.rank).ranks) {
    if (rank == world_.rank || !set.Contains(rank)) continue;
    const RankPage& page = world_.neighbourhood.segment->page(world_.LocalIndex(rank));
    if (page.left.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

bool Engine::SayFarewell() {
  const Nanos now = MonotonicNow();
  const bool begins = membership_.BeginFarewell(now, kFarewellPatience);
  bool over = true;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const bool said = begins ? lane->BeginFarewell() : lane->AdvanceFarewell();
    over &= said || NeighbourIsThrough(lane->set());
  }
  if (!over && now >= membership_.farewell_until()) {
    RUEDA_LOG(Info) << "shutdown: the last barrier did not end in time; somebody may still read";
    return true;
  }
  return over;
}

void Engine::UpdateFinished() {
  if (left_.count() < world_.size() || submissions_->in_flight() > 0) return;
  if (!SayFarewell()) return;
  for (const RoleLink& role_link : world_.links) {
    if (role_link.link->wants_write()) return;
  }
  neighbours_->own_page().left.store(1, std::memory_order_release);
  membership_.End();
}

// Sleeping ------------------------------------------------------------------------------------

bool Engine::LeavesWork() {
  return Guarded([this] { return HasWork(); }, true);
}

bool Engine::HasWork() {
  if (!membership_.goes_on()) return false;
  // A waiter leaves as soon as its own operation has ended: what was held back behind that, on any
  // rank, waits for somebody to say so.
  if (submissions_->in_flight() > 0) {
    AnnounceDone();
    if (member_.Next() != nullptr) return true;
  }
  return busy_lanes_ > 0 || submissions_->HasWork() || (!idle() && bus_->LastLook()) ||
         bus_->OwesOthers() || requested(kLeave) ||
         (link_store_ != nullptr && link_store_->HasRequests()) || detector_->suspects();
}

Nanos Engine::NextDeadline() {
  return Guarded([this] { return CheckDeadlines(); }, Nanos{0});
}

Nanos Engine::CheckDeadlines() {
  if (!membership_.goes_on()) return kForever;
  std::vector<std::string> stalls;
  Nanos next = idle() ? kForever : bus_->Look(now_, &stalls);
  for (std::string& stall : stalls) {
    RUEDA_LOG(Warning) << "stall: " << stall;
    tracks_.Note("STALL", std::move(stall));
  }
  next = std::min(next, watch_->next(waiting()));
  next = std::min(next, membership_.farewell_until());
  if (detector_->suspects()) next = std::min(next, now_ + kMillisecond);
  // Somebody is writing a failure down; it takes a moment, unless it died meanwhile.
  if (world_.neighbourhood.segment->failed()) next = std::min(next, now_ + kMillisecond);
  return next;
}

void Engine::SetSleep(Sleep sleep) {
  if (sleep == Sleep::kBackground && idle()) sleep = Sleep::kIdle;
  neighbours_->own_page().sleep.store(static_cast<uint32_t>(sleep), std::memory_order_relaxed);
}

void Engine::WakeSelf() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  neighbours_->WakeIdle(neighbours_->self());
}

}  // namespace rueda
