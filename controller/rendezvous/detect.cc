// PURE
#include "controller/rendezvous/detect.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// A variable by which a launcher tells its ranks how many they are.
struct Foreign {
  const char* size_variable;
  const char* also;  // only together with this variable; null: by itself
  const char* launcher;
};

constexpr Foreign kForeign[] = {
    {"WORLD_SIZE", "TORCHELASTIC_RUN_ID", "torchrun"},
    {"OMPI_COMM_WORLD_SIZE", nullptr, "Open MPI's mpirun"},
    {"PMI_SIZE", nullptr, "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "srun"},
    {"JSM_NAMESPACE_SIZE", nullptr, "jsrun"},
    {"WORLD_SIZE", nullptr, "a launcher that sets WORLD_SIZE"},
};

}  // namespace

absl::StatusOr<Place> DetectPlace(const Config& config, const Environment& environment) {
  if (config.rank >= 0 || config.size >= 0) {
    if (config.rank < 0 || config.size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("RUEDA_", config.rank < 0 ? "SIZE" : "RANK",
                                                     " is set but RUEDA_",
                                                     config.rank < 0 ? "RANK" : "SIZE", " is not"));
    }
    if (config.rank >= config.size) {
      return absl::InvalidArgumentError(
          absl::StrCat("RUEDA_RANK=", config.rank, " is not below RUEDA_SIZE=", config.size));
    }
    if (config.size > 1 && config.job_id.empty()) {
      return absl::InvalidArgumentError(
          "RUEDA_SIZE is above 1 but RUEDA_JOB_ID, by which the ranks meet, is not set");
    }
    return Place{static_cast<Rank>(config.rank), static_cast<int>(config.size)};
  }
  for (const Foreign& foreign : kForeign) {
    const auto it = environment.find(foreign.size_variable);
    int64_t size;
    if (it == environment.end() || !absl::SimpleAtoi(it->second, &size) || size <= 1) continue;
    if (foreign.also != nullptr && !environment.contains(foreign.also)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        foreign.size_variable, "=", it->second, " says that ", foreign.launcher, " started ", size,
        " ranks, and this version reads only ruedarun's variables: start the program with "
        "`ruedarun "
        "-np ",
        size, "`, or unset ", foreign.size_variable, " to run alone"));
  }
  return Place();
}

}  // namespace rueda
