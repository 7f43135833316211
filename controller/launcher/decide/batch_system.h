// Which hosts the batch system has given to this job, so that `ruedarun ./train` needs neither -H
// nor -np in a batch script or an interactive allocation. PURE
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "controller/launcher/decide/host_list.h"
#include "controller/launcher/decide/starter.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

struct Allocation {
  std::string source;  // for people: "SLURM job 123"
  std::vector<HostSlots>
      hosts;  // in the batch system's order; at least one, at most kRanksMax slots
  // What the batch system lets a job start processes with on its other hosts.
  Starter::Kind starter = Starter::Kind::kSsh;
};

using FileReader = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// What SLURM, LSF, or PBS (Torque, too) tells in `environment`, and in files that it names, the
// first of them that has a job here. Nothing: no batch system has one. How many slots a host has:
//
// * SLURM: as many as tasks (SLURM_TASKS_PER_NODE, or SLURM_NTASKS_PER_NODE) if tasks were asked
//   for, which SLURM_NTASKS or SLURM_NTASKS_PER_NODE tells. One if only nodes were:
//   SLURM_TASKS_PER_NODE then counts processors. Of a job of several components (het jobs): the
//   first. With SLURM_HOSTFILE: the file's hosts, as often as it names them.
// * LSF: as many as slots, by LSB_DJOB_RANKFILE, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS or LSB_HOSTS,
//   the first that is set. Where jsrun starts processes (CSM_ALLOCATION_ID is set) the first host
//   is the launch node, which has one slot and takes no ranks: it is left out.
// * PBS: as many as it has lines in PBS_NODEFILE: Torque's ppn, PBS Pro's mpiprocs, which is one
//   for each chunk unless it was asked for.
//
// A host counts once however often it is named, under its short name and its full one.
//
// INVALID_ARGUMENT names the variable, the place in it or in its file, and what is expected there.
// FAILED_PRECONDITION: the variables don't tell all that is needed, or this is one of several
// tasks, each of which would start the whole job. The status of `read_file`, with the variable and
// the path.
absl::StatusOr<std::optional<Allocation>> FindAllocation(const Environment& environment,
                                                         const FileReader& read_file);

}  // namespace rueda
