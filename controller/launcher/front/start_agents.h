// Brings a job on several hosts to its start: an agent on each, all with their orders, and none
// running its ranks before every one can.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "controller/launcher/decide/options.h"
#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/decide/starter.h"
#include "controller/launcher/front/remote_ranks.h"
#include "core/base/clock.h"

namespace rueda {

struct AgentsArgs {
  std::vector<JobHost> hosts;  // that of rank 0 first
  Starter starter;
  std::string agent;    // the path of ruedarun, the same on all hosts
  launch::Order order;  // what is the same for all hosts
  std::string network_interface;
  double timeout_seconds = 60;
  int signal_fd = -1;  // a signalfd; those that end a job end this too
};

struct StartedAgents {
  std::vector<std::unique_ptr<RemoteRanks>> hosts;  // when all is well
  // Else: a line for each host that is not, and what to exit with. Nothing is left then.
  std::vector<std::string> failures;
  int exit_code = 0;
};

StartedAgents StartAgents(const AgentsArgs& args, Output* output);

}  // namespace rueda
