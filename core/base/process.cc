#include "core/base/process.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Whole cores of the cgroup's quota, rounded up; a large number when there is none.
int QuotaCores() {
  constexpr int kNoQuota = 1 << 20;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) {
    return std::max(1, static_cast<int>(std::stod(quota) / period + 0.999));
  }
  double v1_quota = 0, v1_period = 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> v1_quota && period_file >> v1_period && v1_quota > 0 && v1_period > 0) {
    return std::max(1, static_cast<int>(v1_quota / v1_period + 0.999));
  }
  return kNoQuota;
}

}  // namespace

std::string WaitStatusText(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const char* name = sigabbrev_np(signal);
    return absl::StrCat("killed by signal ", signal,
                        name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(affinity, QuotaCores()));
}

}  // namespace rueda
