// Facts about processes: how one ended, how many cores this one may use.
#pragma once

#include <string>

namespace rueda {

// How a process ended, from waitpid's status: "exited with status 3", "killed by signal 9
// (SIGKILL)".
std::string WaitStatusText(int status);

// "SIGTERM", or "signal 64" where there is no name.
std::string SignalName(int signal);

// Cores that this process may use: its affinity, cut down to its cgroup's quota.
int UsableCores();

}  // namespace rueda
