#include "core/base/clock.h"

#include <time.h>

namespace rueda {

Nanos MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

void SleepFor(Nanos duration) {
  const timespec time = {duration / kSecond, duration % kSecond};
  nanosleep(&time, nullptr);
}

}  // namespace rueda
