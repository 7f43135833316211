// PURE
#include "controller/launcher/decide/supervisor.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

namespace rueda {
namespace {

// A rank's own operations tell it within a second that another is lost. SIGTERM comes later, or it
// would take the error away from whoever waits for it.
constexpr Nanos kNotice = 2 * kSecond;
// From SIGKILL until a process that is still there (in an uninterruptible wait) is given up.
constexpr Nanos kGiveUp = 1'500 * kMillisecond;
// What outlives the last rank gets this long to clean up, or the grace if that is shorter.
constexpr Nanos kRestGrace = kSecond;
// `timeout` and terminals send one signal twice, to a process and to its group; a second request
// comes later than this.
constexpr Nanos kSameSignal = 200 * kMillisecond;

}  // namespace

bool EndsJob(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Supervisor::Supervisor(const Options& options)
    : options_(options), ranks_(static_cast<size_t>(options.ranks)) {}

void Supervisor::Step(const Event& event, Nanos now, Actions* out) {
  if (phase_ == Phase::kDone) return;
  switch (event.kind) {
    case EventKind::kRankStarted:
      ranks_[static_cast<size_t>(event.rank)] = {.started = true};
      ++started_;
      break;
    case EventKind::kNoMore:
      no_more_ = true;
      SweepIfAllEnded(out);
      break;
    case EventKind::kStartFailed:
      if (phase_ == Phase::kRunning && !options_.elastic) {
        exit_code_ = 1;
        End(SIGTERM, options_.grace, now, out);
        SweepIfAllEnded(out);
      }
      break;
    case EventKind::kRankEnded:
      OnRankEnded(event.rank, event.value, now, out);
      break;
    case EventKind::kSignal:
      OnSignal(event.value, now, out);
      break;
    case EventKind::kFailedElsewhere:
      if (phase_ == Phase::kRunning) {
        exit_code_ = 1;
        EndAfterFailure(now, out);
        SweepIfAllEnded(out);
      }
      break;
    case EventKind::kLauncherGone:
      Kill(now, out);
      SweepIfAllEnded(out);
      break;
    case EventKind::kAlone:
      Finish(out);
      break;
    case EventKind::kRestRemains:
      OnRestRemains(now, out);
      break;
    case EventKind::kTimer:
      if (now >= deadline_) OnTimer(now, out);
      break;
  }
}

void Supervisor::OnRankEnded(Rank rank, int wait_status, Nanos now, Actions* out) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  state.ended = true;
  state.ended_by_us = WIFSIGNALED(wait_status) && (signals_sent_ >> WTERMSIG(wait_status) & 1) != 0;
  ++ended_;
  if (phase_ == Phase::kRunning && wait_status != 0 && !options_.elastic) {
    first_failure_ = rank;
    exit_code_ = ExitCodeOf(wait_status);
    EndAfterFailure(now, out);
  }
  SweepIfAllEnded(out);
}

void Supervisor::OnSignal(int signal, Nanos now, Actions* out) {
  const bool ends = EndsJob(signal);
  if (phase_ == Phase::kRunning) {
    if (ends) {
      exit_code_ = 128 + signal;
      if (signal == SIGINT) {
        End(SIGINT, options_.grace / 2, now, out);
      } else {
        End(SIGTERM, options_.grace, now, out);
      }
      SweepIfAllEnded(out);
    } else if (signal == SIGTSTP || signal == SIGCONT) {
      out->push_back({ActionKind::kSignalGroups, signal});
    } else {
      out->push_back({ActionKind::kSignalRanks, signal});
    }
  } else if (ends && now - ending_since_ >= kSameSignal) {
    Kill(now, out);
  }
}

void Supervisor::OnTimer(Nanos now, Actions* out) {
  switch (phase_) {
    case Phase::kEnding:
      if (now < kill_at_) {  // the failure, or Ctrl-C, was not enough
        SendEnding(SIGTERM, out);
        deadline_ = kill_at_;
      } else {
        Kill(now, out);
      }
      break;
    case Phase::kSweeping:
      Kill(now, out);
      break;
    case Phase::kKilling:
    case Phase::kSweepKilling:
      Finish(out);
      break;
    case Phase::kRunning:
    case Phase::kDone:
      break;
  }
}

void Supervisor::OnRestRemains(Nanos now, Actions* out) {
  if (phase_ == Phase::kSweepKilling) {
    // What just ended may have left children of its own to us.
    out->push_back({ActionKind::kSignalRest, SIGKILL});
  } else if (!rest_told_) {
    rest_told_ = true;
    ending_since_ = std::max(ending_since_, now);
    out->push_back({ActionKind::kSignalRest, SIGTERM});
    out->push_back({ActionKind::kSignalRest, SIGCONT});
    deadline_ = std::min(kill_at_, DeadlineAfter(now, std::min(options_.grace, kRestGrace)));
  }
}

void Supervisor::End(int signal, Nanos patience, Nanos now, Actions* out) {
  phase_ = Phase::kEnding;
  ending_since_ = now;
  kill_at_ = DeadlineAfter(now, options_.grace);
  deadline_ = DeadlineAfter(now, patience);
  if (signal != 0) SendEnding(signal, out);
}

void Supervisor::EndAfterFailure(Nanos now, Actions* out) {
  End(0, std::min(kNotice, options_.grace / 2), now, out);
}

void Supervisor::SendEnding(int signal, Actions* out) {
  signals_sent_ |= uint64_t{1} << signal;
  // Not to the groups: what a rank started, such as a data loader's workers, would die of it, and
  // the rank, which may still need that for its last checkpoint, would fail.
  out->push_back({ActionKind::kSignalRanks, signal});
  out->push_back({ActionKind::kSignalGroups, SIGCONT});  // one that is stopped would not notice
}

void Supervisor::Kill(Nanos now, Actions* out) {
  if (phase_ == Phase::kKilling || phase_ == Phase::kSweepKilling) return;
  signals_sent_ |= uint64_t{1} << SIGKILL;
  if (phase_ == Phase::kSweeping) {
    phase_ = Phase::kSweepKilling;
  } else {
    phase_ = Phase::kKilling;
    out->push_back({ActionKind::kSignalGroups, SIGKILL});
  }
  out->push_back({ActionKind::kSignalRest, SIGKILL});
  deadline_ = DeadlineAfter(now, kGiveUp);
}

void Supervisor::SweepIfAllEnded(Actions* out) {
  if (sweeping() || ended_ < started_) return;
  const bool all_started = options_.elastic ? no_more_ : started_ >= options_.ranks;
  if (phase_ == Phase::kRunning && !all_started) return;
  phase_ = phase_ == Phase::kKilling ? Phase::kSweepKilling : Phase::kSweeping;
  out->push_back({ActionKind::kReap});
}

void Supervisor::Finish(Actions* out) {
  phase_ = Phase::kDone;
  deadline_ = kForever;
  out->push_back({ActionKind::kFinish});
}

}  // namespace rueda
