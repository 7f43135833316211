// Where the ranks of a job are to run: what the options say, or else the batch system.
#pragma once

#include <string>
#include <vector>

#include "controller/launcher/decide/options.h"
#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/decide/starter.h"
#include "core/base/status.h"

namespace rueda {

struct JobHosts {
  std::vector<JobHost> hosts;  // numbered; none: this one
  Starter::Kind starter = Starter::Kind::kSsh;

  bool all_here() const { return hosts.empty() || (hosts.size() == 1 && hosts[0].is_here); }
};

// Reads files and asks name servers. Sets how many ranks there are if `options` doesn't.
// INVALID_ARGUMENT and so on, with the text for the user.
absl::StatusOr<JobHosts> FindJobHosts(const Environment& environment, LaunchOptions* options);

}  // namespace rueda
