// Where each rank of a job runs and what it finds in its environment. PURE
#pragma once

#include <string>
#include <vector>

#include "controller/launcher/decide/options.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

// What this host gives to the job.
struct HostFacts {
  Environment environment;  // ruedarun's own
  std::vector<int> cores;   // numbers of the cores that ruedarun may run on
  int usable_cores = 1;     // these, cut down to the cgroup's quota
};

// What was made for this job.
struct JobFacts {
  std::string id;
  int secret_fd = -1;
  int agent_fd = -1;
  int agent_bell_fd = -1;
  int master_port = 0;
  std::string master_address = "127.0.0.1";
  // Where rank 0 waits for the ranks of other hosts, and with what; empty: there are none.
  std::string meeting_address;
  int meeting_fd = -1;    // on rank 0's host; of an elastic job on all
  std::string host_name;  // as the user calls it
};

// Which ranks of the job this host has: `ranks` of `size`, from `first` on.
struct HostShare {
  int size = 1;
  Rank first = 0;
  int ranks = 1;
  int host = 0;  // its number among `hosts`
  int hosts = 1;
  // Of an elastic job, whose ranks here are slots: how many processes it begins with, and how many
  // of its slots this host uses at first; else 0.
  int begins_with = 0;
  int slots = 0;

  int local_size() const { return slots > 0 ? slots : ranks; }
};

// One of the hosts that a job has its ranks on.
struct JobHost {
  std::string name;
  bool is_here = false;  // this host: nothing there needs a remote shell
  HostShare share;
};

struct RankPlan {
  Environment environment;  // all of it
  int core = -1;            // the one to run on; -1: any
};

// One plan for each of this host's ranks. INVALID_ARGUMENT, with the text for the user: as of
// WantedVariables, or more ranks are to be pinned than there are cores.
absl::StatusOr<std::vector<RankPlan>> PlaceRanks(const LaunchOptions& options,
                                                 const HostFacts& host, const JobFacts& job,
                                                 const HostShare& share);

// What the options set for all ranks: settings and -x. `own`: ruedarun's environment.
// INVALID_ARGUMENT: a variable to pass on is not set, is one that ruedarun sets itself, or is one
// that the ranks would refuse.
absl::StatusOr<Environment> WantedVariables(const LaunchOptions& options, const Environment& own);

// What of ruedarun's environment goes to other hosts: what programs are found by, and the settings
// of libraries for training. Not what is true of one host only.
Environment TravellingEnvironment(const Environment& own);

}  // namespace rueda
