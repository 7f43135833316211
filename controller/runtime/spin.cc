#include "controller/runtime/spin.h"

#include <unistd.h>

#include "core/base/process.h"

namespace rueda {
namespace {

constexpr int kPauses = 400;
constexpr int kYields = 100;
constexpr int kPausesWhenAsked = 1 << 20;

}  // namespace

bool SharesCores(int local_ranks, int machine_ranks) {
  return UsableCores() < local_ranks || sysconf(_SC_NPROCESSORS_ONLN) < machine_ranks;
}

Spin::Spin(absl::string_view kind, bool shares_cores, int (*yield)()) : yield_(yield) {
  if (kind == "sleep") return;
  if (kind == "spin") {
    limit_ = kPausesWhenAsked;
  } else if (kind == "yield" || shares_cores) {
    yields_ = true;
    limit_ = kYields;
  } else {
    limit_ = kPauses;
  }
}

}  // namespace rueda
