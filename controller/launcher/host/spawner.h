// The supervisor process: starts the ranks, writes their verdicts, ends them, and leaves nothing
// behind. A child of ruedarun, or of its agent, that was not exec'd, in a process group of its own.
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/host/channel.h"
#include "controller/launcher/host/inheritance.h"
#include "controller/launcher/host/job.h"
#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

struct SpawnArgs {
  std::string program;  // a path
  std::vector<std::string> arguments;
  std::vector<RankPlan> plans;
  std::vector<RankStreams> streams;
  Rank first = 0;  // of these ranks in the job
  int secret_fd = -1;
  int board_fd = -1;    // of the verdict board; also the ranks' RUEDA_AGENT_FD
  int bell_fd = -1;     // the board's; also the ranks' RUEDA_AGENT_BELL_FD
  int meeting_fd = -1;  // rank 0's RUEDA_MEETING_FD; of an elastic job that of all
  // Ranks are slots, none of which has a process before it is asked for.
  bool elastic = false;
  Nanos grace = 5 * kSecond;
  rlimit open_files = {};       // as ruedarun found it
  bool ignores_hangup = false;  // as ruedarun found it (nohup)
};

// All of it but the program, the plans, the streams and the first rank.
SpawnArgs MakeSpawnArgs(const LaunchOptions& options, const JobFacts& job,
                        const Inheritance& inheritance);

// Runs the job and reports over `channel`; its other end's closing means that ruedarun is gone.
// Returns when no process of the job is left (or can't be killed). The calling thread must be the
// process's main and only one: the ranks die with the thread that forked them. All signals are
// blocked and SIGPIPE is ignored.
absl::Status Supervise(SpawnArgs args, Channel channel);

}  // namespace rueda
