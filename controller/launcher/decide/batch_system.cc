// PURE
#include "controller/launcher/decide/batch_system.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controller/rendezvous/detect/slurm_lists.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

using Hosts = std::vector<HostSlots>;

constexpr char kOrName[] = "; or name the hosts yourself, with -H";

std::string Text(const Environment& environment, const char* variable) {
  const auto it = environment.find(variable);
  return it == environment.end() ? "" : it->second;
}

bool IsSet(const Environment& environment, const char* variable) {
  return !Text(environment, variable).empty();
}

absl::Status Unset(absl::string_view variable, absl::string_view source) {
  return absl::FailedPreconditionError(
      absl::StrCat(variable, ", which tells the hosts of ", source, ", is not set", kOrName));
}

// "NAME=value", or as much of it as a message should have.
std::string Named(absl::string_view variable, absl::string_view value) {
  constexpr size_t kShown = 100;
  return absl::StrCat(variable, "=", value.substr(0, kShown), value.size() > kShown ? "..." : "");
}

// Short names, each with the full name that it stands for: the only one of the list that begins
// with it.
class FullNames {
 public:
  explicit FullNames(const Hosts& hosts) {
    for (const HostSlots& host : hosts) {
      const std::string label = host.name.substr(0, host.name.find('.'));
      if (label.size() == host.name.size() || IsNumber(label)) continue;
      const auto [it, added] = full_of_.emplace(label, host.name);
      if (!added && it->second != host.name) it->second.clear();
    }
  }
  const std::string& Of(const std::string& name) const {
    const auto it = full_of_.find(name);
    return it == full_of_.end() || it->second.empty() ? name : it->second;
  }

 private:
  // "10" is no short name of 10.0.0.1.
  static bool IsNumber(absl::string_view label) {
    return std::all_of(label.begin(), label.end(), absl::ascii_isdigit);
  }

  std::map<std::string, std::string> full_of_;  // "": of several
};

// Each host once, as it is called where it comes first, with the slots of all its places.
// `place`: what the i-th is called in an error.
absl::StatusOr<Hosts> Merge(const Hosts& listed, const std::function<std::string(size_t)>& place) {
  const FullNames full_names(listed);
  std::map<std::string, size_t> index_of;
  Hosts hosts;
  int64_t slots = 0;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (const absl::Status status = CheckHostName(listed[i].name, listed[i].name); !status.ok()) {
      return StatusAt(place(i), status);
    }
    const auto [it, added] = index_of.emplace(full_names.Of(listed[i].name), hosts.size());
    if (added) hosts.push_back({listed[i].name, 0});
    HostSlots& host = hosts[it->second];
    slots += listed[i].slots;
    if (listed[i].slots > kLocalRanksMax - host.slots || slots > kRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat(place(i), ": more than ", kLocalRanksMax,
                                                     " slots of one host, or ", kRanksMax,
                                                     " of all"));
    }
    host.slots += listed[i].slots;
  }
  return hosts;
}

// A line of a file of hosts: appends what it names, a slot each time.
using HostsLine = std::function<absl::Status(absl::string_view line, Hosts* hosts)>;

absl::Status OneHost(absl::string_view line, Hosts* hosts) {
  hosts->push_back({std::string(line), 1});
  return absl::OkStatus();
}

// A host as often as it has slots.
absl::StatusOr<Hosts> ReadHostsFile(const Environment& environment, const char* variable,
                                    const FileReader& read_file, const HostsLine& read = OneHost) {
  const std::string path = Text(environment, variable);
  const std::string where = Named(variable, path);
  const absl::StatusOr<std::string> text = read_file(path);
  if (!text.ok()) return StatusAt(where, text.status());
  if (text->size() > kHostsFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": the file has more than ", kHostsFileBytesMax, " bytes"));
  }
  Hosts listed;
  std::vector<size_t> numbers;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (stripped.empty()) continue;
    const auto place = [&] { return absl::StrCat(where, ", line ", number); };
    if (const absl::Status status = read(stripped, &listed); !status.ok()) {
      return StatusAt(place(), status);
    }
    if (listed.size() > kRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat(place(), ": more than ", kRanksMax, " slots"));
    }
    numbers.resize(listed.size(), number);
  }
  if (listed.empty()) return absl::InvalidArgumentError(where + ": the file names no host");
  return Merge(listed, [&](size_t i) { return absl::StrCat(where, ", line ", numbers[i]); });
}

// SLURM ---------------------------------------------------------------------------------------

// A list of what SLURM tells of each of `nodes`.
absl::StatusOr<std::vector<int>> SlurmSlots(const Environment& environment, size_t nodes) {
  const bool tasks_asked =
      IsSet(environment, "SLURM_NTASKS") || IsSet(environment, "SLURM_NTASKS_PER_NODE");
  if (!tasks_asked) return std::vector<int>(nodes, 1);
  if (const std::string list = Text(environment, "SLURM_TASKS_PER_NODE"); !list.empty()) {
    const std::string where = Named("SLURM_TASKS_PER_NODE", list);
    absl::StatusOr<std::vector<int>> slots = ExpandSlurmCounts(list);
    if (!slots.ok()) return StatusAt(where, slots.status());
    if (slots->size() == nodes) return slots;
    return absl::InvalidArgumentError(absl::StrCat(
        where, " counts the tasks of ", slots->size(), " nodes, ",
        Named("SLURM_JOB_NODELIST", Text(environment, "SLURM_JOB_NODELIST")), " names ", nodes,
        IsSet(environment, "SLURM_STEP_ID")
            ? ": this is a step of srun, which has not all of the job"
            : "",
        kOrName));
  }
  const std::string text = Text(environment, "SLURM_NTASKS_PER_NODE");
  if (text.empty()) return Unset("SLURM_TASKS_PER_NODE", "a SLURM job of several tasks");
  int tasks = 0;
  if (!absl::SimpleAtoi(text, &tasks) || tasks < 1 || tasks > kLocalRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SLURM_NTASKS_PER_NODE=", text, ": expected a number from 1 to ", kLocalRanksMax));
  }
  return std::vector<int>(nodes, tasks);
}

// The pieces of a list that lie between its commas; those in brackets are a piece's own.
std::vector<absl::string_view> SplitOutsideBrackets(absl::string_view list) {
  std::vector<absl::string_view> pieces;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      pieces.push_back(absl::StripAsciiWhitespace(list.substr(begin, i - begin)));
      begin = i + 1;
    } else {
      depth += list[i] == '[' ? 1 : list[i] == ']' ? -1 : 0;
    }
  }
  return pieces;
}

// A line of SLURM_HOSTFILE: a list of nodes, some with "*3" behind them where three tasks go to
// each, and '#' before what nobody reads. One of `nodes` each.
absl::Status ReadSlurmHosts(const std::vector<std::string>& nodes, absl::string_view line,
                            Hosts* hosts) {
  line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
  if (line.empty()) return absl::OkStatus();
  for (absl::string_view piece : SplitOutsideBrackets(line)) {
    int slots = 1;
    if (const size_t star = piece.rfind('*'); star != absl::string_view::npos) {
      const absl::string_view count = piece.substr(star + 1);
      if (!absl::SimpleAtoi(count, &slots) || slots < 1 || slots > kLocalRanksMax) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", piece, "': expected a number from 1 to ", kLocalRanksMax, " behind the '*'"));
      }
      piece = piece.substr(0, star);
    }
    RUEDA_ASSIGN_OR_RETURN(const std::vector<std::string> named, ExpandSlurmNodes(piece));
    for (const std::string& name : named) {
      if (std::find(nodes.begin(), nodes.end(), name) == nodes.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " is no node of this job; SLURM_JOB_NODELIST tells those"));
      }
      hosts->push_back({name, slots});
    }
  }
  return absl::OkStatus();
}

// `srun ruedarun` starts it as often as the step has tasks. A shell that srun or salloc opened is a
// step of one.
absl::Status CheckAlone(const Environment& environment) {
  const std::string tasks = Text(environment, "SLURM_STEP_NUM_TASKS");
  int count = 0;
  if (!IsSet(environment, "SLURM_STEP_ID") || !absl::SimpleAtoi(tasks, &count) || count <= 1) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("SLURM_STEP_NUM_TASKS=", tasks, ": srun has started this ", tasks,
                   " times, and each would start the whole job; run it without srun", kOrName));
}

absl::StatusOr<std::optional<Allocation>> FromSlurm(const Environment& environment,
                                                    const FileReader& read_file) {
  const std::string job = Text(environment, "SLURM_JOB_ID");
  if (job.empty()) return std::nullopt;
  Allocation allocation{absl::StrCat("SLURM job ", job), {}, Starter::Kind::kSrun};
  RUEDA_RETURN_IF_ERROR(CheckAlone(environment));
  const std::string list = Text(environment, "SLURM_JOB_NODELIST");
  if (list.empty()) return Unset("SLURM_JOB_NODELIST", allocation.source);
  const std::string where = Named("SLURM_JOB_NODELIST", list);
  const absl::StatusOr<std::vector<std::string>> nodes = ExpandSlurmNodes(list);
  if (!nodes.ok()) return StatusAt(where, nodes.status());
  if (IsSet(environment, "SLURM_HOSTFILE")) {
    RUEDA_ASSIGN_OR_RETURN(allocation.hosts,
                           ReadHostsFile(environment, "SLURM_HOSTFILE", read_file,
                                         [&](absl::string_view line, Hosts* hosts) {
                                           return ReadSlurmHosts(*nodes, line, hosts);
                                         }));
    return allocation;
  }
  RUEDA_ASSIGN_OR_RETURN(const std::vector<int> slots, SlurmSlots(environment, nodes->size()));
  Hosts listed;
  for (size_t i = 0; i < slots.size(); ++i) listed.push_back({(*nodes)[i], slots[i]});
  RUEDA_ASSIGN_OR_RETURN(allocation.hosts, Merge(listed, [&](size_t i) {
                           return absl::StrCat(where, ", node ", i + 1);
                         }));
  return allocation;
}

// LSF -----------------------------------------------------------------------------------------

std::vector<std::string> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
}

// "a 4 b 4"
absl::StatusOr<Hosts> ReadHostsAndSlots(const std::string& text) {
  const std::vector<std::string> words = Words(text);
  const std::string where = Named("LSB_MCPU_HOSTS", text);
  Hosts listed;
  for (size_t i = 0; i < words.size(); i += 2) {
    HostSlots host{words[i], 0};
    if (i + 1 == words.size() || !absl::SimpleAtoi(words[i + 1], &host.slots) || host.slots < 1 ||
        host.slots > kLocalRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat(where, ", word ", i + 2,
                                                     ": expected the number of slots of ", words[i],
                                                     ", from 1 to ", kLocalRanksMax));
    }
    listed.push_back(host);
  }
  if (listed.empty()) return absl::InvalidArgumentError(where + ": it names no host");
  return Merge(listed, [&](size_t i) { return absl::StrCat(where, ", word ", 2 * i + 1); });
}

// "a a b b"
absl::StatusOr<Hosts> ReadRepeatedHosts(const std::string& text) {
  const std::string where = Named("LSB_HOSTS", text);
  Hosts listed;
  for (const std::string& word : Words(text)) listed.push_back({word, 1});
  if (listed.empty()) return absl::InvalidArgumentError(where + ": it names no host");
  return Merge(listed, [&](size_t i) { return absl::StrCat(where, ", word ", i + 1); });
}

absl::StatusOr<Hosts> LsfHosts(const Environment& environment, const FileReader& read_file) {
  for (const char* const variable : {"LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE"}) {
    if (IsSet(environment, variable)) return ReadHostsFile(environment, variable, read_file);
  }
  if (IsSet(environment, "LSB_MCPU_HOSTS")) {
    return ReadHostsAndSlots(Text(environment, "LSB_MCPU_HOSTS"));
  }
  if (IsSet(environment, "LSB_HOSTS")) return ReadRepeatedHosts(Text(environment, "LSB_HOSTS"));
  return Unset("LSB_MCPU_HOSTS", "LSF job " + Text(environment, "LSB_JOBID"));
}

absl::StatusOr<std::optional<Allocation>> FromLsf(const Environment& environment,
                                                  const FileReader& read_file) {
  const std::string job = Text(environment, "LSB_JOBID");
  if (job.empty()) return std::nullopt;
  Allocation allocation{absl::StrCat("LSF job ", job), {}, Starter::Kind::kBlaunch};
  RUEDA_ASSIGN_OR_RETURN(allocation.hosts, LsfHosts(environment, read_file));
  if (IsSet(environment, "CSM_ALLOCATION_ID")) {
    // LSF has no daemons on the compute nodes of such a cluster, which blaunch would need.
    allocation.starter = Starter::Kind::kSsh;
    if (allocation.hosts.size() > 1 && allocation.hosts[0].slots == 1) {
      allocation.hosts.erase(allocation.hosts.begin());
    }
  }
  return allocation;
}

// PBS -----------------------------------------------------------------------------------------

absl::StatusOr<std::optional<Allocation>> FromPbs(const Environment& environment,
                                                  const FileReader& read_file) {
  const std::string job = Text(environment, "PBS_JOBID");
  if (job.empty()) return std::nullopt;
  Allocation allocation{absl::StrCat("PBS job ", job), {}, Starter::Kind::kSsh};
  if (!IsSet(environment, "PBS_NODEFILE")) return Unset("PBS_NODEFILE", allocation.source);
  RUEDA_ASSIGN_OR_RETURN(allocation.hosts, ReadHostsFile(environment, "PBS_NODEFILE", read_file));
  return allocation;
}

}  // namespace

absl::StatusOr<std::optional<Allocation>> FindAllocation(const Environment& environment,
                                                         const FileReader& read_file) {
  // SLURM can set PBS's variables too, for scripts that were written for it.
  for (const auto& find : {FromSlurm, FromLsf, FromPbs}) {
    RUEDA_ASSIGN_OR_RETURN(std::optional<Allocation> found, find(environment, read_file));
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

}  // namespace rueda
