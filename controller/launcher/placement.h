// Where each rank of a job runs and what it finds in its environment. PURE
#pragma once

#include <string>
#include <vector>

#include "controller/launcher/options.h"
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
  int master_port = 0;
};

struct RankPlan {
  Environment environment;  // all of it
  int core = -1;            // the one to run on; -1: any
};

// One plan per rank. INVALID_ARGUMENT, with the text for the user: a variable to pass on is not set
// or is one that ruedarun sets itself; more ranks are to be pinned than there are cores.
absl::StatusOr<std::vector<RankPlan>> PlaceRanks(const LaunchOptions& options,
                                                 const HostFacts& host, const JobFacts& job);

}  // namespace rueda
