#include "core/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace rueda {

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Nanos deadline) {
  timespec until{deadline / kSecond, deadline % kSecond};
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC.
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word),
          FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, deadline == kForever ? nullptr : &until,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG,
          INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rueda
