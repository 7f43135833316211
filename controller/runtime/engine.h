// The engine of one rank: drains submissions, announces, reads the plan, runs the lanes, completes.
// A turn never blocks. One thread at a time calls it: whoever holds the baton (baton.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/bus/bus.h"
#include "controller/bus/hosts_bus.h"
#include "controller/failure/failure.h"
#include "controller/failure/failure_detector.h"
#include "controller/failure/verdict_board.h"
#include "controller/membership/membership.h"
#include "controller/negotiation/member.h"
#include "controller/rendezvous/bootstrap.h"
#include "controller/runtime/completions.h"
#include "controller/runtime/lane.h"
#include "controller/runtime/sleepers.h"
#include "controller/runtime/store_relay.h"
#include "controller/runtime/submissions.h"
#include "controller/runtime/tracks.h"
#include "controller/runtime/wait_point.h"
#include "controller/runtime/watch.h"
#include "ops/backend/device.h"
#include "ops/shm/arena.h"
#include "ops/shm/neighbours.h"

namespace rueda {

struct EngineArgs {
  World world;
  const Config* config = nullptr;
  std::shared_ptr<Arena> arena;
  Submissions* submissions = nullptr;
  Completions* completions = nullptr;
  Sleepers* sleepers = nullptr;
  Timeline* timeline = nullptr;
  int turns_without_sockets = 1;  // Spin::turns_without_sockets
};

class Engine : public Courier {
 public:
  // Everything but the lanes' connections, which are made behind their first operations.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineArgs args);
  ~Engine() override;

  // The holder of the baton ------------------------------------------------------------------

  // One turn. Returns whether anything moved; if not, there is nothing to do until this rank is
  // rung. An exception in it ends the epoch on all ranks; nothing is thrown, here and in what
  // follows.
  bool Turn();
  // The same, for the last turn before sleeping: after SetSleep and a fence.
  bool LastTurn();
  // Whether a leaving holder must hand over to another thread of this rank.
  bool LeavesWork();
  // When the engine must be turned though nothing rings.
  Nanos NextDeadline();
  // Tells neighbours how to wake this rank from now on. kBackground is kIdle where that is enough.
  void SetSleep(Sleep sleep);
  void BeforeSleep() { bus_->BeforeSleep(); }
  // Takes the time. Call after taking the baton and after every sleep: operations are as old as
  // this.
  void Refresh() { now_ = MonotonicNow(); }
  // Sockets may be ready: the next turn looks.
  void SocketsMayBeReady() { look_at_sockets_ = true; }

  // Any thread -------------------------------------------------------------------------------

  // Rings this rank's own sleeper, if it sleeps. After what it should find was published.
  void WakeSelf() const;
  // Whether something was queued that no turn has taken yet.
  bool HasSubmissions() const { return submissions_->HasWork(); }
  void RingBackground() const { neighbours_->own_bells().background.Ring(); }
  const WaitPoint& wait_point() const { return *wait_point_; }

  // Begins to leave the job: this rank submits no more.
  void RequestLeave() { requests_.fetch_or(kLeave, std::memory_order_release); }
  // Whether the job is over for this rank: all have left and nothing is in flight, or it has
  // failed.
  bool Finished() const { return membership_.has_ended(); }
  // The failure that ended the epoch; null while it goes on.
  FailurePtr failure() const ABSL_LOCKS_EXCLUDED(failure_mutex_);
  // Once after a failure, when everybody who waited has been told: logs it and writes the flight
  // recorder and the timeline down. Takes its time; no thread that waits calls it.
  void ReportFailure();
  // The next turn, of whichever thread, ends the epoch on all ranks, for a reason of the caller's.
  void RequestAbort(std::string reason) ABSL_LOCKS_EXCLUDED(abort_mutex_);

  // Before the rank goes on in another epoch.
  void ForgetBlame() {
    if (verdicts_ != nullptr) verdicts_->Blame(world_.rank, -1);
  }

  // What compression remembers.
  CompressionStates& compression() { return compression_; }
  // When the epoch has failed and nobody turns this any more: whether its device has let go of all
  // that this and the requests own; waits for a moment.
  bool LeftDevice() { return on_device_->Left(); }
  // The backend of tensors on a device.
  DeviceBackend& on_device() const { return *on_device_; }

  // Constant after Create.
  const World& world() const { return world_; }

  // Courier, for the bus.
  void SendEventsUp(std::string packed) override;
  void SendPlanDown(const std::string& packed) override;

 private:
  explicit Engine(EngineArgs args);
  absl::Status Init();

  // What `fn` returns, or `otherwise` after an exception, which ends the epoch.
  template <typename Fn, typename Result>
  Result Guarded(Fn fn, Result otherwise);
  void OnException(const absl::Status& thrown);
  bool TurnOnce();
  bool HasWork();
  Nanos CheckDeadlines();

  // The parts of a turn.
  bool DrainSubmissions();
  void Begin(Request* request);
  void AnnounceDone();
  bool Announce();
  absl::StatusOr<bool> ReadPlan();
  bool AdvanceLanes();
  bool EndJoins();
  bool LookAtSockets();
  void OnFrame(RoleLink& role_link, Link::Received received);

  void Do(const Action& action);
  void OnLaunch(const Launch& launch);
  absl::Status OpenLane(SetId set);
  Group GroupOf(SetId set) const;
  absl::Status OpenWay(Lane& lane, Way way, Communicator* parent);
  absl::Status SplitWorldsDevice(SetId set);
  bool AdvanceWay(Lane& lane, Way way);
  void OnBucketDone(Lane& lane, Way way);
  absl::StatusOr<std::shared_ptr<void>> AllocateOn(Way way, size_t bytes);
  void CountBatches(Lane& lane);
  void Complete(Request* request, absl::Status status, FailurePtr failure = nullptr);
  void CompleteWith(Token token, int64_t value);

  // Whether nothing that others put into the log can matter to this rank before it has something
  // under way again. Then it reads it when it likes, or when the log is full.
  bool idle() const { return hosts_bus_ == nullptr && submissions_->in_flight() == 0; }

  // Whether this rank waits for others: it has something under way, or leaves.
  bool waiting() const { return submissions_->in_flight() > 0 || requested(kLeave); }
  bool requested(uint32_t what) const {
    return (requests_.load(std::memory_order_relaxed) & what) != 0;
  }
  void FulfilRequests();

  // Failing.
  void OnLinkLost(RoleLink& role_link, const absl::Status& why);
  void OnFailure(Rank from, Failure failure);
  void TurnAroundIfItIsUs(Failure* failure) const;
  bool AccuseIfDecided();
  void LookAtPeers();
  std::optional<Watch::Lost> LookAtLanes();
  void TellNeighbours(Failure failure);
  void FailEpoch(Failure failure);
  void SayWhatItWasDoing(Failure* failure) const;
  bool LookForFailure();
  void EndEpoch(Failure failure);
  void FinishEpoch();
  void DrainAtEnd();
  bool SayFarewell();
  bool NeighbourIsThrough(SetId set) const;
  void UpdateFinished();

  World world_;
  const Config& config_;
  Submissions* const submissions_;
  Completions* const completions_;
  Sleepers* const sleepers_;
  Timeline* const timeline_;
  const int turns_without_sockets_max_;
  const std::shared_ptr<Arena> arena_;

  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<WaitPoint> wait_point_;
  std::unique_ptr<VerdictBoard> verdicts_;
  std::optional<Watch> watch_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<LinkStore> link_store_;
  std::unique_ptr<StoreRelay> relay_;
  // Results that a device may still write to, in an epoch that failed.
  std::vector<std::shared_ptr<void>> abandoned_;
  std::vector<std::unique_ptr<Backend>> backends_;
  DeviceBackend* on_device_ = nullptr;  // one of these
  CompressionStates compression_;

  // A join that has ended by the plan, while this rank's lane still works.
  struct EndingJoin {
    Token token;
    absl::StatusOr<Rank> last;  // who joined last
  };

  // Touched by the holder of the baton only.
  Tracks tracks_;
  Member member_;
  std::unique_ptr<Bus> bus_;
  HostsBus* hosts_bus_ = nullptr;             // the same as bus_, when ranks don't share one log
  void* own_log_ = nullptr;                   // its memory, when the log is this rank's alone
  std::vector<std::unique_ptr<Lane>> lanes_;  // by set; null where this rank is no member
  std::vector<EndingJoin> ending_joins_;
  std::vector<Request*> live_;  // by token: what the engine has; null else
  int busy_lanes_ = 0;
  bool look_at_sockets_ = true;
  int turns_without_sockets_ = 0;
  RankSet left_;
  Membership membership_;
  int failed_operations_ = 0;  // once it has failed
  std::optional<FailureDetector> detector_;
  Nanos now_ = 0;
  Nanos record_due_ = kForever;     // somebody began to write a failure down, and has until then
  Plan plan_;                       // scratch
  std::vector<Action> actions_;     // scratch
  std::vector<Request*> taken_;     // scratch
  std::vector<Request*> marked_;    // scratch
  std::vector<Request*> enqueued_;  // scratch

  static constexpr uint32_t kLeave = 1;
  static constexpr uint32_t kAbort = 2;
  std::atomic<bool> report_due_{false};
  std::atomic<uint32_t> requests_{0};  // of any thread, for whoever turns
  Mutex abort_mutex_;
  std::string abort_reason_ ABSL_GUARDED_BY(abort_mutex_);
  mutable Mutex failure_mutex_;
  FailurePtr failure_ ABSL_GUARDED_BY(failure_mutex_);
};

}  // namespace rueda
