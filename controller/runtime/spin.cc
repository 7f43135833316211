#include "controller/runtime/spin.h"

#include "core/base/process.h"

namespace rueda {
namespace {

constexpr int kPauses = 400;
constexpr int kYields = 100;
constexpr int kPausesWhenAsked = 1 << 20;

}  // namespace

Spin::Spin(absl::string_view kind, int local_ranks, int (*yield)()) : yield_(yield) {
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
