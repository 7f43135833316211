#include "controller/runtime/runtime.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "controller/lanes/callbacks.h"
#include "controller/rendezvous/meeting_of.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/threads.h"
#include "core/trace/recorder.h"

namespace rueda {
namespace {

// How long ranks of a failed membership may take to leave it.
constexpr Nanos kArenaPatience = 10 * kSecond;

LogLevel LevelOf(absl::string_view word) {
  if (word == "debug") return LogLevel::kDebug;
  if (word == "info") return LogLevel::kInfo;
  if (word == "error") return LogLevel::kError;
  if (word == "off") return LogLevel::kOff;
  return LogLevel::kWarning;
}

}  // namespace

Runtime::Runtime(RuntimeOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(RuntimeOptions options, bool* met) {
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(options)));
  RUEDA_RETURN_IF_ERROR(runtime->Init(met));
  return runtime;
}

absl::Status Runtime::Init(bool* met) {
  const Config& config = options_.config;
  SetLogLevel(LevelOf(config.log_level));
  // Threads whose context says nothing leave it where their process has put it.
  if (options_.group == nullptr || !config.recorder_dir.empty()) {
    trace::SetDirectory(config.recorder_dir);
  }
  trace::InstallSignalHandler();
  MakeRoomForDescriptors(0);  // for this rank's own, before it knows how many ranks there are

  BootstrapArgs args;
  args.config = &config;
  args.met = met;
  args.scope.membership = options_.membership;
  args.slots = options_.slots;
  std::unique_ptr<Meeting> meeting;
  if (options_.group != nullptr) {
    args.rank = options_.group_rank;
    args.size = options_.group->size();
    args.scope.membership = options_.group->NextMembership(args.rank, options_.context);
    args.scope.secret = options_.group->secret();
    args.scope.job = absl::StrCat("threads/", options_.context);
    meeting = options_.group->Join(options_.group, args.rank, options_.context);
  } else {
    RUEDA_ASSIGN_OR_RETURN(meeting, MeetingOf(options_.environment, options_.context, &args));
  }
  SetLogRank(args.rank);
  const absl::Status status = WithoutExceptions([&] { return Join(&args, meeting.get()); });
  if (!status.ok()) meeting->GiveUp(args.rank, status);
  RUEDA_RETURN_IF_ERROR(status);
  const absl::Status begun = WithoutExceptions([this] {
    absl::Status started = baton_->StartBackground(rank());
    return started.ok() ? StartOwnTimeline() : started;
  });
  if (!begun.ok()) Abort(begun.message());  // the others must not wait for this rank
  return begun;
}

absl::StatusOr<NeighbourOffer> Runtime::Offer(size_t arena_bytes_max) {
  arena_ = options_.arena;
  if (arena_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(arena_, Arena::Create(arena_bytes_max));
  }
  RUEDA_RETURN_IF_ERROR(arena_->WaitUntilSafe(MonotonicNow() + kArenaPatience));
  Bells bells;
  RUEDA_ASSIGN_OR_RETURN(bells.background, Doorbell::Create());
  RUEDA_ASSIGN_OR_RETURN(bells.waiter, Doorbell::Create());
  return NeighbourOffer{arena_->memory(), std::make_shared<const Bells>(std::move(bells))};
}

absl::Status Runtime::Join(BootstrapArgs* args, Meeting* meeting) {
  const Config& config = options_.config;
  args->offer = [this](size_t arena_bytes_max) { return Offer(arena_bytes_max); };
  args->room = AddressSpaceLeft();
  // An arena of an earlier membership is mapped already.
  if (options_.arena != nullptr && args->room != kNoLimit) {
    args->room += options_.arena->memory()->bytes();
  }
  EngineArgs engine;
  RUEDA_ASSIGN_OR_RETURN(engine.world, Bootstrap(*args, meeting));
  trace::Record(trace::Event::kInit, 0, static_cast<uint64_t>(args->size));
  if (options_.requests == nullptr) {
    options_.requests = std::make_shared<RequestTable>(args->scope.membership);
  }
  submissions_ = std::make_unique<Submissions>(args->rank, args->size, engine.world.process_sets,
                                               options_.requests);
  engine.config = &options_.config;
  engine.arena = arena_;
  engine.submissions = submissions_.get();
  engine.completions = &completions_;
  engine.sleepers = &sleepers_;
  engine.waiting_threads = &waiting_threads_;
  engine.timeline = &timeline_;
  engine.on_failure = [this] { GuardArena(); };
  const Spin spin(config.wait, SharesCores(engine.world.topology.local_size(args->rank),
                                           engine.world.machine_ranks));
  engine.turns_without_sockets = spin.turns_without_sockets();
  RUEDA_ASSIGN_OR_RETURN(engine_, Engine::Create(std::move(engine)));
  baton_.emplace(engine_.get(), &sleepers_, spin);
  return absl::OkStatus();
}

// The one that the knob asks for. A context's name and its later memberships have files of their
// own.
absl::Status Runtime::StartOwnTimeline() {
  const World& ours = engine_->world();
  TimelineOwner owner;
  owner.rank = ours.rank;
  owner.size = ours.size();
  owner.host = ours.infos[ours.rank].host_name;
  owner.pid = ours.infos[ours.rank].pid;
  owner.membership = ours.membership;
  owner.clock_offset = ours.to_rank_0.offset;
  owner.clock_uncertainty = ours.to_rank_0.uncertainty;
  timeline_.SetOwner(std::move(owner));
  // "DYNAMIC" is Horovod's word for one that the program starts.
  if (options_.config.timeline.empty() || options_.config.timeline == "DYNAMIC") {
    return absl::OkStatus();
  }
  std::string word = options_.context;
  for (char& c : word) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  }
  const uint64_t number = std::max(ours.membership, options_.number);
  if (number > 1) absl::StrAppend(&word, word.empty() ? "" : ".", "membership", number);
  return timeline_.Start(TimelinePath(options_.config.timeline, word, ours.rank));
}

absl::Status Runtime::StartTimeline(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("a timeline without a path");
  if (engine_->failure() != nullptr) {
    return absl::FailedPreconditionError("the membership has failed; its timeline has ended");
  }
  if (engine_->Finished()) return absl::FailedPreconditionError("this rank has left the job");
  return timeline_.Start(TimelinePath(path, "", rank()));
}

Runtime::~Runtime() {
  (void)Close();
}

void Runtime::EndWaits() {
  if (engine_ != nullptr) Abort("its context was destroyed without shutting down");
}

bool Runtime::Close() {
  if (engine_ == nullptr) return true;
  EndWaits();
  StopThreads();
  return engine_->failure() == nullptr || engine_->WaitUntilDeviceLeft();
}

void Runtime::StopThreads() {
  std::call_once(threads_stopped_, [this] {
    baton_->StopBackground();
    engine_->ReportFailure();
    completions_.Stop();
    (void)timeline_.Stop();
  });
}

// The neighbours may not have noticed the failure yet, or be stopped: until each has left the
// membership or is dead, it may write to tensors in our arena.
void Runtime::GuardArena() {
  const World& ours = engine_->world();
  const std::vector<Rank>& ranks = ours.topology.host_of(ours.rank).ranks;
  for (size_t local = 0; local < ranks.size(); ++local) {
    if (ranks[local] == ours.rank) continue;
    const RankPage* page = &ours.neighbourhood.segment->page(static_cast<int>(local));
    arena_->AddGuard([page, memory = ours.neighbourhood.segment->memory(), rank = ranks[local],
                      pid = ours.infos[ranks[local]].pid]() -> std::string {
      if (page->left.load(std::memory_order_acquire) != 0) return "";
      if (HasEnded(pid) || WaitStatusOfDying(pid).has_value()) return "";
      return absl::StrCat("rank ", rank, " (pid ", pid, ") has not left it");
    });
  }
}

// Operations ----------------------------------------------------------------------------------

absl::StatusOr<DeviceClaim> Runtime::PrepareOnDevice(const DeviceExec& exec, OperationArgs* args) {
  RUEDA_RETURN_IF_ERROR(
      engine_->on_device().CheckOperation(args->kind, args->reduce_op, args->compression));
  RUEDA_ASSIGN_OR_RETURN(DeviceClaim claim, device().ClaimFor(args->device_index));
  for (const PartArgs& part : args->parts) {
    // Where there is nothing anything may be its address.
    if (part.shape.elements() > 0) {
      RUEDA_RETURN_IF_ERROR(claim.CheckPointer(part.input, part.dtype));
    }
    const Shape& shape = TraitsOf(args->kind).reshapes ? part.output_shape : part.shape;
    if (part.output != part.input && shape.elements() > 0) {
      RUEDA_RETURN_IF_ERROR(claim.CheckPointer(part.output, part.dtype));
    }
  }
  if (exec.ready_event != nullptr) {
    args->ready = DeviceEvent(exec.ready_event, [](void*) {});  // the caller's
  } else {
    RUEDA_ASSIGN_OR_RETURN(args->ready, claim.Record(exec.stream));
  }
  return claim;
}

absl::StatusOr<Handle> Runtime::Submit(const OperationArgs& args) {
  waiting_threads_.NoteSubmission();
  if (args.callback != nullptr && !args.callback_inline) {
    RUEDA_RETURN_IF_ERROR(completions_.Start());
  }
  RUEDA_ASSIGN_OR_RETURN(const Submitted submitted, submissions_->Submit(args));
  if (submitted.must_wake_engine) baton_->OnQueued(args.wait_soon);
  return submitted.handle;
}

absl::Status Runtime::Execute(OperationArgs args, Nanos timeout, Handle* handle) {
  RUEDA_RETURN_IF_ERROR(CheckMayWait("a blocking call"));
  args.waited = true;
  RUEDA_ASSIGN_OR_RETURN(const Submitted submitted, submissions_->Submit(args));
  *handle = submitted.handle;
  const Nanos began = submitted.request->submitted_at;
  const absl::Status status = WaitFor(submitted.request, timeout, /*enqueued=*/false, began);
  Unreference(submitted.request);
  return status;
}

absl::StatusOr<bool> Runtime::Poll(Handle handle) {
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const bool done = request->is_done();
  if (done) Learn(*request);
  Unreference(request);
  return done;
}

absl::Status Runtime::Wait(Handle handle, Nanos timeout) {
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const absl::Status status = WaitFor(request, timeout);
  Unreference(request);
  return status;
}

absl::Status Runtime::Explain(Handle handle) {
  constexpr Nanos kPatience = kSecond;
  constexpr Nanos kTillHostsHaveTold = 200 * kMillisecond;
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const absl::Cleanup unreference = [&] { Unreference(request); };
  const auto await = [&](Nanos patience, auto over) {
    const Completions::Waits in_callback(&completions_);
    baton_->Await(request, DeadlineAfter(MonotonicNow(), patience),
                  [&] { return request->is_done() || over(); });
  };
  bool answered = false;
  // The first answer makes other hosts say what they had held back.
  for (int asks = world().one_log ? 1 : 2; asks > 0 && !request->is_done(); --asks) {
    RUEDA_RETURN_IF_ERROR(CheckMayWait("the question who is missing"));
    const uint32_t known = request->missing.answers();
    request->missing.Ask();
    submissions_->MarkWaited(request);
    await(kPatience, [&] { return request->missing.answers() != known; });
    if (request->missing.answers() == known) break;
    answered = true;
    if (asks > 1) await(kTillHostsHaveTold, [] { return false; });
  }
  const absl::Status status = WaitFor(request, 0);
  if (!absl::IsDeadlineExceeded(status) || !answered) return status;
  return absl::DeadlineExceededError(absl::StrCat(
      SpecLabel(*request->spec), " has not ended; it goes on: ", request->missing.text()));
}

absl::Status Runtime::WaitOnStream(Handle handle, void* stream) {
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const absl::Status status = OrderStreamBehind(request, stream);
  Unreference(request);
  return status;
}

absl::Status Runtime::OrderStreamBehind(Request* request, void* stream) {
  const bool on_device = request->on_device();
  if (!on_device && stream != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        SpecLabel(*request->spec),
        " is on the CPU and has no stream: give null, or wait for it with rueda_wait"));
  }
  RUEDA_RETURN_IF_ERROR(WaitFor(request, kForever, /*enqueued=*/on_device));
  if (!on_device) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(DeepCopy(request->local_error));
  // One that ended before it was looked at has no event, and needs none.
  return request->enqueued.load(std::memory_order_acquire) != 0
             ? device().OrderBehind(stream, request->event)
             : device().CheckStream(stream);
}

absl::Status Runtime::WaitOrAbort(Handle handle, const std::string& why) {
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const bool enqueued = request->on_device();
  const double limit_s = config().unwind_timeout_s;
  absl::Status status = WaitFor(request, static_cast<Nanos>(limit_s * kSecond), enqueued);
  if (absl::IsDeadlineExceeded(status)) {
    Abort(absl::StrCat(SpecLabel(*request->spec), ": ", why, ", and it did not end within ",
                       limit_s, " s (RUEDA_UNWIND_TIMEOUT_S)"));
    status = WaitFor(request, kForever, enqueued);
  }
  Unreference(request);
  return status;
}

absl::Status Runtime::CallAtEnd(Handle handle, CallbackFn function, void* user) {
  RUEDA_RETURN_IF_ERROR(completions_.Start());
  RUEDA_ASSIGN_OR_RETURN(Request * request, Find(handle));
  const absl::Cleanup unreference = [&] { Unreference(request); };
  if (request->late_callbacks.Add(function, user)) return absl::OkStatus();
  const Callback callback = {function,   user,          handle, request->status.code(),
                             &timeline_, request->track};
  if (completions_.Add([callback] { callback.Run(); })) return absl::OkStatus();
  return absl::FailedPreconditionError("this context has shut down");
}

absl::Status Runtime::WaitFor(Request* request, Nanos timeout, bool enqueued, Nanos began) {
  const auto over = [&] { return enqueued ? request->is_enqueued() : request->is_done(); };
  const bool waits = !over();
  if (waits) {
    RUEDA_RETURN_IF_ERROR(CheckMayWait("a wait"));
    waiting_threads_.NoteWait();
    if (timeout > 0 && !request->waited && !request->wait_marked.exchange(true)) {
      submissions_->MarkWaited(request);
    }
  }
  if (began == 0) began = MonotonicNow();
  trace::RecordAt(began, trace::Event::kWaitBegin, 0, request->handle());
  if (waits) {
    const Completions::Waits in_callback(&completions_);
    baton_->Await(request, DeadlineAfter(began, timeout), over);
  }
  absl::Status status;
  if (!over()) {
    status = absl::DeadlineExceededError(
        absl::StrCat(SpecLabel(*request->spec), " has not ended within the time-out; it goes on"));
  } else if (request->is_done() && !request->status.ok()) {
    status = DeepCopy(request->status);
  } else {
    Learn(*request);
  }
  const Nanos ended = trace::Record(trace::Event::kWaitEnd, 0, request->handle(),
                                    static_cast<uint64_t>(status.code()));
  if (waits && timeline_.on()) {
    // Its track is the engine's as long as it is not done.
    const uint32_t track = request->is_done() ? request->track : 0;
    timeline_.Span("WAIT", Timeline::ThreadTrack(), track, began, ended);
  }
  return status;
}

absl::Status Runtime::CheckMayEnd(absl::string_view what) const {
  if (!InTurn() && Completions::Current() != &completions_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, " from a callback or an allocator"));
}

absl::Status Runtime::Shutdown() {
  trace::Record(trace::Event::kShutdown);
  submissions_->Close(absl::FailedPreconditionError("this context has shut down"));
  engine_->RequestLeave();
  baton_->Await(nullptr, kForever, [&] { return engine_->Finished(); });
  StopThreads();
  const FailurePtr failed = engine_->failure();
  return failed == nullptr ? absl::OkStatus() : failed->ToStatus();
}

void Runtime::Wish(uint8_t bits) {
  if ((wished_.fetch_or(bits) & bits) == bits) return;
  engine_->RequestAgreement(bits);
}

// The caller has seen the end of the request.
void Runtime::Learn(const Request& request) {
  if (__builtin_expect(request.agreed == 0, 1) || request.spec->set != kWorldSet) return;
  agreed_.fetch_or(request.agreed, std::memory_order_relaxed);
}

void Runtime::Abort(absl::string_view reason) {
  engine_->RequestAbort(reason);
  if (InTurn()) {  // this context's, and the thread goes on with it; or another's
    engine_->WakeSelf();
    return;
  }
  // Another holder, who may wait for something else for ever, is woken for it.
  baton_->Await(nullptr, kForever,
                [&] { return engine_->Finished() || engine_->failure() != nullptr; });
}

}  // namespace rueda
