// What ruedarun was started with that it changes for itself, and not for the ranks.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

struct Inheritance {
  rlimit open_files = {};
  bool ignores_hangup = false;
  UniqueFd signals;  // a signalfd of those to take
};

// Signals from here on wait until somebody reads them. Those that a shell made us ignore (nohup; in
// the background of a script) stay ignored. SIGCHLD is blocked, SIGPIPE and SIGXFSZ are ignored,
// and as many files may be opened as the system lets. FAILED_PRECONDITION: the system refuses calls
// that ranks can't be watched without.
absl::StatusOr<Inheritance> TakeOver();

// The next that has come by such a signalfd; 0: none.
int NextSignal(int signals);

}  // namespace rueda
