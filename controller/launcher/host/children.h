// A process's own children as the kernel sees them, and ending those that nobody else will end.
// For processes that adopt orphans (PR_SET_CHILD_SUBREAPER): daemons of a rank end up here.
// One thread; SIGCHLD is blocked.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "core/base/clock.h"

namespace rueda {

// The children of this process, dead ones that were not collected included. Their numbers stay
// theirs until they are collected.
std::vector<pid_t> ChildrenOfThis();

// Sends `signal`, once, to each of `children`, none of which this process has collected yet; to the
// whole process group of one that leads it or of which `is_group_of_ours` says that it is a rank's.
void SignalChildren(const std::vector<pid_t>& children, int signal,
                    const std::function<bool(pid_t)>& is_group_of_ours);

// Kills and collects every descendant but `spared` children; calls `collected` for each child.
// Returns at `deadline` at the latest. For a launcher whose supervisor process has died.
void KillDescendants(const std::vector<pid_t>& spared,
                     const std::function<bool(pid_t)>& is_group_of_ours, Nanos deadline,
                     const std::function<void(pid_t, int wait_status)>& collected);

}  // namespace rueda
