// The process manager of an MPI library that started this process (PMI: J. Balaji and others, "PMI:
// A Scalable Parallel Process-Management Interface for Extreme-Scale Systems", 2010).
#pragma once

#include <string>

#include "core/base/status.h"

namespace rueda {

// A name for the job, the same on all ranks of this host: that of the process which made the socket
// `fd` (PMI_FD) for this one. Nothing is read from the socket; the MPI library may use it.
// FAILED_PRECONDITION: it is no unix socket, as when a program between the two has closed it.
absl::StatusOr<std::string> JobOfProcessManager(int fd);

}  // namespace rueda
