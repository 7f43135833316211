#include "controller/rendezvous/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace rueda {

std::string HostIdentity() {
  std::string boot_id = "unknown-boot";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  return absl::StrCat(boot_id, "/", network.st_ino, "/", geteuid());
}

std::string HostName() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace rueda
