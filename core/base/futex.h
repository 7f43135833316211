// Sleeping on a 32-bit word of this process, with a deadline. std::atomic::wait has none.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/clock.h"

namespace rueda {

// Sleeps while `word` holds `expected`, at most until `deadline` (MonotonicNow's clock; kForever:
// no limit). May return early for no reason, as futexes do.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Nanos deadline);
void FutexWakeAll(const std::atomic<uint32_t>& word);

}  // namespace rueda
