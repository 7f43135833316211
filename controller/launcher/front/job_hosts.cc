#include "controller/launcher/front/job_hosts.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "controller/launcher/decide/batch_system.h"
#include "controller/launcher/host/job.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

absl::StatusOr<std::vector<HostSlots>> HostsOfOptions(const LaunchOptions& options) {
  if (options.hostfile.empty()) return options.hosts;
  RUEDA_ASSIGN_OR_RETURN(const std::string text, ReadText(options.hostfile));
  absl::StatusOr<std::vector<HostSlots>> hosts = ParseHostfile(text);
  if (!hosts.ok()) return StatusAt(options.hostfile, hosts.status());
  return hosts;
}

// Names of this host are one host; its place is that of the first.
std::vector<JobHost> Merge(const std::vector<HostSlots>& hosts) {
  std::vector<JobHost> merged;
  for (const HostSlots& host : hosts) {
    // A name that nobody knows here may still be one of the user's for ssh.
    const bool here = IsThisHost(host.name).value_or(false);
    const auto same = std::find_if(merged.begin(), merged.end(),
                                   [&](const JobHost& each) { return here && each.is_here; });
    if (same == merged.end()) {
      merged.push_back({host.name, here, {1, 0, host.slots}});
    } else {
      same->share.ranks += host.slots;
    }
  }
  return merged;
}

void Number(int size, std::vector<JobHost>* hosts) {
  Rank first = 0;
  for (size_t i = 0; i < hosts->size(); ++i) {
    HostShare& share = (*hosts)[i].share;
    share = {size, first, share.ranks, static_cast<int>(i), static_cast<int>(hosts->size())};
    first += share.ranks;
  }
}

// The hosts of `given` that `options->ranks` ranks go to.
absl::StatusOr<std::vector<JobHost>> Fill(const std::vector<HostSlots>& given,
                                          LaunchOptions* options) {
  if (options->ranks == 0) {
    for (const HostSlots& host : given) options->ranks += host.slots;
  }
  RUEDA_ASSIGN_OR_RETURN(const std::vector<HostSlots> used, FillHosts(given, options->ranks));
  std::vector<JobHost> hosts = Merge(used);
  Number(options->ranks, &hosts);
  return hosts;
}

// What the batch system has given, if there is one.
absl::StatusOr<JobHosts> FromAllocation(const Environment& environment, LaunchOptions* options) {
  RUEDA_ASSIGN_OR_RETURN(const std::optional<Allocation> allocation,
                         FindAllocation(environment, ReadText));
  if (!allocation.has_value()) {
    if (options->ranks > 0) return JobHosts();
    return absl::InvalidArgumentError("how many ranks? -np N is missing\nTry ruedarun --help");
  }
  // On one host more ranks than slots are the user's own business.
  const std::vector<JobHost> all = Merge(allocation->hosts);
  if (all.size() == 1 && all[0].is_here && options->ranks > 0) return JobHosts();
  absl::StatusOr<std::vector<JobHost>> hosts = Fill(allocation->hosts, options);
  if (!hosts.ok()) return StatusAt(allocation->source, hosts.status());
  return JobHosts{*std::move(hosts), allocation->starter};
}

}  // namespace

absl::StatusOr<JobHosts> FindJobHosts(const Environment& environment, LaunchOptions* options) {
  const bool named = !options->hosts.empty() || !options->hostfile.empty();
  JobHosts found;
  if (named) {
    RUEDA_ASSIGN_OR_RETURN(const std::vector<HostSlots> given, HostsOfOptions(*options));
    RUEDA_ASSIGN_OR_RETURN(found.hosts, Fill(given, options));
  } else {
    RUEDA_ASSIGN_OR_RETURN(found, FromAllocation(environment, options));
  }
  if (options->ssh_port > 0 || !options->ssh_identity_file.empty()) {
    found.starter = Starter::Kind::kSsh;
  }
  if (found.all_here() && options->ranks > kLocalRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat("option -np ", options->ranks,
                                                   ": one host takes up to ", kLocalRanksMax,
                                                   " ranks; name more hosts with -H"));
  }
  if (!options->remote_shell.empty()) found.starter = Starter::Kind::kShell;
  return found;
}

}  // namespace rueda
