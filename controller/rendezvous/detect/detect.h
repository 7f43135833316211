// Where this process stands in a job, from its settings and from what launchers set for it. PURE
#pragma once

#include <string>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

struct LaunchInfo {
  Rank rank = 0;
  int size = 1;
  // A name for the job that the launcher gives to all of its ranks, and to no other job of this
  // user on this host at the same time. Empty: to a world of one, and where `pmi_fd` is set.
  std::string job;
  // The job is named after the process at the other end of this socket. -1: there is none.
  int pmi_fd = -1;
  // How many of the ranks are on this host. -1: the launcher does not tell.
  int local_size = -1;
};

// The settings' rank and size, when they are there; else what the first launcher that started more
// than one rank says, of torchrun, Open MPI, Hydra (MPICH, Intel MPI), MVAPICH2, srun, jsrun,
// horovodrun, TF_CONFIG, and RANK with WORLD_SIZE; else a world of one. The setting `job_id` goes
// before the launcher's name for the job.
// INVALID_ARGUMENT, naming variables: they are no numbers, or contradict each other.
// FAILED_PRECONDITION, naming the variable: they say that there are more ranks, but not all that is
// needed to meet them (training alone would be a silent mistake).
absl::StatusOr<LaunchInfo> DetectLaunch(const Config& config, const Environment& environment);

}  // namespace rueda
