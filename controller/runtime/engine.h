// The engine of one rank: drains submissions, announces, reads the plan, runs the lanes, completes.
// A turn never blocks. One thread at a time calls it: whoever holds the baton (baton.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/failure/deadlock_watch.h"
#include "controller/failure/failure.h"
#include "controller/failure/failure_detector.h"
#include "controller/failure/process_verdicts.h"
#include "controller/lanes/lanes.h"
#include "controller/lanes/tracks.h"
#include "controller/membership/membership.h"
#include "controller/negotiation/member.h"
#include "controller/rendezvous/bootstrap.h"
#include "controller/runtime/completions.h"
#include "controller/runtime/connections.h"
#include "controller/runtime/engine_parts.h"
#include "controller/runtime/failure_record.h"
#include "controller/runtime/sleepers.h"
#include "controller/runtime/submissions.h"
#include "controller/runtime/wishes.h"
#include "core/base/process.h"

namespace rueda {

struct EngineArgs {
  World world;
  const Config* config = nullptr;
  std::shared_ptr<Arena> arena;
  Submissions* submissions = nullptr;
  Completions* completions = nullptr;
  Sleepers* sleepers = nullptr;
  WaitingThreads* waiting_threads = nullptr;
  Timeline* timeline = nullptr;
  int turns_without_sockets = 1;  // Spin::turns_without_sockets
  // Called in a turn when the membership fails, before anybody is told. Perhaps again.
  std::function<void()> on_failure = [] {};
};

class Engine final : private Lanes::Listener,
                     private Connections::Listener,
                     private DeadlockWatch::Facts {
 public:
  // Everything but the lanes' connections, which are made behind their first operations.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineArgs args);
  ~Engine();

  // The holder of the baton ------------------------------------------------------------------

  // One turn. Returns whether anything moved; if not, there is nothing to do until this rank is
  // rung. An exception in it ends the membership on all ranks; nothing is thrown, here and in what
  // follows.
  bool Turn();
  // The same, for the last turn before sleeping: after SetSleep and a fence.
  bool LastTurn();
  // Queues what must be said of completed batches. Whether a leaving holder must hand over to
  // another thread of this rank.
  bool CollectWork();
  // Reports and ends what is overdue. When the engine must be turned though nothing rings.
  Nanos CheckDeadlines();
  // Tells neighbours how to wake this rank from now on. kBackground is kIdle where that is enough.
  void SetSleep(Sleep sleep) {
    if (sleep == Sleep::kBackground && idle()) sleep = Sleep::kIdle;
    own_page().sleep.store(static_cast<uint32_t>(sleep), std::memory_order_relaxed);
  }
  void BeforeSleep() { parts_.bus->BeforeSleep(); }
  // Takes the time. Call after taking the baton and after every sleep: operations are as old as
  // this.
  void Refresh() { now_ = MonotonicNow(); }
  // Sockets may be ready: the next turn looks.
  void SocketsMayBeReady() { parts_.connections->MayBeReady(); }

  // Any thread -------------------------------------------------------------------------------

  // Rings this rank's own sleeper, if it sleeps. After what it should find was published.
  void WakeSelf() const { parts_.neighbours->WakeSelf(); }
  // Whether something was queued that no turn has taken yet.
  bool HasSubmissions() const { return submissions_->HasWork(); }
  void RingBackground() const { parts_.neighbours->own_bells().background.Ring(); }
  WaitingThreads& waiting_threads() const { return *waiting_threads_; }
  const WaitPoint& wait_point() const { return *parts_.wait_point; }

  // Begins to leave the job: this rank submits no more.
  void RequestLeave() { wishes_.Leave(); }
  // The next turn tells all ranks that this one wishes for something: bits of the caller's.
  void RequestAgreement(uint8_t bits) {
    wishes_.Agree(bits);
    WakeSelf();
  }
  // Whether the job is over for this rank: all have left and nothing is in flight, or it has
  // failed.
  bool Finished() const { return membership_.has_ended(); }
  // The failure that ended the membership; null while it goes on.
  FailurePtr failure() const ABSL_LOCKS_EXCLUDED(failure_mutex_) {
    MutexLock lock(failure_mutex_);
    return failure_;
  }
  // Once after a failure, when everybody who waited has been told: logs it and writes the flight
  // recorder and the timeline down. Takes its time: the background thread's, or that of whoever
  // ends the context.
  void ReportFailure();
  // The next turn, of whichever thread, ends the membership on all ranks, for a reason of the
  // caller's.
  void RequestAbort(absl::string_view reason) { wishes_.Abort(reason); }

  // Before the rank goes on in another membership.
  void ForgetBlame() { Blame(-1); }

  // What compression remembers.
  CompressionStates& compression() { return lanes_->compression(); }
  // When the membership has failed and nobody turns this any more: whether its device has let go of
  // all that this and the requests own; waits for a moment.
  bool WaitUntilDeviceLeft() { return on_device().WaitUntilLeft(); }
  // The backend of tensors on a device.
  DeviceBackend& on_device() const { return lanes_->on_device(); }

  // Constant after Create.
  const World& world() const { return world_; }

 private:
  explicit Engine(EngineArgs args);
  absl::Status Init(EnginePartsArgs args);

  // What `fn` returns, or `otherwise` after an exception, which ends the membership.
  template <typename Fn, typename Result>
  Result Guarded(Fn fn, Result otherwise);
  void OnException(const absl::Status& thrown);
  bool TurnOnce();
  bool CollectWorkOnce();
  Nanos CheckDeadlinesOnce();
  Nanos CheckWaits();
  // An operation begins, ends or is executed.
  void Moved() {
    if (deadlock_watch_.Move(now_)) member_.Announce(Blocked{Blocked::kNot});
  }

  // The parts of a turn. Each returns whether anything moved.
  bool DrainSubmissions();
  bool Announce();
  bool FollowPlan();
  bool AdvanceLanes();
  bool EndJoins();

  void AskWhoIsMissing(Request* request);
  void Begin(Request* request);
  void AnnounceDone();
  absl::StatusOr<bool> ReadPlan();
  void Execute(const Action& action);
  void Complete(Request* request, absl::Status status, Nanos at, FailurePtr failure = nullptr);
  void CompleteWith(Token token, int64_t value);
  void FulfilWishes();

  // Lanes::Listener.
  void OnEnqueued(Request* request) override;
  void OnLastBucketDone(Request* request, Nanos at) override {
    Complete(request, request->local_error, at);
  }

  // Connections::Listener.
  bool goes_on() const override { return membership_.goes_on(); }
  bool waiting() const override { return submissions_->in_flight() > 0 || wishes_.leave(); }
  void OnFailureTold(Rank from, Failure failure) override;
  void OnLinkLost(Rank peer, const absl::Status& why) override;
  void OnNonsense(Rank peer, const absl::Status& what) override;
  void OnWatched(std::optional<Watch::Lost> lost) override;

  // DeadlockWatch::Facts.
  WaitingThreads::State Threads(Nanos now) override { return waiting_threads_->StateAt(now); }
  bool Moves() override { return lanes_->busy() || completions_->busy(); }
  bool IsTraced() override { return rueda::IsTraced(); }

  // Whether nothing that others put into the log can matter to this rank before it has something
  // under way again. Then it reads it when it likes, or when the log is full.
  bool idle() const { return world_.one_log && submissions_->in_flight() == 0; }
  RankPage& own_page() const { return parts_.neighbours->own_page(); }

  // Failing.
  void SwapAccuserIfItIsUs(Failure* failure) const;
  void AccuseIfDecided();
  void FailMembership(Failure failure);
  // For a cause that begins with this rank: "rank 2 can't go on: ...".
  void Fail(absl::string_view what) {
    FailMembership({.culprit = world_.rank, .cause = absl::StrCat("rank ", world_.rank, what)});
  }
  bool EndIfFailed();
  void FinishMembership();
  void DrainAtEnd();
  // Says on the launcher's board whose doing it is that this rank takes part no more.
  void Blame(Rank culprit) {
    if (parts_.verdicts != nullptr) parts_.verdicts->Blame(world_.rank, culprit);
  }

  // Leaving.
  bool SayFarewell();
  void UpdateFinished();

  World world_;
  Submissions* const submissions_;
  Completions* const completions_;
  Sleepers* const sleepers_;
  WaitingThreads* const waiting_threads_;
  Timeline* const timeline_;
  const std::function<void()> on_failure_;

  // Touched by the holder of the baton only. First what those below it use.
  // Results that a device may still write to, in a membership that failed.
  std::vector<std::shared_ptr<void>> abandoned_;
  Tracks tracks_;
  Member member_;
  EngineParts parts_;
  std::optional<Lanes> lanes_;
  // A join that has ended by the plan, while this rank's lane still works.
  struct EndingJoin {
    Token token;
    absl::StatusOr<Rank> last;  // who joined last
  };
  std::vector<EndingJoin> ending_joins_;
  std::vector<Request*> in_flight_;  // by token: what the engine has; null else
  RankSet left_;
  Membership membership_;
  int failed_operations_ = 0;                        // once it has failed
  std::optional<ProcessVerdicts> process_verdicts_;  // where no launcher has any
  std::optional<FailureDetector> detector_;
  std::optional<FailureRecord> record_;
  DeadlockWatch deadlock_watch_;
  EndedRanks ended_;
  Nanos now_ = 0;
  Plan plan_;                       // scratch
  std::vector<Action> actions_;     // scratch
  std::vector<Request*> taken_;     // scratch
  std::vector<Request*> marked_;    // scratch
  std::vector<Request*> enqueued_;  // scratch

  // Any thread.
  Wishes wishes_;
  std::atomic<bool> report_due_{false};
  mutable Mutex failure_mutex_;
  FailurePtr failure_ ABSL_GUARDED_BY(failure_mutex_);
};

}  // namespace rueda
