// PURE
#include "controller/rendezvous/detect/detect.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "controller/protocol/authentication.h"
#include "controller/rendezvous/detect/slurm_lists.h"
#include "controller/rendezvous/detect/tf_config.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

// What launchers call their variables. Null: it has none.
struct Launcher {
  const char* name;
  const char* mark;  // with this one, the others are this launcher's; null: by themselves
  const char* rank;
  const char* size;
  const char* local_size;
  const char* node;               // then `local_size` is a list, and this one's index in it
  const char* job[3];             // name the job together; the first of them has to be there
  const char* attempt = nullptr;  // belongs to the name too, but is counted on each host by itself
  const char* pmi_fd = nullptr;
};

// When they nest, the one that is usually the inner comes first. What each sets for its ranks was
// looked at, but for MVAPICH2, jsrun and horovodrun, of which it is documented.
constexpr Launcher kLaunchers[] = {
    {"torchrun",
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     nullptr,
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"},
     "TORCHELASTIC_RESTART_COUNT"},
    {"Open MPI's mpirun",
     nullptr,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"PMIX_NAMESPACE"}},
    // srun --mpi=pmi2 sets PMI_RANK too, but none of Hydra's own.
    {"Hydra (the mpirun of MPICH and Intel MPI)",
     "MPI_LOCALNRANKS",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALNRANKS",
     nullptr,
     {},
     nullptr,
     "PMI_FD"},
    {"MVAPICH2's mpirun",
     nullptr,
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {}},
    // A batch script's own shell has SLURM_PROCID and SLURM_NTASKS too, but is no task of a step.
    {"srun",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_NODEID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
    {"jsrun",
     nullptr,
     "JSM_NAMESPACE_RANK",
     "JSM_NAMESPACE_SIZE",
     "JSM_NAMESPACE_LOCAL_SIZE",
     nullptr,
     {"LSB_JOBID", "PMIX_NAMESPACE"}},
    {"horovodrun",
     nullptr,
     "HOROVOD_RANK",
     "HOROVOD_SIZE",
     "HOROVOD_LOCAL_SIZE",
     nullptr,
     {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}},
};

// Of launchers that can't be joined by their variables alone: to be told apart from no launcher.
constexpr Launcher kUnusable[] = {
    {"a PMI launcher", nullptr, "PMI_RANK", "PMI_SIZE", nullptr, nullptr, {}},
    {"a PMIx launcher", nullptr, "PMIX_RANK", nullptr, nullptr, nullptr, {}},
};

constexpr Launcher kPlain = {"a launcher that sets RANK and WORLD_SIZE",
                             nullptr,
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             nullptr,
                             {"MASTER_ADDR", "MASTER_PORT"}};

// Of the node-th of SLURM's list. -1: it does not say.
int TasksOfNode(absl::string_view list, int node) {
  const absl::StatusOr<std::vector<int>> tasks = ExpandSlurmCounts(list);
  return tasks.ok() && node < static_cast<int>(tasks->size()) ? (*tasks)[node] : -1;
}

class Reader {
 public:
  Reader(const Launcher& launcher, const Environment& environment)
      : launcher_(launcher), environment_(environment) {}

  absl::string_view Text(const char* variable) const {
    const auto it = variable == nullptr ? environment_.end() : environment_.find(variable);
    return it == environment_.end() ? absl::string_view("") : absl::string_view(it->second);
  }
  // -1: it is not set.
  absl::StatusOr<int> Number(const char* variable) const {
    const absl::string_view text = Text(variable);
    int value = 0;
    if (text.empty()) return -1;
    if (absl::SimpleAtoi(text, &value) && value >= 0 && value <= kRanksMax) return value;
    return absl::InvalidArgumentError(absl::StrCat(variable, "=", text, ", set by ", launcher_.name,
                                                   ": expected a number from 0 to ", kRanksMax));
  }
  // -1: it is not told.
  absl::StatusOr<int> LocalSize() const {
    if (launcher_.node == nullptr) return Number(launcher_.local_size);
    RUEDA_ASSIGN_OR_RETURN(const int node, Number(launcher_.node));
    return node < 0 ? -1 : TasksOfNode(Text(launcher_.local_size), node);
  }
  // Empty: the launcher does not name it.
  std::string Job(bool on_one_host) const {
    if (Text(launcher_.job[0]).empty()) return "";
    // No two launchers' jobs are the same.
    std::vector<absl::string_view> words = {launcher_.mark != nullptr ? launcher_.mark
                                                                      : launcher_.rank};
    for (const char* variable : launcher_.job) {
      if (variable != nullptr) words.push_back(Text(variable));
    }
    if (on_one_host && launcher_.attempt != nullptr) words.push_back(Text(launcher_.attempt));
    return absl::StrJoin(words, "/");
  }

 private:
  const Launcher& launcher_;
  const Environment& environment_;
};

// That there is more than one rank.
struct Claim {
  std::string variable;
  std::string value;
  std::string launcher;
};

absl::Status Refuse(const Claim& claim, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      claim.variable, "=", claim.value, " says that ", claim.launcher,
      " started more than one rank, ", why, ", or unset ", claim.variable, " to run alone"));
}

constexpr char kNoJob[] =
    "but gave the job no name, by which the ranks meet: set RUEDA_JOB_ID to one word for all of "
    "them that no other job has";

// Nothing: this launcher did not start the process, or not more than it alone.
absl::StatusOr<std::optional<LaunchInfo>> ReadLauncher(const Launcher& launcher,
                                                       const Config& config,
                                                       const Environment& environment) {
  const Reader reader(launcher, environment);
  if (launcher.mark != nullptr && reader.Text(launcher.mark).empty()) return std::nullopt;
  RUEDA_ASSIGN_OR_RETURN(const int size, reader.Number(launcher.size));
  RUEDA_ASSIGN_OR_RETURN(const int rank, reader.Number(launcher.rank));
  if (size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(launcher.size, "=0, set by ", launcher.name, ": expected at least one rank"));
  }
  if (size <= 1 && rank <= 0) return std::nullopt;
  const Claim claim = size > 1 ? Claim{launcher.size, absl::StrCat(size), launcher.name}
                               : Claim{launcher.rank, absl::StrCat(rank), launcher.name};
  if (size < 0) {
    return Refuse(claim, "but not how many: start the program with `ruedarun -np N`");
  }
  if (rank < 0) {
    return Refuse(
        claim,
        absl::StrCat("but not which this is: start the program with `ruedarun -np ", size, "`"));
  }
  if (rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat(launcher.rank, "=", rank, " is not below ",
                                                   launcher.size, "=", size, ", both set by ",
                                                   launcher.name));
  }
  RUEDA_ASSIGN_OR_RETURN(const int local_size, reader.LocalSize());
  if (local_size == 0 || local_size > size) {
    return absl::InvalidArgumentError(absl::StrCat(
        launcher.local_size, "=", reader.Text(launcher.local_size), " does not fit to ",
        launcher.size, "=", size, ", both set by ", launcher.name));
  }
  LaunchInfo launch{static_cast<Rank>(rank), size, config.job_id, -1, local_size};
  if (launch.job.empty()) launch.job = reader.Job(local_size == size);
  if (launch.job.empty()) {
    RUEDA_ASSIGN_OR_RETURN(launch.pmi_fd, reader.Number(launcher.pmi_fd));
    // The process manager of each host is another.
    if (launch.pmi_fd < 0 || local_size < size) return Refuse(claim, kNoJob);
  }
  return launch;
}

absl::StatusOr<std::optional<LaunchInfo>> ReadTfConfig(const Config& config,
                                                       const Environment& environment) {
  const auto it = environment.find("TF_CONFIG");
  if (it == environment.end()) return std::nullopt;
  RUEDA_ASSIGN_OR_RETURN(const std::optional<TfTask> task, ParseTfConfig(it->second));
  if (!task.has_value()) return std::nullopt;
  LaunchInfo launch{static_cast<Rank>(task->rank), task->size, config.job_id, -1, task->local_size};
  if (launch.job.empty()) {
    launch.job = absl::StrCat("TF_CONFIG/", NameFor("rueda cluster", task->cluster));
  }
  return launch;
}

absl::StatusOr<LaunchInfo> FromSettings(const Config& config) {
  if (config.rank < 0 || config.size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("RUEDA_", config.rank < 0 ? "SIZE" : "RANK",
                                                   " is set but RUEDA_",
                                                   config.rank < 0 ? "RANK" : "SIZE", " is not"));
  }
  if (config.rank >= config.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("RUEDA_RANK=", config.rank, " is not below RUEDA_SIZE=", config.size));
  }
  if (config.local_size > config.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("RUEDA_LOCAL_SIZE=", config.local_size, " is above RUEDA_SIZE=", config.size));
  }
  if (config.size > 1 && config.job_id.empty()) {
    return absl::InvalidArgumentError(
        "RUEDA_SIZE is above 1 but RUEDA_JOB_ID, by which the ranks meet, is not set");
  }
  return LaunchInfo{static_cast<Rank>(config.rank), static_cast<int>(config.size), config.job_id,
                    -1, static_cast<int>(config.local_size)};
}

// RANK and WORLD_SIZE are anybody's names: they are a launcher's if one of them is a number that
// says so, or if there is an address to meet at.
bool IsPlainLauncher(const Environment& environment) {
  const Reader reader(kPlain, environment);
  int rank = 0, size = 0;
  return (absl::SimpleAtoi(reader.Text(kPlain.rank), &rank) && rank > 0) ||
         (absl::SimpleAtoi(reader.Text(kPlain.size), &size) && size > 1) ||
         !reader.Text(kPlain.job[0]).empty();
}

}  // namespace

absl::StatusOr<LaunchInfo> DetectLaunch(const Config& config, const Environment& environment) {
  if (config.rank >= 0 || config.size >= 0) return FromSettings(config);
  for (const Launcher& launcher : kLaunchers) {
    RUEDA_ASSIGN_OR_RETURN(const std::optional<LaunchInfo> launch,
                           ReadLauncher(launcher, config, environment));
    if (launch.has_value()) return *launch;
  }
  RUEDA_ASSIGN_OR_RETURN(std::optional<LaunchInfo> launch, ReadTfConfig(config, environment));
  if (launch.has_value()) return *launch;
  if (IsPlainLauncher(environment)) {
    RUEDA_ASSIGN_OR_RETURN(launch, ReadLauncher(kPlain, config, environment));
    if (launch.has_value()) return *launch;
  }
  for (const Launcher& launcher : kUnusable) {
    RUEDA_ASSIGN_OR_RETURN(launch, ReadLauncher(launcher, config, environment));
    if (launch.has_value()) return *launch;
  }
  LaunchInfo alone;
  alone.job = config.job_id;
  return alone;
}

}  // namespace rueda
