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
// Blocks; for a start, where there is nothing to wait on.
void SleepFor(Nanos duration);

// a + b for a deadline, saturating at kForever.
inline Nanos DeadlineAfter(Nanos now, Nanos duration) {
  Nanos sum;
  return __builtin_add_overflow(now, duration, &sum) ? kForever : sum;
}

// What poll and epoll_wait take to wait for so long: no shorter, at most a quarter of an hour (the
// caller looks again then), and -1 for kForever.
inline int PollTimeoutMs(Nanos left) {
  if (left == kForever) return -1;
  constexpr Nanos kMost = 900 * kSecond;
  const Nanos bounded = left < 0 ? 0 : left < kMost ? left : kMost;
  return static_cast<int>((bounded + kMillisecond - 1) / kMillisecond);
}

}  // namespace rueda
