#include "controller/rendezvous/host_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace rueda {

absl::StatusOr<std::string> HostIdentity() {
  std::string boot_id = "unknown-boot";
  const UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (file.valid()) {
    char text[64];
    const ssize_t bytes = read(file.get(), text, sizeof text);
    if (bytes > 0) boot_id.assign(text, static_cast<size_t>(bytes));
    boot_id = std::string(absl::StripAsciiWhitespace(boot_id));
  } else if (errno != ENOENT && errno != EACCES) {  // neighbours would take this for another host
    return ErrnoStatus(errno, "reading which boot of the host this is");
  }
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  return absl::StrCat(boot_id, "/", network.st_ino, "/", geteuid());
}

std::string MachineOf(const std::string& host_identity) {
  return host_identity.substr(0, host_identity.find('/'));
}

uint64_t PidNamespace() {
  struct stat pids = {};
  return stat("/proc/self/ns/pid", &pids) == 0 ? pids.st_ino : 0;
}

std::string HostName() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace rueda
