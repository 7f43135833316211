// PURE but for ProcessEnvironment
#include "core/config/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/limits.h"
#include "core/config/backends.h"

extern char** environ;

namespace rueda {
namespace {

using Field = std::variant<int64_t Config::*, double Config::*, std::string Config::*>;

enum class Use { kKnob, kAgreed, kSetUp };

struct Knob {
  const char* name;
  Field field;
  Use use;
  double min;  // of a number
  double max;
  const char*
      choices;  // of a word: "auto|shm|gloo"; "" for free text. Of a number: "0", if below min
  const char* alias;  // HOROVOD_...; "" when there is none
  const char* doc;
};

// "auto|shm|gloo": of the list, those that can be asked for.
constexpr auto kBackendChoices = [] {
  std::array<char, 256> text = {};
  size_t end = 0;
  const auto append = [&](const char* name, bool choice) {
    if (choice && end > 0) text[end++] = '|';
    while (choice && *name != 0) text[end++] = *name++;
  };
  append("auto", true);
#define RUEDA_APPEND(name, make, choice) append(name, choice);
  RUEDA_BACKENDS(RUEDA_APPEND)
#undef RUEDA_APPEND
  return text;
}();

const Knob kKnobs[] = {
    {"backend", &Config::backend, Use::kAgreed, 0, 0, kBackendChoices.data(), "",
     "What moves the bytes of CPU tensors. `auto`: shared memory where all ranks of a process set "
     "are on one host, else both together: shared memory inside the hosts and `cross` between "
     "them."},
    {"bus", &Config::bus, Use::kAgreed, 0, 0, "auto|log|tcp", "",
     "What carries the negotiation. `log`: a log in shared memory inside a host, TCP between hosts "
     "(what `auto` means). `tcp`: authenticated TCP between all ranks, on one host too."},
    {"fusion_threshold", &Config::fusion_threshold, Use::kAgreed, 0, 1e12, "",
     "HOROVOD_FUSION_THRESHOLD",
     "Bytes of a fusion bucket: a batch closes when it holds this much. A larger tensor travels "
     "alone. 0: each does."},
    {"inline_bytes", &Config::inline_bytes, Use::kKnob, 0, kInlineBytesMax, "", "",
     "Between hosts: up to how many bytes of an operation, all ranks' together, travel with the "
     "announcements of blocking calls, so that the plan brings the result back. 0: none. Its "
     "process set has members on all hosts and at most 256 ranks."},
    {"cross", &Config::cross, Use::kAgreed, 0, 0, "auto|sockets|gloo", "",
     "What moves the bytes of CPU tensors between hosts. `sockets`: TCP connections of Rueda's "
     "own. "
     "`gloo`: Gloo. `auto`: sockets. The results are the same, bit for bit. Send, recv and "
     "compressed reductions use Gloo in any case."},
    {"wire_precision", &Config::wire_precision, Use::kAgreed, 0, 0, "tensor|float32", "",
     "How float16, bfloat16 and float8 travel between hosts in a reduction. `tensor`: in the "
     "tensor's type (float8 as bfloat16), so that each host's sum is rounded once more; with one "
     "rank per host there is no sum to round. `float32`: twice the bytes, and only the result is "
     "rounded."},
    {"leader_fan_out", &Config::leader_fan_out, Use::kAgreed, 1, kRanksMax, "", "",
     "How many hosts report to one: the leaders of the hosts form a tree with rank 0 at its root. "
     "With "
     "one host more than this, and fewer, all report to rank 0."},
    {"wait", &Config::wait, Use::kKnob, 0, 0, "auto|spin|yield|sleep", "",
     "What a waiting thread does before it sleeps. `auto`: a few pauses when every rank on the "
     "machine has a core of its own, else it yields."},
    {"network_interface", &Config::network_interface, Use::kKnob, 0, 0, "", "HOROVOD_GLOO_IFACE",
     "The network interface for everything that goes over TCP, or a list such as `ib0,eth0`: each "
     "host uses the first one that it has. Empty: on one host `lo`. On several hosts rank 0 takes "
     "that of the route to the last host under `ruedarun`, and otherwise that of the default "
     "route, or the only one that is not loopback. The other ranks take that of the route to rank "
     "0."},
    {"allow_unauthenticated", &Config::allow_unauthenticated, Use::kKnob, 0, 1, "", "",
     "1: ranks that meet at `RUEDA_MEETING_ADDRESS` need no secret: whoever can reach that address "
     "can take "
     "part in the job, and read and change what it reduces. Jobs that have a secret are not "
     "affected."},
    {"allow_unauthenticated_data", &Config::allow_unauthenticated_data, Use::kAgreed, 0, 1, "", "",
     "1: tensors may cross a network whose addresses can be reached from anywhere. Gloo's "
     "connections are not "
     "authenticated; the control connections are, always."},
    {"process_sets", &Config::process_sets, Use::kAgreed, 0, 0, "", "",
     "Process sets that exist from the start, with ids 1, 2, ...: lists of ranks and ranges, "
     "separated by semicolons (`0,1;2-5`)."},
    {"start_timeout_s", &Config::start_timeout_s, Use::kKnob, 0.01, 1e6, "",
     "HOROVOD_START_TIMEOUT",
     "How long init waits for the other ranks; the error names those that did not come."},
    {"stall_warn_s", &Config::stall_warn_s, Use::kAgreed, 0.01, 1e9, "",
     "HOROVOD_STALL_CHECK_TIME_SECONDS",
     "Age at which an operation that some ranks have not submitted is first reported. Again at 6 "
     "times "
     "this, then at every 30 times."},
    {"stall_timeout_s", &Config::stall_timeout_s, Use::kAgreed, 0, 1e9, "",
     "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     "Age at which such an operation fails on every rank that submitted it. 0: never."},
    {"deadlock_timeout_s", &Config::deadlock_timeout_s, Use::kAgreed, 0, 1e9, "", "",
     "How long all ranks wait for operations that can't complete, as each waits for another, until "
     "these fail on every rank that submitted them. Nothing may be submitted, end, or call back "
     "meanwhile, on any rank; time in which a rank is stopped or traced does not count. Three "
     "times as long where a thread that submits and does not wait may come back, and six times "
     "where a thread that has waited before is outside of the library. Each context looks at "
     "its own operations. 0: never, as for a program whose ranks all wait for work on purpose."},
    {"heartbeat_limit_s", &Config::heartbeat_limit_s, Use::kAgreed, 0.1, 1e6, "0", "",
     "A rank is lost when it has been stopped by a signal for that long, or when its host has been "
     "silent (to anybody who reduces with it) for that long and one heartbeat more: an eighth of "
     "it, at most a second. 0: never, as when a debugger is to hold ranks of several hosts."},
    {"gloo_timeout_s", &Config::gloo_timeout_s, Use::kKnob, 0.1, 1e6, "",
     "HOROVOD_GLOO_TIMEOUT_SECONDS",
     "How long ranks of several hosts, or Gloo, may take to connect, and one bucket to move once "
     "all "
     "ranks have started it."},
    {"nccl_timeout_s", &Config::nccl_timeout_s, Use::kKnob, 0.1, 1e6, "", "",
     "How long the ranks may take to make an NCCL communicator, once an operation needs it."},
    {"unwind_timeout_s", &Config::unwind_timeout_s, Use::kKnob, 0, 1e6, "", "",
     "How long a C++ handle of an operation in place waits for its end when an exception unwinds "
     "past it. After that the handle ends the membership on all ranks, and the error names the "
     "operation. Handles of other operations don't wait then."},
    {"deterministic", &Config::deterministic, Use::kAgreed, 0, 1, "", "",
     "1: reductions of CUDA tensors add up in rank order and give the CPU's bits, at some cost; "
     "else "
     "NCCL adds up as it likes, though all ranks get the same."},
    {"gradients", &Config::gradients, Use::kAgreed, 0, 0, "horovod|sum", "",
     "How `rueda.torch` and `rueda.tensorflow` scale the gradients of allgather, broadcast and "
     "reducescatter. `horovod`: as Horovod does. `sum`: as the derivative of the sum of all ranks' "
     "losses. `hvd.gradients()` overrides it. See "
     "[python.md](../guides/python.md#gradients-of-operations)."},
    {"log_level", &Config::log_level, Use::kKnob, 0, 0, "debug|info|warning|error|off",
     "HOROVOD_LOG_LEVEL", "The least severe messages printed to stderr."},
    {"recorder_dir", &Config::recorder_dir, Use::kKnob, 0, 0, "", "",
     "Directory for the flight recorder's dumps. Empty: the temporary directory."},
    {"timeline", &Config::timeline, Use::kKnob, 0, 0, "", "HOROVOD_TIMELINE",
     "File in which rank 0 writes its timeline from the start on, such as `t.json`; rank 3's is "
     "`t.3.json`. `DYNAMIC`: none until the program starts one. See "
     "[timeline.md](../guides/timeline.md)."},
    {"stop_file", &Config::stop_file, Use::kKnob, 0, 0, "", "",
     "A file that, once it exists, tells all ranks to stop, by `should_stop()`, as SIGTERM and "
     "SIGUSR1 do."},
    {"rank", &Config::rank, Use::kSetUp, 0, kRanksMax - 1, "", "", "This process's world rank."},
    {"size", &Config::size, Use::kSetUp, 1, kRanksMax, "", "", "Number of ranks in the job."},
    {"local_rank", &Config::local_rank, Use::kSetUp, 0, kLocalRanksMax - 1, "", "",
     "Rank among the ranks of this host."},
    {"local_size", &Config::local_size, Use::kSetUp, 1, kLocalRanksMax, "", "",
     "Number of ranks on this host."},
    {"job_id", &Config::job_id, Use::kSetUp, 0, 0, "", "",
     "A name for the job that no other job of this user has at the same time. The ranks meet by "
     "it; it "
     "is no secret."},
    {"host_id", &Config::host_id, Use::kSetUp, 0, 0, "", "",
     "Overrides what makes ranks neighbors on one host (boot id, network namespace and user)."},
    {"secret_fd", &Config::secret_fd, Use::kSetUp, 3, 1 << 30, "", "",
     "Inherited descriptor of a sealed memfd that holds the job's secret."},
    {"secret_file", &Config::secret_file, Use::kSetUp, 0, 0, "", "",
     "File, mode 0600, that holds the job's secret; at least 16 bytes."},
    {"shared_dir", &Config::shared_dir, Use::kSetUp, 0, 0, "", "",
     "Directory that all hosts of the job see, where rank 0 leaves a file (mode 0600) with its "
     "address and a "
     "secret, for ranks that another launcher than ruedarun started on several hosts. The file "
     "goes when all "
     "have come."},
    {"meeting_fd", &Config::meeting_fd, Use::kSetUp, 3, 1 << 30, "", "",
     "Inherited TCP socket at which rank 0 waits for the ranks of other hosts; ruedarun makes it."},
    {"meeting_address", &Config::meeting_address, Use::kSetUp, 0, 0, "", "",
     "Where the ranks of several hosts meet, such as `10.0.0.1:34567` or `node1:29400`: the same "
     "for all of "
     "them. ruedarun sets it. Without `RUEDA_MEETING_FD` rank 0 listens at that port of its "
     "network interface "
     "itself. All need one secret (`RUEDA_SECRET_FILE`)."},
    {"agent_fd", &Config::agent_fd, Use::kSetUp, 3, 1 << 30, "", "",
     "Inherited memfd in which the launcher writes how ranks ended."},
    {"agent_bell_fd", &Config::agent_bell_fd, Use::kSetUp, 3, 1 << 30, "", "",
     "Inherited eventfd that the launcher rings when it has written there."},
    {"elastic_fd", &Config::elastic_fd, Use::kSetUp, 3, 1 << 30, "", "",
     "Inherited socket by which a process of an elastic job asks the launcher for its "
     "memberships."},
    {"elastic_ranks", &Config::elastic_ranks, Use::kSetUp, 0, kRanksMax, "", "",
     "Of a process that comes to an elastic job: how many ranks that had when it was started."},
    {"hosts_fake", &Config::hosts_fake, Use::kSetUp, 0, kRanksMax, "", "",
     "For tests: treats this host's ranks as that many hosts, in blocks of equal size."},
};

constexpr char kPrefix[] = "RUEDA_";

// RUEDA_ variables that the scripts read and the library does not.
const char* const kScriptVariables[] = {"VENV", "PIP_ARGS", "PREFIX", "SYSROOT", "DEBIAN_MIRROR"};

// HOROVOD_ settings of features that do not exist here, which a job does without: they only tune,
// or switch off what others need not fear. Anything else that begins with HOROVOD_ (ranks set by
// launchers, Horovod's build options) is not ours to judge.
struct Ignored {
  const char* name;
  const char* why;
};
const Ignored kIgnored[] = {
    {"HOROVOD_AUTOTUNE", "there is no autotuner yet"},
    {"HOROVOD_AUTOTUNE_LOG", "there is no autotuner yet"},
    {"HOROVOD_CACHE_CAPACITY", "every operation is cached; there is no cache to size"},
    {"HOROVOD_CYCLE_TIME", "there is no cycle; an operation leaves when it is ready"},
    {"HOROVOD_HIERARCHICAL_ALLGATHER",
     "between hosts it is so by itself, unless RUEDA_BACKEND says otherwise"},
    {"HOROVOD_HIERARCHICAL_ALLREDUCE",
     "between hosts it is so by itself, unless RUEDA_BACKEND says otherwise"},
    {"HOROVOD_STALL_CHECK_DISABLE", "stalls are always reported; RUEDA_STALL_WARN_S says when"},
    {"HOROVOD_TIMELINE_MARK_CYCLES", "there are no cycles to mark"},
};
// The one that a program counts on.
constexpr char kElastic[] = "HOROVOD_ELASTIC";

const Knob* Find(absl::string_view name) {
  for (const Knob& knob : kKnobs) {
    if (name == knob.name) return &knob;
  }
  return nullptr;
}

std::string VariableName(const Knob& knob) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(knob.name));
}

absl::Status Refuse(absl::string_view shown_name, absl::string_view value,
                    absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(shown_name, "=", value, ": expected ", allowed));
}

bool AlsoZero(const Knob& knob) {
  return absl::string_view(knob.choices) == "0";
}

std::string Allowed(const Knob& knob) {
  if (std::holds_alternative<std::string Config::*>(knob.field)) {
    return absl::StrCat("one of ", absl::StrJoin(absl::StrSplit(knob.choices, '|'), ", "));
  }
  if (std::holds_alternative<int64_t Config::*>(knob.field)) {
    return absl::StrCat("a whole number from ", static_cast<int64_t>(knob.min), " to ",
                        static_cast<int64_t>(knob.max));
  }
  return absl::StrCat(AlsoZero(knob) ? "0 or a number from " : "a number from ", knob.min, " to ",
                      knob.max);
}

// Digits, and of what may be broken a point and an exponent: no blanks, no hexadecimal, no plus, no
// minus before a zero.
bool IsPlainNumber(absl::string_view text, bool whole, double number) {
  const bool negative = absl::ConsumePrefix(&text, "-");
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) return false;
  if (text.find_first_not_of(whole ? "0123456789" : "0123456789.eE+-") != text.npos) return false;
  return !negative || number < 0;
}

// `shown_name` is what the user wrote: the knob, the variable or the alias.
absl::Status Set(const Knob& knob, absl::string_view shown_name, absl::string_view value,
                 Config* config) {
  if (const auto* whole = std::get_if<int64_t Config::*>(&knob.field)) {
    int64_t number;
    if (!absl::SimpleAtoi(value, &number) ||
        !IsPlainNumber(value, /*whole=*/true, static_cast<double>(number)) ||
        static_cast<double>(number) < knob.min || static_cast<double>(number) > knob.max) {
      return Refuse(shown_name, value, Allowed(knob));
    }
    config->** whole = number;
  } else if (const auto* real = std::get_if<double Config::*>(&knob.field)) {
    double number;
    if (!absl::SimpleAtod(value, &number) || !std::isfinite(number) ||
        !IsPlainNumber(value, /*whole=*/false, number) || number > knob.max ||
        (number < knob.min && !(number == 0 && AlsoZero(knob)))) {
      return Refuse(shown_name, value, Allowed(knob));
    }
    config->** real = number;
  } else {
    const auto text = std::get<std::string Config::*>(knob.field);
    if (*knob.choices != 0) {
      const std::vector<std::string> choices = absl::StrSplit(knob.choices, '|');
      if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
        return Refuse(shown_name, value, Allowed(knob));
      }
    }
    config->*text = std::string(value);
  }
  return absl::OkStatus();
}

// Horovod's words for log levels, in ours.
std::string FromHorovod(const Knob& knob, const std::string& value) {
  if (absl::string_view(knob.name) != "log_level") return value;
  const std::string word = absl::AsciiStrToLower(value);
  if (word == "trace") return "debug";
  if (word == "warn") return "warning";
  if (word == "fatal") return "error";
  return word;
}

// Whether it is one of the variables that Kubernetes puts into every container of a namespace in
// which a service's name begins with "rueda". `rest`: without the prefix.
// https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
bool IsOfAService(absl::string_view rest, absl::string_view value) {
  const std::string name = absl::StrCat("_", rest, "_");
  const auto has = [&](absl::string_view words) { return absl::StrContains(name, words); };
  if (has("_SERVICE_HOST_") || has("_SERVICE_PORT_")) return true;
  if (absl::EndsWith(name, "_PORT_") && absl::StrContains(value, "://")) return true;
  return has("_PORT_") && (has("_TCP_") || has("_UDP_") || has("_SCTP_"));
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// `prefix` is what the name and all candidates begin with, and says nothing about nearness.
absl::Status Unknown(absl::string_view what, absl::string_view prefix, absl::string_view name,
                     absl::Span<const std::string> candidates) {
  const std::string nearest = Nearest(name, candidates);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown ", what, " ", prefix, name,
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", prefix, nearest, "?")));
}

}  // namespace

std::string Nearest(absl::string_view word, absl::Span<const std::string> candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 3 + 1;
  for (const std::string& candidate : candidates) {
    // At least as far away as their lengths are.
    const auto apart = std::abs(static_cast<int64_t>(word.size() - candidate.size()));
    if (apart >= best_distance) continue;
    const int distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

absl::Status SetKnob(absl::string_view name, absl::string_view value, Config* config) {
  const Knob* knob = Find(name);
  if (knob == nullptr) {
    std::vector<std::string> names;
    for (const Knob& each : kKnobs) names.emplace_back(each.name);
    return Unknown("knob", "", name, names);
  }
  return Set(*knob, name, value, config);
}

absl::Status ReadEnvironment(const Environment& environment, Config* config) {
  // Without the prefix.
  std::vector<std::string> known(std::begin(kScriptVariables), std::end(kScriptVariables));
  for (const Knob& knob : kKnobs) known.push_back(absl::AsciiStrToUpper(knob.name));
  for (const auto& [name, value] : environment) {
    if (value.empty()) continue;
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, kPrefix) &&
        std::find(known.begin(), known.end(), rest) == known.end() && !IsOfAService(rest, value)) {
      return Unknown("environment variable", kPrefix, rest, known);
    }
    if (name == kElastic && value != "0" && !environment.contains("RUEDA_ELASTIC_FD")) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", name,
                       ": elastic jobs are started by ruedarun --min-np N, and this one is not; "
                       "unset it"));
    }
  }
  const auto find = [&](const std::string& name) {  // "" is as if it were not set
    const auto it = environment.find(name);
    return it == environment.end() || it->second.empty() ? nullptr : &it->second;
  };
  for (const Knob& knob : kKnobs) {
    const std::string variable = VariableName(knob);
    if (const std::string* own = find(variable)) {
      RUEDA_RETURN_IF_ERROR(Set(knob, variable, *own, config));
    } else if (const std::string* alias = find(knob.alias)) {
      RUEDA_RETURN_IF_ERROR(Set(knob, knob.alias, FromHorovod(knob, *alias), config));
    }
  }
  return absl::OkStatus();
}

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string KnobText(absl::string_view name, const Config& config) {
  const Knob& knob = *Find(name);
  return std::visit([&](auto field) { return absl::StrCat(config.*field); }, knob.field);
}

std::vector<std::pair<std::string, std::string>> AgreedKnobs(const Config& config) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const Knob& knob : kKnobs) {
    if (knob.use == Use::kAgreed) agreed.emplace_back(knob.name, KnobText(knob.name, config));
  }
  return agreed;
}

namespace {

// Of a knob's value, for a reader: "a whole number from 1 to 100".
std::string TypeText(const Knob& knob) {
  const bool word = std::holds_alternative<std::string Config::*>(knob.field);
  if (!word) return Allowed(knob);
  if (*knob.choices == 0) return "text";
  return absl::StrCat("`", absl::StrReplaceAll(knob.choices, {{"|", "`, `"}}), "`");
}

void AppendKnobs(Use use, const Config& defaults, std::string* text) {
  absl::StrAppend(text, "| variable | type | default | also read as | meaning |\n",
                  "|---|---|---|---|---|\n");
  for (const Knob& knob : kKnobs) {
    if ((knob.use == Use::kSetUp) != (use == Use::kSetUp)) continue;
    const std::string value = KnobText(knob.name, defaults);
    const bool unset = value.empty() || (use == Use::kSetUp && value == "-1");
    absl::StrAppend(text, "| `", VariableName(knob), "` | ", TypeText(knob), " | ",
                    unset ? "not set" : absl::StrCat("`", value, "`"), " | ",
                    *knob.alias == 0 ? "" : absl::StrCat("`", knob.alias, "`"), " | ", knob.doc,
                    knob.use == Use::kAgreed ? " **Agreed.**" : "", " |\n");
  }
}

}  // namespace

std::string KnobsMarkdown() {
  std::string text = R"(# Knobs

<!-- Written by rueda_knobs from the table in core/config/config.cc; a test compares. -->

A setting has one name everywhere: `RUEDA_FUSION_THRESHOLD` in the environment is `fusion_threshold`
in the list that `rueda_init` and `rueda::init` take. `rueda::init` reads the environment;
`rueda_init` does when it is given `RUEDA_INIT_READ_ENVIRONMENT`. The program's own list wins over
the environment, and a `RUEDA_` variable over Horovod's name for the same setting.

All are read once, by init. An empty variable is as if it were not set. A value that is out of range
or not among the words listed, and a name that does not exist, make init fail with
`RUEDA_INVALID_ARGUMENT`; the message names the setting, what was given, what is allowed, and for an
unknown name the nearest known one.

## Settings

**Agreed** ones must be the same on all ranks: init compares them and fails on every rank if they
differ. The others may differ.

)";
  const Config defaults;
  AppendKnobs(Use::kKnob, defaults, &text);
  absl::StrAppend(&text, R"(
## Set-up

Who this process is. `ruedarun` sets these; set them yourself only to start ranks without it.

)");
  AppendKnobs(Use::kSetUp, defaults, &text);
  absl::StrAppend(&text, R"(
## Ignored and refused

Settings of Horovod's that tune a feature which does not exist here change nothing:

| variable | why |
|---|---|
)");
  for (const Ignored& ignored : kIgnored) {
    absl::StrAppend(&text, "| `", ignored.name, "` | ", ignored.why, " |\n");
  }
  absl::StrAppend(&text, "\n`", kElastic, R"(`, unless it is 0 or `ruedarun` has set it, makes init
fail: [elastic jobs](../guides/elastic.md) are started by `ruedarun`. By `HOROVOD_RANK`, `HOROVOD_SIZE`, `HOROVOD_LOCAL_SIZE`, `HOROVOD_GLOO_RENDEZVOUS_ADDR`
and `HOROVOD_GLOO_RENDEZVOUS_PORT` a rank that `horovodrun` started finds its place. Other
`HOROVOD_` variables, such as build options, are left alone, as are those that Kubernetes sets for a
service whose name begins with `rueda`. Any other `RUEDA_` variable is rejected as a typo, except
those that only the scripts read: )");
  std::vector<std::string> scripts;
  for (const char* name : kScriptVariables)
    scripts.push_back(absl::StrCat("`", kPrefix, name, "`"));
  absl::StrAppend(&text, absl::StrJoin(scripts, ", "), ".\n");
  return text;
}

}  // namespace rueda
