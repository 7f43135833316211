// How long a phase of an operation takes: see PhaseTimes.
#pragma once

#include "core/base/clock.h"

namespace rueda {

// Calls fn() and, if `timed`, adds how long that took.
template <typename Fn>
void Timed(bool timed, Nanos* sum, Fn fn) {
  if (!timed) return fn();
  const Nanos begin = MonotonicNow();
  fn();
  *sum += MonotonicNow() - begin;
}

}  // namespace rueda
