#include "controller/runtime/spin.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace rueda {
namespace {

constexpr int kPauses = 400;
constexpr int kYields = 100;
constexpr int kPausesWhenAsked = 1 << 20;

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

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(affinity, QuotaCores()));
}

Spin::Spin(absl::string_view kind, int local_ranks) {
  if (kind == "sleep") return;
  if (kind == "spin") {
    limit_ = kPausesWhenAsked;
  } else if (kind == "yield" || UsableCores() < local_ranks) {
    yields_ = true;
    limit_ = kYields;
  } else {
    limit_ = kPauses;
  }
}

}  // namespace rueda
