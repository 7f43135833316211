// PURE
#include "controller/launcher/decide/rank_plan.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// What every rank is told. Nothing the user or an outer launcher says about these is true here.
Environment PlaceVariables(int local_rank, const HostShare& share, const JobFacts& job) {
  const std::string rank = absl::StrCat(share.first + local_rank);
  const std::string size = absl::StrCat(share.begins_with > 0 ? share.begins_with : share.size);
  const std::string local = absl::StrCat(local_rank);
  const std::string local_size = absl::StrCat(share.local_size());
  const std::string host = absl::StrCat(share.host);
  Environment variables = {
      {"RUEDA_RANK", rank},
      {"RUEDA_SIZE", size},
      {"RUEDA_LOCAL_RANK", local},
      {"RUEDA_LOCAL_SIZE", local_size},
      {"RUEDA_JOB_ID", job.id},
      {"RUEDA_SECRET_FD", absl::StrCat(job.secret_fd)},
      {"RUEDA_AGENT_FD", absl::StrCat(job.agent_fd)},
      {"RUEDA_AGENT_BELL_FD", absl::StrCat(job.agent_bell_fd)},
      {"RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", local_size},
      {"NODE_RANK", host},
      {"GROUP_RANK", host},
      {"HOROVOD_RANK", rank},
      {"HOROVOD_SIZE", size},
      {"HOROVOD_LOCAL_RANK", local},
      {"HOROVOD_LOCAL_SIZE", local_size},
      {"HOROVOD_CROSS_RANK", host},
      {"HOROVOD_CROSS_SIZE", absl::StrCat(share.hosts)},
      {"HOROVOD_HOSTNAME", job.host_name},
  };
  // As horovodrun says it.
  if (share.begins_with > 0) variables["HOROVOD_ELASTIC"] = "1";
  return variables;
}

// Another launcher's meeting point is not this job's.
void SetMeeting(const JobFacts& job, const HostShare& share, Environment* environment) {
  (*environment)["MASTER_ADDR"] = job.master_address;
  (*environment)["MASTER_PORT"] = absl::StrCat(job.master_port);
  for (const char* name : {"RUEDA_MEETING_ADDRESS", "RUEDA_MEETING_FD"}) environment->erase(name);
  if (job.meeting_address.empty()) return;
  (*environment)["RUEDA_MEETING_ADDRESS"] = job.meeting_address;
  if (share.first == 0 || share.begins_with > 0)
    (*environment)["RUEDA_MEETING_FD"] = absl::StrCat(job.meeting_fd);
}

// What the ranks of a host share: the inherited environment, what ruedarun proposes, what the user
// wants.
absl::StatusOr<Environment> SharedEnvironment(const LaunchOptions& options, const HostFacts& host,
                                              const JobFacts& job, const HostShare& share) {
  Environment environment = host.environment;
  SetMeeting(job, share, &environment);
  const int threads =
      options.bind == LaunchOptions::Bind::kCore ? 1 : host.usable_cores / share.local_size();
  environment.emplace("OMP_NUM_THREADS", absl::StrCat(std::max(1, threads)));
  if (!options.output_dir.empty()) environment.emplace("RUEDA_RECORDER_DIR", options.output_dir);
  RUEDA_ASSIGN_OR_RETURN(const Environment wanted, WantedVariables(options, host.environment));
  for (const auto& [name, value] : wanted) environment[name] = value;
  return environment;
}

constexpr absl::string_view kTravelling[] = {
    "PATH",        "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED",
    "VIRTUAL_ENV", "CONDA_PREFIX",    "LANG",       "TZ"};
constexpr absl::string_view kTravellingPrefixes[] = {"RUEDA_", "HOROVOD_",  "OMP_",     "KMP_",
                                                     "MKL_",   "OPENBLAS_", "CUDA_",    "NCCL_",
                                                     "GLOO_",  "TORCH_",    "PYTORCH_", "LC_"};
// True of one host only, or of one process.
constexpr absl::string_view kStaying[] = {
    "CUDA_VISIBLE_DEVICES", "RUEDA_SECRET_FD",  "RUEDA_AGENT_FD", "RUEDA_AGENT_BELL_FD",
    "RUEDA_SECRET_FILE",    "RUEDA_MEETING_FD", "RUEDA_HOST_ID"};

bool Travels(absl::string_view name) {
  const auto is = [&](absl::string_view each) { return each == name; };
  const auto begins = [&](absl::string_view each) { return absl::StartsWith(name, each); };
  return std::none_of(std::begin(kStaying), std::end(kStaying), is) &&
         (std::any_of(std::begin(kTravelling), std::end(kTravelling), is) ||
          std::any_of(std::begin(kTravellingPrefixes), std::end(kTravellingPrefixes), begins));
}

}  // namespace

absl::StatusOr<std::vector<RankPlan>> PlaceRanks(const LaunchOptions& options,
                                                 const HostFacts& host, const JobFacts& job,
                                                 const HostShare& share) {
  const bool bind = options.bind == LaunchOptions::Bind::kCore;
  if (bind && static_cast<size_t>(share.ranks) > host.cores.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --bind-to core: ", share.ranks, " ranks, but only ", host.cores.size(),
                     " usable cores; two ranks on one core would wait for each other"));
  }
  RUEDA_ASSIGN_OR_RETURN(const Environment shared, SharedEnvironment(options, host, job, share));
  std::vector<RankPlan> plans(static_cast<size_t>(share.ranks));
  for (int local_rank = 0; local_rank < share.ranks; ++local_rank) {
    RankPlan& plan = plans[static_cast<size_t>(local_rank)];
    plan.environment = PlaceVariables(local_rank, share, job);
    plan.environment.insert(shared.begin(), shared.end());  // what is there already stays
    if (bind) plan.core = host.cores[static_cast<size_t>(local_rank)];
  }
  return plans;
}

absl::StatusOr<Environment> WantedVariables(const LaunchOptions& options, const Environment& own) {
  const Environment reserved = PlaceVariables(0, {}, {});
  Environment wanted = options.settings;
  for (const LaunchOptions::Export& variable : options.exports) {
    const auto found = own.find(variable.name);
    if (reserved.contains(variable.name) || variable.name == "RUEDA_MEETING_ADDRESS" ||
        variable.name == "RUEDA_MEETING_FD") {
      return absl::InvalidArgumentError(absl::StrCat(
          "option -x ", variable.name, ": ruedarun sets this variable itself, for each rank"));
    }
    if (!variable.value.has_value() && found == own.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option -x ", variable.name, ": no such variable in the environment; give ",
                       "it a value with -x ", variable.name, "=VALUE"));
    }
    const std::string value = variable.value.has_value() ? *variable.value : found->second;
    // The ranks would all say so.
    Config scratch;
    const absl::Status known = ReadEnvironment({{variable.name, value}}, &scratch);
    if (!known.ok()) return StatusAt(absl::StrCat("option -x ", variable.name), known);
    wanted[variable.name] = value;
  }
  return wanted;
}

Environment TravellingEnvironment(const Environment& own) {
  Environment travelling;
  for (const auto& [name, value] : own) {
    if (Travels(name)) travelling[name] = value;
  }
  return travelling;
}

}  // namespace rueda
