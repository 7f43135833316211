#include "controller/rendezvous/detect/pmi.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace rueda {

absl::StatusOr<std::string> JobOfProcessManager(int fd) {
  ucred maker = {};  // of both ends of a socketpair it is who made them
  socklen_t size = sizeof maker;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0 || maker.pid <= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("PMI_FD=", fd,
                     " is not the process manager's socket, after which the job is named: set "
                     "RUEDA_JOB_ID to one word for all ranks that no other job has"));
  }
  struct stat processes = {};  // whose numbers are others in another container
  stat("/proc/self/ns/pid", &processes);
  return absl::StrCat("PMI/", processes.st_ino, "/", maker.pid);
}

}  // namespace rueda
