// A bounded ring between any number of threads that push and one that pops. Nothing in it waits: a
// push without room says so, and a thread that is interrupted in the middle of one holds up the
// reader only.
//
// Owned by a Timeline.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

#include "core/base/check.h"

namespace rueda {

template <typename T>
class TimelineRing {
 public:
  explicit TimelineRing(uint32_t capacity)  // a power of two
      : capacity_(capacity),
        lap_shift_(std::countr_zero(capacity)),
        slots_(new T[capacity]()),  // touched here, so that no push meets a page fault
        laps_(new std::atomic<uint32_t>[capacity]()) {
    RUEDA_CHECK(std::has_single_bit(capacity));
  }

  // Any thread: calls fill(i, slot) for `count` slots that are read one after another, and
  // publishes them. False, and nothing was done, when there is no room for all.
  template <typename Fill>
  bool Push(uint32_t count, Fill fill) {
    uint64_t begin = tail_.load(std::memory_order_relaxed);
    do {
      // Signed: others may have pushed, and the reader popped, past the tail that was read.
      const auto used = static_cast<int64_t>(begin + count - head_.load(std::memory_order_acquire));
      if (used > static_cast<int64_t>(capacity_)) return false;
    } while (!tail_.compare_exchange_weak(begin, begin + count, std::memory_order_relaxed,
                                          std::memory_order_relaxed));
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t at = begin + i;
      fill(i, slots_[at & (capacity_ - 1)]);
      laps_[at & (capacity_ - 1)].store(LapOf(at), std::memory_order_release);
    }
    return true;
  }

  // The reader: calls take(slot) for what is there, at most `count_max` of them. Returns how many.
  template <typename Take>
  uint32_t Pop(uint32_t count_max, Take take) {
    const uint64_t begin = head_.load(std::memory_order_relaxed);
    uint64_t at = begin;
    while (at - begin < count_max &&
           laps_[at & (capacity_ - 1)].load(std::memory_order_acquire) == LapOf(at)) {
      take(slots_[at & (capacity_ - 1)]);
      ++at;
    }
    head_.store(at, std::memory_order_release);
    return static_cast<uint32_t>(at - begin);
  }

  // Slots in use, those being filled among them. Any thread; of the past as soon as it is known.
  uint32_t used() const {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    return tail > head ? static_cast<uint32_t>(tail - head) : 0;
  }
  uint32_t capacity() const { return capacity_; }

 private:
  // What a slot's lap says once its position is published. Never what it said the lap before.
  uint32_t LapOf(uint64_t at) const { return static_cast<uint32_t>(at >> lap_shift_) + 1; }

  const uint32_t capacity_;
  const int lap_shift_;
  const std::unique_ptr<T[]> slots_;
  const std::unique_ptr<std::atomic<uint32_t>[]> laps_;  // by slot
  alignas(64) std::atomic<uint64_t> tail_{0};            // positions given out
  alignas(64) std::atomic<uint64_t> head_{0};            // positions read
};

}  // namespace rueda
