// PURE
#include "controller/launcher/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// What every rank is told. Nothing the user or an outer launcher says about these is true here.
Environment PlaceVariables(int rank, int size, const JobFacts& job) {
  const std::string rank_text = absl::StrCat(rank);
  const std::string size_text = absl::StrCat(size);
  return {
      {"RUEDA_RANK", rank_text},
      {"RUEDA_SIZE", size_text},
      {"RUEDA_LOCAL_RANK", rank_text},
      {"RUEDA_LOCAL_SIZE", size_text},
      {"RUEDA_JOB_ID", job.id},
      {"RUEDA_SECRET_FD", absl::StrCat(job.secret_fd)},
      {"RUEDA_AGENT_FD", absl::StrCat(job.agent_fd)},
      {"RANK", rank_text},
      {"WORLD_SIZE", size_text},
      {"LOCAL_RANK", rank_text},
      {"LOCAL_WORLD_SIZE", size_text},
      {"NODE_RANK", "0"},
      {"GROUP_RANK", "0"},
      {"HOROVOD_RANK", rank_text},
      {"HOROVOD_SIZE", size_text},
      {"HOROVOD_LOCAL_RANK", rank_text},
      {"HOROVOD_LOCAL_SIZE", size_text},
      {"HOROVOD_CROSS_RANK", "0"},
      {"HOROVOD_CROSS_SIZE", "1"},
  };
}

// What all ranks share: the inherited environment, what ruedarun proposes, what the user wants.
absl::StatusOr<Environment> SharedEnvironment(const LaunchOptions& options, const HostFacts& host,
                                              const JobFacts& job) {
  Environment environment = host.environment;
  // Another launcher's meeting point is not this job's.
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = absl::StrCat(job.master_port);
  const int threads =
      options.bind == LaunchOptions::Bind::kCore ? 1 : host.usable_cores / options.ranks;
  environment.emplace("OMP_NUM_THREADS", absl::StrCat(std::max(1, threads)));
  if (!options.output_dir.empty()) environment.emplace("RUEDA_RECORDER_DIR", options.output_dir);

  for (const auto& [name, value] : options.settings) environment[name] = value;

  const Environment own = PlaceVariables(0, 1, job);
  for (const LaunchOptions::Export& variable : options.exports) {
    if (own.contains(variable.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "option -x ", variable.name, ": ruedarun sets this variable itself, for each rank"));
    }
    if (variable.value.has_value()) {
      environment[variable.name] = *variable.value;
    } else if (!host.environment.contains(variable.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("option -x ", variable.name, ": no such variable in the environment; give ",
                       "it a value with -x ", variable.name, "=VALUE"));
    }
  }
  return environment;
}

}  // namespace

absl::StatusOr<std::vector<RankPlan>> PlaceRanks(const LaunchOptions& options,
                                                 const HostFacts& host, const JobFacts& job) {
  const bool bind = options.bind == LaunchOptions::Bind::kCore;
  if (bind && static_cast<size_t>(options.ranks) > host.cores.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "option --bind-to core: ", options.ranks, " ranks, but only ", host.cores.size(),
        " usable cores; two ranks on one core would wait for each other"));
  }
  RUEDA_ASSIGN_OR_RETURN(const Environment shared, SharedEnvironment(options, host, job));
  std::vector<RankPlan> plans(static_cast<size_t>(options.ranks));
  for (int rank = 0; rank < options.ranks; ++rank) {
    RankPlan& plan = plans[static_cast<size_t>(rank)];
    plan.environment = PlaceVariables(rank, options.ranks, job);
    plan.environment.insert(shared.begin(), shared.end());  // what is there already stays
    if (bind) plan.core = host.cores[static_cast<size_t>(rank)];
  }
  return plans;
}

}  // namespace rueda
