// From its settings and what launchers say, how this process meets the others of its job.
#pragma once

#include <memory>
#include <string>

#include "controller/rendezvous/bootstrap.h"

namespace rueda {

// Sets the rank, the size, the job and its secret in `args`, which has the configuration and the
// membership already. `context`: by whose name contexts of one job are told apart.
// FAILED_PRECONDITION: the ranks are on several hosts, and there is no way to meet.
absl::StatusOr<std::unique_ptr<Meeting>> MeetingOf(const Environment& environment,
                                                   const std::string& context, BootstrapArgs* args);

}  // namespace rueda
