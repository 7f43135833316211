// What to do about the processes of a job: a state machine of the supervisor process. PURE
//
// The first failure or the first ending signal ends the job: every rank is told so (SIGTERM; SIGINT
// first when the user pressed Ctrl-C). After the grace its process group is killed, and given up
// 1.5 s later. After a failure SIGTERM waits two seconds: the other ranks learn of it by
// themselves, from their own operations, and get to say so. When all ranks have ended, processes
// that outlived them (the rest) are ended too.
//
// Of an elastic job a rank's failure ends nothing here, and others may be started in its place,
// until the launcher says that there will be no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

class Supervisor {
 public:
  struct Options {
    int ranks = 1;
    Nanos grace = 5 * kSecond;  // from the failure, or the first ending signal, to SIGKILL
    bool elastic = false;
  };

  enum class EventKind {
    kRankStarted,      // rank
    kStartFailed,      // rank; no process could be made for it
    kRankEnded,        // rank, value = its wait status
    kSignal,           // value = a signal that was sent to ruedarun
    kFailedElsewhere,  // a rank of another host has failed
    kLauncherGone,     // nobody is there any more to tell
    kNoMore,           // of an elastic job: no rank will be started any more
    kAlone,            // answers kReap: no process is left
    kRestRemains,      // answers kReap: processes that outlived their ranks are left
    kTimer,            // deadline() has come
  };
  struct Event {
    EventKind kind;
    Rank rank = -1;
    int value = 0;
  };

  enum class ActionKind {
    kSignalRanks,   // to each rank, and nothing that it started
    kSignalGroups,  // to the process group of each rank
    kSignalRest,    // to every descendant that is no rank, and its process group
    kReap,          // all ranks have ended: collect them, and answer whether anything is left
    kFinish,        // the job is over; exit_code() holds
  };
  struct Action {
    ActionKind kind;
    int signal = 0;
    bool operator==(const Action&) const = default;
  };

  explicit Supervisor(const Options& options);

  void Step(const Event& event, Nanos now, std::vector<Action>* out);
  // When to send kTimer; kForever: not at all.
  Nanos deadline() const { return deadline_; }

  // Whether the ranks that are not there yet may still be started.
  bool may_start() const { return phase_ == Phase::kRunning; }
  // Whether processes that outlive their ranks are being ended: then each that ends is news.
  bool sweeping() const { return phase_ == Phase::kSweeping || phase_ == Phase::kSweepKilling; }
  bool finished() const { return phase_ == Phase::kDone; }

  // The failure's, or 128 + signal, or 0.
  int exit_code() const { return exit_code_; }
  // The rank whose failure ended the job; -1: none did.
  Rank first_failure() const { return first_failure_; }
  // Whether a signal of ours ended it: valid once the rank has ended.
  bool EndedByUs(Rank rank) const { return ranks_[static_cast<size_t>(rank)].ended_by_us; }

 private:
  enum class Phase {
    kRunning,
    kEnding,        // told to end, or about to be, until the grace is over
    kKilling,       // killed, until they are given up
    kSweeping,      // all ranks have ended; the rest is told to end
    kSweepKilling,  // the rest is killed
    kDone,
  };
  struct RankState {
    bool started = false;
    bool ended = false;
    bool ended_by_us = false;
  };
  using Actions = std::vector<Action>;

  void OnRankEnded(Rank rank, int wait_status, Nanos now, Actions* out);
  void OnSignal(int signal, Nanos now, Actions* out);
  void OnTimer(Nanos now, Actions* out);
  void OnRestRemains(Nanos now, Actions* out);
  // From kRunning to kEnding: sends `signal`, if any; SIGTERM follows after `patience`.
  void End(int signal, Nanos patience, Nanos now, Actions* out);
  void EndAfterFailure(Nanos now, Actions* out);
  void SendEnding(int signal, Actions* out);
  void Kill(Nanos now, Actions* out);
  void SweepIfAllEnded(Actions* out);
  void Finish(Actions* out);

  const Options options_;
  Phase phase_ = Phase::kRunning;
  std::vector<RankState> ranks_;
  int started_ = 0;
  int ended_ = 0;
  bool no_more_ = false;
  int exit_code_ = 0;
  Rank first_failure_ = -1;
  uint64_t signals_sent_ = 0;  // bit s: ending signal s went to the ranks
  bool rest_told_ = false;
  Nanos ending_since_ = 0;
  Nanos kill_at_ = kForever;
  Nanos deadline_ = kForever;
};

// Whether a signal asks for the end of the job.
bool EndsJob(int signal);

// What a shell makes of a wait status: the exit status, or 128 + signal.
int ExitCodeOf(int wait_status);

}  // namespace rueda
