// PURE
#include "controller/rendezvous/detect.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// The variables by which a launcher tells a process how many ranks there are, and which it is.
struct Foreign {
  const char* size_variable;  // null: it only numbers them
  const char* rank_variable;
  const char* also;  // only together with this variable; null: by themselves
  const char* launcher;
};

// Launchers nest; the inner ones come first.
constexpr Foreign kForeign[] = {
    {"WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID", "torchrun"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", nullptr, "Open MPI's mpirun"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", nullptr, "MVAPICH2's mpirun"},
    {"PMI_SIZE", "PMI_RANK", nullptr,
     "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)"},
    // A batch script's own shell has SLURM_NTASKS and SLURM_PROCID too, but is no task of a step.
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_ID", "srun"},
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "srun"},
    {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", nullptr, "jsrun"},
    {"HOROVOD_SIZE", "HOROVOD_RANK", nullptr, "horovodrun"},
    {nullptr, "PMIX_RANK", nullptr, "a PMIx launcher (prun, srun --mpi=pmix)"},
    {"WORLD_SIZE", "RANK", nullptr, "a launcher that sets RANK and WORLD_SIZE"},
};

absl::string_view Value(const Environment& environment, const char* variable) {
  const auto it = variable == nullptr ? environment.end() : environment.find(variable);
  return it == environment.end() ? absl::string_view() : absl::string_view(it->second);
}

absl::Status Refuse(absl::string_view variable, absl::string_view value, absl::string_view launcher,
                    absl::string_view ranks) {
  return absl::FailedPreconditionError(absl::StrCat(
      variable, "=", value, " says that ", launcher, " started ",
      ranks == "N" ? "more than one" : ranks,
      " ranks, and this version reads only ruedarun's variables: start the program with `ruedarun "
      "-np ",
      ranks, "`, or unset ", variable, " to run alone"));
}

absl::Status CheckForeign(const Foreign& foreign, const Environment& environment) {
  if (foreign.also != nullptr && Value(environment, foreign.also).empty()) return absl::OkStatus();
  const absl::string_view size_text = Value(environment, foreign.size_variable);
  int64_t size = 1;
  if (!size_text.empty() && !absl::SimpleAtoi(size_text, &size)) {
    return absl::InvalidArgumentError(absl::StrCat(foreign.size_variable, "=", size_text,
                                                   ", by which ", foreign.launcher,
                                                   " tells the number of ranks, is no number"));
  }
  if (size > 1) return Refuse(foreign.size_variable, size_text, foreign.launcher, size_text);
  // One that is not the first is not the only one.
  const absl::string_view rank_text = Value(environment, foreign.rank_variable);
  int64_t rank = 0;
  if (absl::SimpleAtoi(rank_text, &rank) && rank > 0) {
    return Refuse(foreign.rank_variable, rank_text, foreign.launcher, "N");
  }
  return absl::OkStatus();
}

// How many addresses TF_CONFIG's "cluster" lists: {"cluster": {"worker": ["a:1", "b:1"]}, ...}.
int ClusterTasks(absl::string_view config) {
  const size_t cluster = config.find("\"cluster\"");
  if (cluster == absl::string_view::npos) return 0;
  int tasks = 0, braces = 0, brackets = 0;
  bool in_string = false;
  for (size_t at = config.find(':', cluster); at < config.size(); ++at) {
    const char byte = config[at];
    if (in_string) {
      if (byte == '\\') ++at;
      in_string = byte != '"';
    } else if (byte == '"') {
      in_string = true;
      tasks += brackets > 0;
    } else if (byte == '[' || byte == ']') {
      brackets += byte == '[' ? 1 : -1;
    } else if (byte == '{') {
      ++braces;
    } else if (byte == '}' && --braces <= 0) {
      break;
    }
  }
  return tasks;
}

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
    RUEDA_RETURN_IF_ERROR(CheckForeign(foreign, environment));
  }
  if (const int tasks = ClusterTasks(Value(environment, "TF_CONFIG")); tasks > 1) {
    return Refuse("TF_CONFIG", "{...}", "TensorFlow's launcher", absl::StrCat(tasks));
  }
  return Place();
}

}  // namespace rueda
