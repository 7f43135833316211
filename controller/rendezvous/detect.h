// Where this process stands in a job, from its settings and environment. PURE
#pragma once

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

struct Place {
  Rank rank = 0;
  int size = 1;
};

// The settings' rank and size, when they are there; else a world of one. INVALID_ARGUMENT when they
// are incomplete or contradict each other. FAILED_PRECONDITION, naming the variable, when another
// launcher's variables say that it started more than one rank: those are not read yet, and training
// `n` times alone would be a silent mistake.
absl::StatusOr<Place> DetectPlace(const Config& config, const Environment& environment);

}  // namespace rueda
