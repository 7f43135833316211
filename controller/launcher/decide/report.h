// How a job ended, in words. PURE
#pragma once

#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

struct RankEnding {
  int pid = 0;  // 0: never started
  bool ended = false;
  int wait_status = 0;
  bool ended_by_us = false;  // by a signal that ruedarun sent
  bool lost = false;         // its host is out of reach
  std::string host = {};
  Rank blames = -1;  // whom it names as the cause of its end
};

// By itself, and not well.
inline bool HasFailed(const RankEnding& ending) {
  return ending.ended && ending.wait_status != 0 && !ending.ended_by_us;
}

// Why the job ended before its ranks were done.
struct JobEnding {
  Rank first_failure = -1;       // of a rank
  Rank blamed = -1;              // by that one, though it has not failed by itself
  int signal = 0;                // sent to ruedarun
  std::string signalled_host;    // to whose agent it was sent instead
  bool supervisor_died = false;  // the process between ruedarun and the ranks
  std::string lost_host;         // that ruedarun has lost touch with
  int exit_code = 0;
};

// That the time of --stop-after is over.
std::string StopText(Nanos stop_after);

// "rank 1 failed", "rank 1 failed because of rank 2", "SIGINT", "SIGTERM to the agent on host b",
// "its supervisor process died", "host b was lost".
std::string CauseText(const JobEnding& job);

// "exited with status 3", "ended by ruedarun (SIGTERM) after rank 1 failed", "never started".
std::string EndingText(const RankEnding& ending, const JobEnding& job);

// Who ended how, one line per rank, the first failure (of one that was blamed for it: that) marked
// with '*'. Empty when every rank exited with 0. Of many ranks those that ruedarun ended or that
// exited with 0 are only counted.
std::string EndingsTable(const std::vector<RankEnding>& ranks, const JobEnding& job);

}  // namespace rueda
