#include "controller/runtime/engine.h"

#include <unistd.h>

#include <algorithm>

#include "controller/protocol/lost.h"
#include "core/base/log.h"
#include "core/base/threads.h"
#include "core/trace/recorder.h"

namespace rueda {

// Set-up --------------------------------------------------------------------------------------

Engine::Engine(EngineArgs args)
    : world_(std::move(args.world)),
      submissions_(args.submissions),
      completions_(args.completions),
      sleepers_(args.sleepers),
      waiting_threads_(args.waiting_threads),
      timeline_(args.timeline),
      on_failure_(std::move(args.on_failure)),
      tracks_(args.timeline, world_.rank),
      member_(world_.rank, world_.size(), world_.process_sets),
      left_(world_.size()),
      deadlock_watch_(static_cast<Nanos>(args.config->deadlock_timeout_s * kSecond)) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineArgs args) {
  EnginePartsArgs parts = {nullptr, args.config, std::move(args.arena), args.turns_without_sockets};
  std::unique_ptr<Engine> engine(new Engine(std::move(args)));
  const absl::Status status = WithoutExceptions([&] { return engine->Init(std::move(parts)); });
  if (!status.ok()) {
    TellFailedStart(&engine->world_, status);
    return status;
  }
  engine->world_.guard.End();
  return engine;
}

absl::Status Engine::Init(EnginePartsArgs args) {
  args.world = &world_;
  args.listener = this;
  RUEDA_RETURN_IF_ERROR(MakeParts(args, &parts_));
  record_.emplace(&world_, parts_.neighbours.get(), &member_, &in_flight_);
  const Verdicts* verdicts = parts_.verdicts.get();
  if (verdicts == nullptr) {
    std::vector<int> pids(world_.infos.size());
    for (const RoleLink& each : world_.links) {
      if (each.pid != getpid()) pids[each.link->peer()] = each.pid;
    }
    verdicts = &process_verdicts_.emplace(std::move(pids));
  }
  detector_.emplace(world_.rank, world_.size(), world_.topology.host_of(world_.rank).ranks,
                    verdicts);
  lanes_.emplace(Lanes::Args{&world_, args.config, &member_, &tracks_, timeline_,
                             &own_page().activity, &parts_.backends, this});
  for (SetId set = 0; set < member_.process_sets().end(); ++set) {
    RUEDA_RETURN_IF_ERROR(lanes_->Open(set));
  }
  return absl::OkStatus();
}

Engine::~Engine() {
  // When all have left in peace nothing is under way anywhere.
  if (lanes_.has_value() && membership_.state() != Membership::State::kOver) lanes_->Abort();
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

// There may be no memory: if the membership can't be ended, this process ends, and the others are
// told by that.
void Engine::OnException(const absl::Status& thrown) {
  try {
    if (membership_.has_failed()) {
      FinishMembership();  // the exception came in the middle of that
    } else {
      Fail(absl::StrCat(" can't go on: ", thrown.message()));
    }
  } catch (...) {
    RUEDA_CHECK(false) << "rank " << world_.rank << " can't go on, nor tell the others: " << thrown;
  }
}

bool Engine::Turn() {
  return Guarded([this] { return TurnOnce(); }, true);
}

bool Engine::TurnOnce() {
  if (!goes_on()) return false;
  if (__builtin_expect(record_->exists(), 0)) return EndIfFailed();
  bool moved = DrainSubmissions();
  if (__builtin_expect(wishes_.any(), 0)) FulfilWishes();
  if (goes_on() && now_ >= ended_.next()) OnWatched(std::nullopt);
  if (goes_on()) moved |= Announce();
  if (goes_on()) moved |= FollowPlan();
  if (goes_on() && lanes_->busy() && !detector_->suspects()) moved |= AdvanceLanes();
  if (goes_on() && !ending_joins_.empty()) moved |= EndJoins();
  if (goes_on()) moved |= parts_.connections->Pump(now_);
  if (goes_on() && detector_->suspects()) AccuseIfDecided();
  if (membership_.state() > Membership::State::kRunning) UpdateFinished();
  return moved || !goes_on();
}

bool Engine::LastTurn() {
  return Guarded([this] { return TurnOnce() || (goes_on() && parts_.bus->LastLook()); }, true);
}

bool Engine::DrainSubmissions() {
  if (!submissions_->HasWork()) return false;
  submissions_->Take(&taken_, &marked_);
  for (Request* request : taken_) {
    Begin(request);
    lanes_->Bring(request);
    trace::RecordAt(request->submitted_at, trace::Event::kSubmit, 0, request->handle());
    member_.Submit(request->token, request->spec, request->extras, request->waited);
    request->extras.said = nullptr;  // the announcement has it
  }
  taken_.clear();
  for (; !marked_.empty(); marked_.pop_back()) {
    Request* const request = marked_.back();
    if (request->token < in_flight_.size() && in_flight_[request->token] == request) {
      member_.MarkWaited(request->token);
      if (request->missing.TakeQuestion()) AskWhoIsMissing(request);
    }
    submissions_->table().Unreference(request);
  }
  return true;
}

void Engine::AskWhoIsMissing(Request* request) {
  if (request->ordered_at == 0) {
    member_.Ask();
  } else {
    request->missing.Answer("all ranks have submitted it, and it is under way");
    sleepers_->WakeFor(request);
  }
}

void Engine::Begin(Request* request) {
  if (request->token >= in_flight_.size()) in_flight_.resize(request->token + 1);
  in_flight_[request->token] = request;
  Moved();
  if (Lane* lane = lanes_->Find(request->spec->set)) lane->Began(*request);
}

// Queues what this rank must say of the batches that it has completed.
void Engine::AnnounceDone() {
  lanes_->ForEach([this](const Lane& lane) {
    if (!member_.closing(lane.set()) &&
        parts_.bus->TakeDone(lane.set(), member_.completed_on(lane.set()))) {
      member_.AnnounceDone(lane.set());
    }
  });
}

bool Engine::Announce() {
  AnnounceDone();
  bool moved = false;
  while (const ControlEvent* event = member_.Next()) {
    if (std::holds_alternative<Announced>(event->what)) {
      const Request& request = *in_flight_[member_.next_token()];
      if (Lane* lane = lanes_->Find(request.spec->set)) lane->Prepare(request);
    }
    const absl::StatusOr<bool> sent = parts_.bus->Send(*event);
    if (!sent.ok()) {
      Fail(absl::StrCat(": ", sent.status().message()));
      return true;
    }
    if (!*sent) break;
    member_.Pop();
    moved = true;
  }
  return moved;
}

bool Engine::FollowPlan() {
  const absl::StatusOr<bool> moved = ReadPlan();
  if (moved.ok()) return *moved;
  Fail(absl::StrCat(" can't go on: ", moved.status().message()));
  return true;
}

absl::StatusOr<bool> Engine::ReadPlan() {
  plan_.clear();
  RUEDA_ASSIGN_OR_RETURN(const bool moved, parts_.bus->Poll(now_, &plan_));
  if (plan_.empty()) return moved;
  actions_.clear();
  for (const PlanItem& item : plan_) {
    if (const auto* define = std::get_if<Define>(&item)) {
      trace::RecordName(define->id, define->spec->name);
    }
    RUEDA_RETURN_IF_ERROR(member_.Apply(item, &actions_));
  }
  for (const Action& action : actions_) {
    Execute(action);
    if (!goes_on()) break;
  }
  return true;
}

void Engine::Execute(const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action)) {
    Moved();
    if (__builtin_expect(launch->agreed != 0, 0)) {
      for (const LaunchItem& item : launch->items) {
        if (item.token != kNoToken) in_flight_[item.token]->agreed = launch->agreed;
      }
    }
    const absl::Status status = lanes_->Launch(*launch, in_flight_);
    if (!status.ok()) {
      FailMembership({.culprit = world_.rank,
                      .cause = absl::StrCat("rank ", world_.rank, " ", status.message())});
    }
  } else if (const auto* rejected = std::get_if<Rejected>(&action)) {
    Request* const request = in_flight_[rejected->token];
    trace::Record(trace::Event::kReject, 0, request->handle());
    if (request->spec->signature.kind == OpKind::kJoin) {
      ending_joins_.push_back({rejected->token, rejected->status});
    } else {
      Complete(request, rejected->status, MonotonicNow());
    }
  } else if (const auto* added = std::get_if<NewSet>(&action)) {
    const ProcessSet& set = *member_.process_sets().Find(added->set);
    submissions_->AddSet(set.ranks);
    tracks_.Note("PROCESS_SET",
                 absl::StrCat("process set ", added->set, ": ", RanksText(set.ranks)));
    absl::Status status = lanes_->Open(added->set);
    if (status.ok()) status = lanes_->OpenOnDevice(added->set);
    if (!status.ok()) {
      Fail(absl::StrCat(": ", status.message()));
      return;
    }
    if (added->asked) CompleteWith(added->token, added->set);
  } else if (const auto* removed = std::get_if<RemovedSet>(&action)) {
    submissions_->RemoveSet(removed->set);
    tracks_.Note("PROCESS_SET", absl::StrCat("process set ", removed->set, " is removed"));
    lanes_->Close(removed->set);
    if (removed->asked) CompleteWith(removed->token, removed->set);
  } else if (const auto* joined = std::get_if<JoinDone>(&action)) {
    tracks_.Note("JOIN", absl::StrCat("all have joined, rank ", joined->last, " last"));
    ending_joins_.push_back({joined->token, joined->last});
  } else if (const auto* question = std::get_if<StillBlocked>(&action)) {
    deadlock_watch_.OnQuestion(*question);
  } else if (const auto* missing = std::get_if<Missing>(&action)) {
    in_flight_[missing->token]->missing.Answer(missing->who);
    sleepers_->WakeFor(in_flight_[missing->token]);
  } else {
    const Rank rank = std::get<Left>(action).rank;
    left_.Insert(rank);
    tracks_.Note("LEFT", absl::StrCat("rank ", rank, " has shut down"));
  }
}

void Engine::CompleteWith(Token token, int64_t value) {
  in_flight_[token]->value = value;
  Complete(in_flight_[token], absl::OkStatus(), MonotonicNow());
}

bool Engine::AdvanceLanes() {
  const absl::StatusOr<bool> moved =
      lanes_->Advance([this] { return goes_on() && !detector_->suspects(); });
  if (moved.ok()) return *moved;
  std::string cause = absl::StrCat("rank ", world_.rank, ": ", moved.status().message());
  const std::optional<Rank> late = LostRank(moved.status());
  if (absl::IsDeadlineExceeded(moved.status()) && late.has_value()) {
    detector_->OnLost(*late, std::string(moved.status().message()), MonotonicNow());
  } else if (absl::IsUnavailable(moved.status())) {
    detector_->OnConnectionLost(std::move(cause), MonotonicNow());
  } else {
    FailMembership({.cause = std::move(cause)});
  }
  return true;
}

void Engine::OnEnqueued(Request* request) {
  submissions_->FreeNames(request);
  request->enqueued.store(1, std::memory_order_release);
  sleepers_->WakeFor(request);
}

// A join ends for this rank when it has done its part of what was ordered before.
bool Engine::EndJoins() {
  return std::erase_if(ending_joins_, [&](const EndingJoin& join) {
           if (lanes_->Find(in_flight_[join.token]->spec->set)->busy()) return false;
           if (join.last.ok()) {
             CompleteWith(join.token, *join.last);
           } else {
             Complete(in_flight_[join.token], join.last.status(), MonotonicNow());
           }
           return true;
         }) > 0;
}

void Engine::Complete(Request* request, absl::Status status, Nanos at, FailurePtr failure) {
  // What may throw comes first: then nothing has happened.
  if (absl::IsDeadlineExceeded(status)) {  // that is how a call ends whose operation goes on
    status = absl::CancelledError(status.message());
  }
  if (!status.ok()) request->status = DeepCopy(status);
  tracks_.Ended(request);
  Moved();
  in_flight_[request->token] = nullptr;
  if (Lane* lane = lanes_->Find(request->spec->set)) lane->Ended(*request);
  request->failure = std::move(failure);
  request->membership = world_.membership;
  trace::RecordAt(at, trace::Event::kComplete, 0, request->handle(),
                  static_cast<uint64_t>(request->status.code()));
  submissions_->Ended(*request);
  // Kept here, as whoever sees `done` may release the request.
  const Callback callback = {request->callback, request->callback_user,
                             request->handle(), request->status.code(),
                             timeline_,         request->track};
  const bool is_inline = request->callback_inline;
  request->done.store(1, std::memory_order_release);
  std::unique_ptr<LateCallbacks::Late> late = request->late_callbacks.Close();
  sleepers_->WakeFor(request);
  submissions_->table().Unreference(request);
  completions_->Call(callback, is_inline);
  completions_->CallLate(callback, std::move(late));
}

// Failing -------------------------------------------------------------------------------------

void Engine::OnLinkLost(Rank peer, const absl::Status& why) {
  // A rank may close once it knows that all have left, a little before we do: read on first.
  FollowPlan();
  if (!goes_on() || left_.count() == world_.size()) return;
  detector_->OnLinkLost(peer, std::string(why.message()), world_.LocalIndex(peer) >= 0,
                        MonotonicNow());
  AccuseIfDecided();
}

void Engine::OnNonsense(Rank peer, const absl::Status& what) {
  FailMembership(
      {.cause = absl::StrCat("rank ", peer, " sent rank ", world_.rank, " ", what.message())});
}

// The network between two hosts may be cut though both still hear those above them in the tree:
// then a lane tells. And the launcher knows of an end that no connection tells, where children keep
// them open.
void Engine::OnWatched(std::optional<Watch::Lost> lost) {
  if (!lost.has_value()) lost = lanes_->SilentRank();
  const auto has_left = [this](Rank rank) { return left_.Contains(rank); };
  const Nanos now = MonotonicNow();
  if (!lost.has_value()) lost = ended_.Check(parts_.verdicts.get(), world_.infos, has_left, now);
  if (!lost.has_value()) return;
  FollowPlan();  // it may have left, and ended since
  if (!goes_on() || left_.Contains(lost->rank)) return;
  if (lost->has_just_ended) {
    detector_->OnLinkLost(lost->rank, std::move(lost->how), /*same_host=*/true, now);
  } else {
    detector_->OnLost(lost->rank, std::move(lost->how), now);
  }
}

// What another host says.
void Engine::OnFailureTold(Rank from, Failure failure) {
  if (failure.accuser < 0 || failure.accuser >= world_.size()) failure.accuser = from;
  SwapAccuserIfItIsUs(&failure);
  FailMembership(std::move(failure));
}

void Engine::SwapAccuserIfItIsUs(Failure* failure) const {
  const bool was_away = parts_.connections->was_away();
  if (!SwapAccuserAndAccused(world_.rank, world_.size(), was_away, failure)) return;
  failure->pid = world_.infos[failure->rank].pid;
  failure->host = world_.infos[failure->rank].host_name;
}

void Engine::AccuseIfDecided() {
  std::optional<Failure> failure =
      detector_->Decide([this](Rank rank) { return left_.Contains(rank); }, MonotonicNow());
  if (failure.has_value()) FailMembership(*std::move(failure));
}

void Engine::FulfilWishes() {
  const uint8_t agree = wishes_.TakeAgree();
  if (agree != 0 && membership_.state() == Membership::State::kRunning) {
    member_.Announce(Wished{agree});
  }
  if (wishes_.abort()) {
    FailMembership(
        {.culprit = world_.rank,
         .cause = absl::StrCat("rank ", world_.rank, " aborted the job: ", wishes_.reason()),
         .recoverable = true});
  } else if (wishes_.leave() && membership_.Leave()) {
    member_.AnnounceLeave();
  }
}

// Writes it down for all ranks of this host, and ends this rank's part.
void Engine::FailMembership(Failure failure) {
  if (!goes_on()) return;
  record_->Write(std::move(failure));
  EndIfFailed();
}

// Another's failure, or ours once it is written. Returns whether the membership has ended.
bool Engine::EndIfFailed() {
  const std::optional<std::string> record = record_->Read(MonotonicNow());
  if (!record.has_value()) return false;
  parts_.connections->EndWith(*record);
  Failure failure = DecodeFailure(*record);
  SwapAccuserIfItIsUs(&failure);
  const Rank culprit = failure.whose();
  auto shared = std::make_shared<const Failure>(std::move(failure));
  if (!membership_.Fail()) return true;
  detector_->Clear();
  trace::Record(trace::Event::kFail, 0, static_cast<uint64_t>(shared->rank));
  Blame(culprit >= 0 ? culprit : world_.rank);
  {
    MutexLock lock(failure_mutex_);
    failure_ = std::move(shared);
  }
  FinishMembership();
  return true;
}

// What follows from failure_. If an exception comes out of it, it is called again and goes on.
void Engine::FinishMembership() {
  const FailurePtr failed = failure();
  const absl::Status status = failed->ToStatus();
  on_failure_();
  parts_.store->Abort();
  lanes_->Abort();
  own_page().left.store(1, std::memory_order_release);
  submissions_->Close(status);
  DrainAtEnd();
  tracks_.Note("FAILURE", std::string(status.message()));
  for (size_t token = 0; token < in_flight_.size(); ++token) {
    if (in_flight_[token] == nullptr) continue;
    if (in_flight_[token]->spec->signature.device != DeviceType::kCpu) {
      for (const OutputMemory& output : in_flight_[token]->outputs) {
        abandoned_.push_back(output.data);
      }
    }
    ++failed_operations_;
    Complete(in_flight_[token], status, MonotonicNow(), failed);
  }
  membership_.End();
  report_due_.store(true, std::memory_order_release);
  RingBackground();
}

void Engine::ReportFailure() {
  if (!report_due_.load(std::memory_order_acquire) || !report_due_.exchange(false)) return;
  // Without memory for it there is nothing to say.
  (void)WithoutExceptions([this] {
    (void)timeline_->Stop();
    FailureRecord::Log(*failure(), failed_operations_);
    return absl::OkStatus();
  });
}

// What was submitted and not begun: what a turn had taken when it was broken off, then the rest.
void Engine::DrainAtEnd() {
  for (const bool is_rest : {false, true}) {
    if (is_rest) submissions_->Take(&taken_, &marked_);
    for (; !marked_.empty(); marked_.pop_back()) submissions_->table().Unreference(marked_.back());
    for (; !taken_.empty(); taken_.pop_back()) Begin(taken_.back());
  }
}

// Nobody closes before all are done. True when that is so, or was waited for long enough.
bool Engine::SayFarewell() {
  const Nanos now = MonotonicNow();
  const bool begin = membership_.BeginFarewell(now);
  if (lanes_->SayFarewell(begin)) return true;
  if (now < membership_.farewell_until()) return false;
  RUEDA_LOG(Info) << "shutdown: the last barrier did not end in time; somebody may still read";
  return true;
}

void Engine::UpdateFinished() {
  if (!goes_on() || left_.count() < world_.size() || submissions_->in_flight() > 0) return;
  if (!SayFarewell() || !parts_.connections->flushed()) return;
  Blame(world_.rank);
  own_page().left.store(1, std::memory_order_release);
  membership_.End();
}

// Sleeping ------------------------------------------------------------------------------------

bool Engine::CollectWork() {
  return Guarded([this] { return CollectWorkOnce(); }, true);
}

bool Engine::CollectWorkOnce() {
  if (!goes_on()) return false;
  // A waiter leaves as soon as its own operation has ended: what was held back behind that, on any
  // rank, waits for somebody to say so.
  if (submissions_->in_flight() > 0) {
    AnnounceDone();
    if (member_.Next() != nullptr) return true;
  }
  return lanes_->busy() || submissions_->HasWork() || (!idle() && parts_.bus->LastLook()) ||
         parts_.bus->OwesOthers() || wishes_.any() ||
         (parts_.link_store != nullptr && parts_.link_store->HasCalls()) || detector_->suspects();
}

Nanos Engine::CheckDeadlines() {
  return Guarded([this] { return CheckDeadlinesOnce(); }, Nanos{0});
}

Nanos Engine::CheckDeadlinesOnce() {
  if (!goes_on()) return kForever;
  std::vector<std::string> stalls;
  const absl::StatusOr<Nanos> look = idle() ? kForever : parts_.bus->CheckDeadlines(now_, &stalls);
  for (std::string& stall : stalls) {
    RUEDA_LOG(Warning) << "stall: " << stall;
    tracks_.Note("STALL", std::move(stall));
  }
  if (!look.ok()) {
    Fail(absl::StrCat(" can't go on: ", look.status().message()));
    return 0;
  }
  Nanos next = std::min({*look, parts_.connections->deadline(), membership_.farewell_until(),
                         CheckWaits(), ended_.next()});
  // No lane moves then: none reads what would go on waking this.
  parts_.wait_point->HeedWatched(!detector_->suspects());
  if (detector_->suspects()) next = std::min(next, now_ + kMillisecond);
  // Somebody is writing a failure down; it takes a moment, unless it died meanwhile.
  if (record_->exists()) next = std::min(next, now_ + kMillisecond);
  return next;
}

Nanos Engine::CheckWaits() {
  const std::optional<Blocked> news =
      deadlock_watch_.Check(now_, waiting_threads_->inside() > 0, *this);
  if (!news.has_value()) return deadlock_watch_.next();
  member_.Announce(*news);
  return now_;
}

}  // namespace rueda
