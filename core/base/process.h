// Facts about processes: how one ended, whose child it is, how many cores this one may use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace rueda {

// How a process ended, from waitpid's status: "exited with status 3", "killed by signal 9
// (SIGKILL)".
std::string WaitStatusText(int status);

// The state letter of a process: 'R', 'S', 'T' (stopped), 't' (by a debugger), 'Z' and so on; 0:
// there is none, or it can't be seen.
char ProcessState(int pid);
// By a signal; 't' is somebody's intention.
inline constexpr char kStoppedBySignal = 'T';
// A descriptor that polls readable once process `pid` has ended; invalid, with errno, on failure.
UniqueFd OpenPidfd(int pid);
// Whether a process has ended, with all its threads: it runs and writes nothing any more. Its
// parent may not have reaped it yet. False where that can't be seen.
bool HasEnded(int pid);
// How a process has ended, as waitpid tells its parent, which has not asked yet; nothing once it
// has, while the process runs, or where that can't be seen.
std::optional<int> WaitStatusUntilReaped(int pid);
// How a process will have ended that is about to, by a signal or with a status other than 0: none
// of its threads runs any more. Others hear of its end only when the kernel has freed its memory,
// which takes a tenth of a second for a GiB or two. Nothing while it runs, or where that can't be
// seen.
std::optional<int> WaitStatusOfDying(int pid);
// Whether a debugger, or strace, has hold of this process; false where that can't be seen.
bool IsTraced();
// Whose child it is; -1: there is none, or it can't be seen.
int ParentOf(int pid);

// Lets this process open `count` descriptors more than half of what it may now, and than 64, up to
// the hard limit. Nothing happens when half is enough. Returns how many it may have open then.
size_t MakeRoomForDescriptors(size_t count);

// "SIGTERM", or "signal 64" where there is no name.
std::string SignalName(int signal);

// The cores that this process may run on: its affinity.
std::vector<int> AllowedCores();
// How many of them it may use: cut down to its cgroup's quota. At least 1.
int UsableCores();

}  // namespace rueda
