// PURE
#include "controller/launcher/decide/options.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

enum class Id {
  kRanks,
  kHosts,
  kHostfile,
  kRemoteShell,
  kSshPort,
  kSshIdentity,
  kAllow,
  kAgent,
  kCheckBuild,
  kConfigFile,
  kExport,
  kOutputDir,
  kBind,
  kPrefix,
  kGrace,
  kHostTimeout,
  kStopAfter,
  kMin,
  kMax,
  kSpares,
  kDiscovery,
  kSlots,
  kElasticTimeout,
  kRegroupTimeout,
  kResets,
  kCooldown,
  kBlacklist,
  kSetting,
  kIgnored,
  kVerbose,
  kHelp,
  kVersion
};

// One row per spelling.
struct Option {
  const char* name;  // without its dashes; one dash or two are the same
  Id id;
  const char* value;               // what it takes; null: nothing
  const char* variable = nullptr;  // of a setting: what it stands for
  bool two = false;                // values, of which the second is optional when they are joined
};
constexpr char kFusionThreshold[] = "RUEDA_FUSION_THRESHOLD";
constexpr char kLogLevel[] = "RUEDA_LOG_LEVEL";
constexpr Option kOptions[] = {
    {"np", Id::kRanks, "a number of ranks"},
    {"n", Id::kRanks, "a number of ranks"},
    {"num-proc", Id::kRanks, "a number of ranks"},
    {"H", Id::kHosts, "hosts and their slots, such as a:4,b:4"},
    {"hosts", Id::kHosts, "hosts and their slots, such as a:4,b:4"},
    {"host", Id::kHosts, "hosts and their slots, such as a:4,b:4"},
    {"hostfile", Id::kHostfile, "a file of hosts"},
    {"remote-shell", Id::kRemoteShell, "a command that takes a host and a command line"},
    {"ssh-port", Id::kSshPort, "a port"},
    {"p", Id::kSshPort, "a port"},
    {"ssh-identity-file", Id::kSshIdentity, "a file"},
    {"i", Id::kSshIdentity, "a file"},
    {"agent", Id::kAgent, nullptr},
    {"check-build", Id::kCheckBuild, nullptr},
    {"cb", Id::kCheckBuild, nullptr},
    {"config-file", Id::kConfigFile, "a file of options"},
    {"x", Id::kExport, "NAME or NAME=VALUE"},
    {"output-dir", Id::kOutputDir, "a directory"},
    {"output-filename", Id::kOutputDir, "a directory"},
    {"bind-to", Id::kBind, "core or none"},
    {"prefix", Id::kPrefix, "rank or none"},
    {"grace-seconds", Id::kGrace, "a number of seconds"},
    {"host-timeout", Id::kHostTimeout, "a number of seconds"},
    {"stop-after", Id::kStopAfter, "a number of seconds"},
    {"min-np", Id::kMin, "a number of processes"},
    {"min-num-proc", Id::kMin, "a number of processes"},
    {"max-np", Id::kMax, "a number of processes"},
    {"max-num-proc", Id::kMax, "a number of processes"},
    {"spares", Id::kSpares, "a number of processes"},
    {"host-discovery-script", Id::kDiscovery, "a program that prints hosts"},
    {"slots", Id::kSlots, "a number of slots"},
    {"slots-per-host", Id::kSlots, "a number of slots"},
    {"elastic-timeout", Id::kElasticTimeout, "a number of seconds"},
    {"regroup-timeout", Id::kRegroupTimeout, "a number of seconds"},
    {"reset-limit", Id::kResets, "a number of resets"},
    {"blacklist-cooldown-range", Id::kCooldown, "two numbers of seconds", nullptr, true},
    {"blacklist", Id::kBlacklist, "slot or host"},
    {"start-timeout", Id::kSetting, "a number of seconds", "RUEDA_START_TIMEOUT_S"},
    {"network-interface", Id::kSetting, "interfaces", "RUEDA_NETWORK_INTERFACE"},
    {"network-interfaces", Id::kSetting, "interfaces", "RUEDA_NETWORK_INTERFACE"},
    {"fusion-threshold-mb", Id::kSetting, "a number of MiB", kFusionThreshold},
    {"timeline-filename", Id::kSetting, "a file", "RUEDA_TIMELINE"},
    {"stall-check-warning-time-seconds", Id::kSetting, "a number of seconds", "RUEDA_STALL_WARN_S"},
    {"stall-check-shutdown-time-seconds", Id::kSetting, "a number of seconds",
     "RUEDA_STALL_TIMEOUT_S"},
    {"gloo-timeout-seconds", Id::kSetting, "a number of seconds", "RUEDA_GLOO_TIMEOUT_S"},
    {"log-level", Id::kSetting, "a level", kLogLevel},
    {"allow-unauthenticated", Id::kAllow, nullptr, "RUEDA_ALLOW_UNAUTHENTICATED"},
    {"allow-unauthenticated-data", Id::kAllow, nullptr, "RUEDA_ALLOW_UNAUTHENTICATED_DATA"},
    // horovodrun's that only tune, or allow what is allowed, or name what is so as it is.
    {"disable-cache", Id::kIgnored, nullptr},
    {"gloo", Id::kIgnored, nullptr},
    {"stall-check", Id::kIgnored, nullptr},
    {"no-stall-check", Id::kIgnored, nullptr},
    {"no-autotune", Id::kIgnored, nullptr},
    {"cycle-time-ms", Id::kIgnored, "a number of milliseconds"},
    {"cache-capacity", Id::kIgnored, "a number"},
    {"timeline-mark-cycles", Id::kIgnored, nullptr},
    {"no-timeline-mark-cycles", Id::kIgnored, nullptr},
    {"hierarchical-allreduce", Id::kIgnored, nullptr},
    {"no-hierarchical-allreduce", Id::kIgnored, nullptr},
    {"hierarchical-allgather", Id::kIgnored, nullptr},
    {"no-hierarchical-allgather", Id::kIgnored, nullptr},
    {"mpi-threads-disable", Id::kIgnored, nullptr},
    {"no-mpi-threads-disable", Id::kIgnored, nullptr},
    {"num-nccl-streams", Id::kIgnored, "a number"},
    {"log-without-timestamp", Id::kIgnored, nullptr},
    {"log-hide-timestamp", Id::kIgnored, nullptr},
    {"oversubscribe", Id::kIgnored, nullptr},
    {"allow-run-as-root", Id::kIgnored, nullptr},
    {"verbose", Id::kVerbose, nullptr},
    {"help", Id::kHelp, nullptr},
    {"h", Id::kHelp, nullptr},
    {"version", Id::kVersion, nullptr},
    {"v", Id::kVersion, nullptr},
};

// Options of horovodrun that are not ours, with what to do instead.
struct Refused {
  const char* name;
  const char* why;
};
constexpr char kNoMpi[] = "ruedarun starts the ranks itself; there is no other launcher to choose";
constexpr char kNoTimes[] = "not yet: lines are marked with their rank only";
constexpr char kNoTuner[] = "not yet: there is no autotuner";
constexpr Refused kRefused[] = {
    {"nproc", "use -np instead"},
    {"ntasks", "use -np instead"},
    {"nproc-per-node", "use -np, or -H HOST:RANKS, instead"},
    {"nproc_per_node", "use -np, or -H HOST:RANKS, instead"},
    {"prefix-output-with-timestamp", kNoTimes},
    {"prefix-timestamp", kNoTimes},
    {"machinefile", "use --hostfile instead"},
    {"mpi", kNoMpi},
    {"mpi-args", kNoMpi},
    {"jsrun", kNoMpi},
    {"tcp", "set RUEDA_BUS=tcp instead"},
    {"binding-args", "use --bind-to instead"},
    {"autotune", kNoTuner},
    {"autotune-log-file", kNoTuner},
    {"autotune-warmup-samples", kNoTuner},
    {"autotune-steps-per-sample", kNoTuner},
    {"autotune-bayes-opt-max-samples", kNoTuner},
    {"autotune-gaussian-process-noise", kNoTuner},
    {"log-with-timestamp", "not yet: the log has no times"},
    {"no-log-hide-timestamp", "not yet: the log has no times"},
    {"thread-affinity", "use --bind-to instead"},
};

constexpr int kPortMax = 65'535;
constexpr double kSecondsMax = 86'400;
constexpr double kStopAfterSecondsMax = 10'000'000;
constexpr double kHostTimeoutSecondsMin = 2;
constexpr int kResetsMax = 1'000'000'000;
constexpr double kFusionMegabytesMax = 1'000'000;

std::string Dashed(absl::string_view name) {
  return absl::StrCat(name.size() == 1 || name == "np" ? "-" : "--", name);
}

const Option* FindOption(absl::string_view name) {
  const auto it = std::find_if(std::begin(kOptions), std::end(kOptions),
                               [&](const Option& option) { return name == option.name; });
  return it == std::end(kOptions) ? nullptr : it;
}

// `word` as the user wrote it, `name` without dashes and value.
absl::Status RefuseUnknown(absl::string_view word, absl::string_view name) {
  std::vector<std::string> known;
  for (const Refused& refused : kRefused) {
    if (name == refused.name) {
      return absl::InvalidArgumentError(absl::StrCat("option ", Dashed(name), ": ", refused.why));
    }
    if (strlen(refused.name) > 1) known.emplace_back(refused.name);
  }
  for (const Option& option : kOptions) {
    if (strlen(option.name) > 1) known.emplace_back(option.name);
  }
  const std::string nearest = name.size() > 1 ? Nearest(name, known) : "";
  return absl::InvalidArgumentError(
      absl::StrCat("unknown option ", word,
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", Dashed(nearest), "?")));
}

absl::Status RefuseValue(const Option& option, absl::string_view value,
                         absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("option ", Dashed(option.name), " ", value, ": expected ", expected));
}

// What the option says is what the variable would, and is wrong when that would be.
absl::Status ApplySeconds(const Option& option, absl::string_view value, double min, double max,
                          double* seconds) {
  if (!absl::SimpleAtod(value, seconds) || !std::isfinite(*seconds) || *seconds < min ||
      *seconds > max) {
    return RefuseValue(option, value, absl::StrCat("a number of seconds from ", min, " to ", max));
  }
  return absl::OkStatus();
}

absl::Status ApplyCount(const Option& option, absl::string_view value, int min, int max,
                        int* count) {
  if (absl::SimpleAtoi(value, count) && *count >= min && *count <= max) return absl::OkStatus();
  return RefuseValue(option, value, absl::StrCat("a whole number from ", min, " to ", max));
}

absl::Status ApplySetting(const Option& option, absl::string_view value, LaunchOptions* options) {
  std::string text(value);
  if (option.variable == kFusionThreshold) {
    double megabytes = 0;
    if (!absl::SimpleAtod(value, &megabytes) || !(megabytes >= 0) ||
        megabytes > kFusionMegabytesMax) {
      return RefuseValue(option, value,
                         absl::StrCat("a number of MiB from 0 to ", kFusionMegabytesMax));
    }
    text = absl::StrCat(std::llround(megabytes * 1024 * 1024));
  }
  // Horovod's words for levels are known by its own variable.
  const bool is_level = option.variable == kLogLevel;
  Config config;
  const absl::Status status =
      ReadEnvironment({{is_level ? "HOROVOD_LOG_LEVEL" : option.variable, text}}, &config);
  if (!status.ok()) {
    const absl::string_view message = status.message();
    return absl::InvalidArgumentError(absl::StrCat("option ", Dashed(option.name), " ", value,
                                                   message.substr(message.find(": "))));
  }
  options->settings[option.variable] = is_level ? config.log_level : text;
  return absl::OkStatus();
}

// An option that says how elastic jobs behave, and does not make the job one.
bool IsElasticOnly(Id id) {
  return id == Id::kSlots || id == Id::kElasticTimeout || id == Id::kRegroupTimeout ||
         id == Id::kResets || id == Id::kCooldown || id == Id::kBlacklist;
}

absl::Status Apply(const Option& option, absl::string_view value, LaunchOptions* options) {
  if (IsElasticOnly(option.id)) options->elastic_only = option.name;
  switch (option.id) {
    case Id::kRanks:
      if (!absl::SimpleAtoi(value, &options->ranks) || options->ranks < 1 ||
          options->ranks > kRanksMax) {
        return RefuseValue(option, value, absl::StrCat("a number of ranks from 1 to ", kRanksMax));
      }
      break;
    case Id::kHosts: {
      absl::StatusOr<std::vector<HostSlots>> hosts = ParseHosts(value);
      if (!hosts.ok()) {
        return StatusAt(absl::StrCat("option ", Dashed(option.name)), hosts.status());
      }
      for (const HostSlots& host : *hosts) {
        RUEDA_RETURN_IF_ERROR(AddHost(host, value, &options->hosts));
      }
      break;
    }
    case Id::kHostfile:
      if (value.empty()) return RefuseValue(option, value, option.value);
      options->hostfile = std::string(value);
      break;
    case Id::kRemoteShell:
      options->remote_shell = absl::StrSplit(value, ' ', absl::SkipEmpty());
      if (options->remote_shell.empty()) return RefuseValue(option, value, option.value);
      break;
    case Id::kSshPort:
      if (!absl::SimpleAtoi(value, &options->ssh_port) || options->ssh_port < 1 ||
          options->ssh_port > kPortMax) {
        return RefuseValue(option, value, absl::StrCat("a port from 1 to ", kPortMax));
      }
      break;
    case Id::kSshIdentity:
      if (value.empty()) return RefuseValue(option, value, option.value);
      options->ssh_identity_file = std::string(value);
      break;
    case Id::kAllow:
      options->settings[option.variable] = "1";
      break;
    case Id::kAgent:
      options->agent = true;
      break;
    case Id::kCheckBuild:
      options->check_build = true;
      break;
    case Id::kConfigFile:
      if (value.empty()) return RefuseValue(option, value, option.value);
      options->config_file = std::string(value);
      break;
    case Id::kSetting:
      return ApplySetting(option, value, options);
    case Id::kExport: {
      const size_t equals = value.find('=');
      LaunchOptions::Export variable;
      variable.name = std::string(value.substr(0, equals));
      if (equals != absl::string_view::npos) variable.value = std::string(value.substr(equals + 1));
      if (variable.name.empty() || variable.name.find(' ') != std::string::npos) {
        return RefuseValue(option, value, option.value);
      }
      options->exports.push_back(std::move(variable));
      break;
    }
    case Id::kOutputDir:
      if (value.empty()) return RefuseValue(option, value, option.value);
      options->output_dir = std::string(value);
      break;
    case Id::kBind:
      if (value != "core" && value != "none") return RefuseValue(option, value, option.value);
      options->bind = value == "core" ? LaunchOptions::Bind::kCore : LaunchOptions::Bind::kNone;
      break;
    case Id::kPrefix:
      if (value != "rank" && value != "none") return RefuseValue(option, value, option.value);
      options->prefix =
          value == "rank" ? LaunchOptions::Prefix::kRank : LaunchOptions::Prefix::kNone;
      break;
    case Id::kGrace:
      return ApplySeconds(option, value, 0, kSecondsMax, &options->grace_seconds);
    case Id::kHostTimeout:
      return ApplySeconds(option, value, kHostTimeoutSecondsMin, kSecondsMax,
                          &options->host_timeout_seconds);
    case Id::kStopAfter:
      return ApplySeconds(option, value, 1, kStopAfterSecondsMax, &options->stop_after_seconds);
    case Id::kMin:
      options->elastic = true;
      return ApplyCount(option, value, 1, kElasticProcessesMax, &options->min_processes);
    case Id::kMax:
      options->elastic = true;
      return ApplyCount(option, value, 1, kElasticProcessesMax, &options->max_processes);
    case Id::kSpares:
      options->elastic = true;
      return ApplyCount(option, value, 0, kElasticProcessesMax, &options->spares);
    case Id::kDiscovery:
      if (value.empty()) return RefuseValue(option, value, option.value);
      options->elastic = true;
      options->discovery_script = std::string(value);
      break;
    case Id::kSlots:
      return ApplyCount(option, value, 1, kLocalRanksMax, &options->slots_per_host);
    case Id::kElasticTimeout:
      return ApplySeconds(option, value, 0, kSecondsMax, &options->elastic_timeout_seconds);
    case Id::kRegroupTimeout:
      return ApplySeconds(option, value, 0, kSecondsMax, &options->regroup_timeout_seconds);
    case Id::kResets:
      return ApplyCount(option, value, 0, kResetsMax, &options->reset_limit);
    case Id::kCooldown: {
      const std::vector<std::string> both = absl::StrSplit(value, ' ');
      if (both.size() != 2) return RefuseValue(option, value, option.value);
      RUEDA_RETURN_IF_ERROR(
          ApplySeconds(option, both[0], 0, kSecondsMax, &options->cooldown_seconds_min));
      return ApplySeconds(option, both[1], options->cooldown_seconds_min, kSecondsMax,
                          &options->cooldown_seconds_max);
    }
    case Id::kBlacklist:
      if (value != "slot" && value != "host") return RefuseValue(option, value, option.value);
      options->blacklist_hosts = value == "host";
      break;
    case Id::kIgnored:
      break;
    case Id::kVerbose:
      options->verbose = true;
      break;
    case Id::kHelp:
      options->help = true;
      break;
    case Id::kVersion:
      options->version = true;
      break;
  }
  return absl::OkStatus();
}

// Reads the option at `*at` and its value, and moves `*at` behind them.
absl::Status ReadOption(absl::Span<const std::string> arguments, size_t* at,
                        LaunchOptions* options) {
  const std::string& word = arguments[(*at)++];
  absl::string_view name = absl::StripPrefix(word, "-");
  name = absl::StripPrefix(name, "-");
  const size_t equals = name.find('=');
  const bool joined = equals != absl::string_view::npos;
  absl::string_view value = joined ? name.substr(equals + 1) : "";
  name = name.substr(0, equals);
  const Option* option = FindOption(name);
  if (option == nullptr) return RefuseUnknown(word, name);
  if (option->value == nullptr && joined) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", Dashed(name), " takes no value, but was given '", value, "'"));
  }
  if (option->value != nullptr && !joined) {
    if (*at == arguments.size() || absl::StartsWith(arguments[*at], "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("option ", Dashed(name), " needs ", option->value));
    }
    value = arguments[(*at)++];
  }
  const bool has_both = value.find(' ') != absl::string_view::npos;
  if (option->two && !has_both && *at < arguments.size() &&
      !absl::StartsWith(arguments[*at], "-")) {
    return Apply(*option, absl::StrCat(value, " ", arguments[(*at)++]), options);
  }
  return Apply(*option, value, options);
}

}  // namespace

absl::Status ApplyOptions(absl::Span<const std::string> words, LaunchOptions* options) {
  for (size_t at = 0; at < words.size();) {
    RUEDA_RETURN_IF_ERROR(ReadOption(words, &at, options));
  }
  return absl::OkStatus();
}

bool MayBeRepeated(absl::string_view name) {
  const Option* const option = FindOption(name);
  return option != nullptr && (option->id == Id::kHosts || option->id == Id::kExport);
}

absl::StatusOr<LaunchOptions> ParseOptions(absl::Span<const std::string> arguments,
                                           LaunchOptions options) {
  // -H overrides a file's hostfile, and the other way round.
  const std::vector<HostSlots> hosts = std::exchange(options.hosts, {});
  const std::string hostfile = std::exchange(options.hostfile, "");
  options.elastic_only.clear();  // a file may be for jobs of both kinds
  size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') {
    if (arguments[at] == "--") {
      ++at;
      break;
    }
    RUEDA_RETURN_IF_ERROR(ReadOption(arguments, &at, &options));
    if (options.check_build && at < arguments.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--check-build stands alone, without ", arguments[at]));
    }
    if (options.help || options.version || options.agent || options.check_build) return options;
  }
  options.command.assign(arguments.begin() + static_cast<ptrdiff_t>(at), arguments.end());
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return absl::InvalidArgumentError("-H and --hostfile: which of the two? Give one");
  }
  if (options.hosts.empty() && options.hostfile.empty()) {
    options.hosts = hosts;
    options.hostfile = hostfile;
  }
  if (!options.discovery_script.empty() && !(options.hosts.empty() && options.hostfile.empty())) {
    return absl::InvalidArgumentError(
        "--host-discovery-script says which hosts there are: leave out -H and --hostfile");
  }
  if (options.max_processes > 0 && options.min_processes > options.max_processes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--min-np ", options.min_processes, " is more than --max-np ", options.max_processes));
  }
  if (!options.elastic && !options.elastic_only.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("option ", Dashed(options.elastic_only),
                                                   " is for elastic jobs: add --min-np N, or leave "
                                                   "it out"));
  }
  if (options.command.empty()) {
    return absl::InvalidArgumentError("which program? None is named after the options");
  }
  return options;
}

std::string HelpText() {
  return R"(ruedarun starts a job: N processes (ranks) of one program, on this host or on several.

  ruedarun -np N [options] program [arguments...]

  ruedarun -np 4 python train.py --epochs 10
  ruedarun -np 2 -x RUEDA_LOG_LEVEL=info ./train
  ruedarun -H a:4,b:4 ./train

Options (one dash or two; "--" ends them, or the first word that is not an option):
  -np N                start N ranks; also -n N, --num-proc N. Default, with -H, a host file or a
                       batch job: as many as there are slots
  -H HOST:SLOTS,...    where, such as a:4,b:4; also --hosts, --host. Hosts are filled in this order;
                       one without slots takes one rank. Default: those that SLURM, PBS or LSF have
                       given to this job, or else this host
  --hostfile FILE      the same, one line per host: "HOST slots=SLOTS"; '#' begins a comment
  --ssh-port PORT, -p  the port of the other hosts' ssh; default: as ~/.ssh/config has it
  --ssh-identity-file FILE, -i   the key to log in with; default: likewise
  --remote-shell WORDS what starts a command on another host, instead of ssh: these words, then the
                       host, then a command line of the host's shell
  -x NAME=VALUE        set a variable in the environment of every rank; may be repeated
  -x NAME              pass a variable on; an error when it is not set. Ranks on this host inherit
                       the whole environment, those on others PATH, LD_LIBRARY_PATH, PYTHONPATH,
                       RUEDA_*, OMP_*, NCCL_*, CUDA_* and the like
  --output-dir DIR     write each rank's output to DIR/rank.R.out and DIR/rank.R.err, unmarked,
                       and nothing of it to the terminal; dumps of the flight recorder go there
                       too. Also --output-filename
  --prefix rank|none   mark every line with its rank, "[3] text" (default), or leave lines alone
  --bind-to core|none  pin rank R to the R-th usable core, or let the system place it (default)
  --grace-seconds S    time until SIGKILL once the job is to end; default 5
  --host-timeout S     how long ruedarun and another host may hear nothing of each other before the
                       ranks there are given up, and end; default 30
  --start-timeout S    how long hosts may take to be ready, and then init waits for the other ranks;
                       default 60
  --stop-after S       warn the ranks after S seconds, by SIGUSR1: programs that call should_stop()
                       save and end; it kills others
  --verbose            say what is started, and how each rank ended
Elastic jobs, which lose processes and go on (docs/guides/elastic.md). --min-np, --max-np, --spares
or a discovery script makes one:
  --min-np N           go on with at least N processes; also --min-num-proc. Default: that of -np
  --max-np N           have at most N; also --max-num-proc. Default: as many as there are slots
  --spares N           start N more, which have begun when they are needed
  --host-discovery-script COMMAND   prints the hosts that there are, "HOST:SLOTS" or "HOST" a line;
                       asked each second. A host file is read again when it changes, too
  --slots N            slots of a host that the script gives none; also --slots-per-host
  --elastic-timeout S  how long there may be fewer than --min-np; default 600
  --regroup-timeout S  how long the others wait for a process that does not regroup; default 10
  --reset-limit N      end after N changes of the membership; default: no limit
  --blacklist-cooldown-range MIN MAX   seconds for which a slot whose process failed is not used, at
                       first and at most; default 1 and 60
  --blacklist slot|host   what a failed process costs: its slot (default), or its host for good
  --config-file FILE   options in YAML, one per line: "output-dir: DIR", "np: 4"; also horovodrun's
                       files. The command line overrides them
  --check-build, -cb   say what was built, and what there is to reach other hosts with
  --help, -h           print this text
  --version, -v        print the version
Options of horovodrun that only tune what does not exist here, such as --disable-cache,
--cycle-time-ms and --no-stall-check, change nothing.

Settings of the runtime, for all ranks (-x RUEDA_NAME=VALUE sets any other knob):
  --fusion-threshold-mb MIB             bytes of a fusion bucket; default 64 MiB
  --timeline-filename FILE              write a timeline
  --log-level LEVEL                     debug, info, warning, error or off
  --stall-check-warning-time-seconds S  age at which a stalled operation is reported; default 10
  --stall-check-shutdown-time-seconds S age at which it fails; default 0: never
  --network-interface NAME,...          the interface for TCP, the first that a host has; default
                                        lo, or by route. Also --network-interfaces
  --allow-unauthenticated-data          tensors may cross a network that anybody can reach
  --allow-unauthenticated               programs that meet on their own need no secret; ruedarun's
                                        ranks have one
  --gloo-timeout-seconds S              time limit of Gloo to connect, or for a bucket; default 60

Other hosts need the same version of ruedarun at the same path, the program, the directory to start
in, and a way in by ssh that asks nothing. Host keys are checked as your own configuration says.

What happens:
  Every rank finds its place in RUEDA_RANK, RUEDA_SIZE and so on, and in the variables of torchrun
  and Horovod (RANK, WORLD_SIZE, LOCAL_RANK, HOROVOD_RANK, ...).
  The first rank that fails ends the job, unless it is elastic: the others, who learn of it from
  their own operations, have 2 seconds to say so; then they get SIGTERM, and SIGKILL after the
  grace.
  Ctrl-C, SIGTERM and SIGHUP end the job too, a second one at once. SIGUSR1 and SIGUSR2 are passed
  on to the ranks; Ctrl-Z stops them, fg and bg continue them.
  Nothing that a rank started outlives the job.
  Rank 0 reads ruedarun's standard input, unless that is a terminal or the job also runs on other
  hosts; the others read nothing.

Exit status:
  0        every rank exited with 0
  1 - 255  that of the first rank that failed (of an elastic job: of the last process that failed);
           128 + signal when a signal killed it
  128 + s  ruedarun was ended by signal s
  127, 126 the program was not found, or can't be executed: then nothing was started
  2        a mistake on the command line
  1        ruedarun could not start the job, or lost a host or a supervisor process before any rank
           had failed
)";
}

std::string VersionText() {
  return absl::StrCat("ruedarun ", RUEDA_VERSION_TEXT, "\n");
}

}  // namespace rueda
