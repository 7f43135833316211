// Time as the state machines see it: nanoseconds of a monotonic clock, sampled once a turn and
// passed in. The simulator passes virtual time instead.
#pragma once

#include <cstdint>

namespace rueda {

using Nanos = int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Nanos kForever = INT64_MAX;

// CLOCK_MONOTONIC.
Nanos MonotonicNow();

// a + b for a deadline, saturating at kForever.
inline Nanos DeadlineAfter(Nanos now, Nanos duration) {
  Nanos sum;
  return __builtin_add_overflow(now, duration, &sum) ? kForever : sum;
}

}  // namespace rueda
