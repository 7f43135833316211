// What threads of this rank have asked of the engine: to leave the job, to end it, or to tell all
// ranks that they wish for something. Any thread asks; whoever turns the engine looks.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace rueda {

class Wishes {
 public:
  // This rank submits no more.
  void Leave() { asked_.fetch_or(kLeave, std::memory_order_release); }
  // The membership ends on all ranks. The first reason stays. Needs no memory but for the reason.
  void Abort(absl::string_view reason) noexcept ABSL_LOCKS_EXCLUDED(mutex_) {
    try {
      MutexLock lock(mutex_);
      if (reason_.empty()) reason_ = std::string(reason);
    } catch (const std::bad_alloc&) {  // then there is none
    }
    asked_.fetch_or(kAbort, std::memory_order_release);
  }

  // This rank wishes for something at which all ranks do the same: see Wished.
  void Agree(uint8_t bits) {
    asked_.fetch_or(uint32_t{bits} << kAgreeShift, std::memory_order_release);
  }
  // What has been wished for since the last time.
  uint8_t TakeAgree() {
    constexpr uint32_t kBits = uint32_t{0xFF} << kAgreeShift;
    return static_cast<uint8_t>(asked_.fetch_and(~kBits) >> kAgreeShift);
  }

  bool any() const { return asked_.load(std::memory_order_relaxed) != 0; }
  bool leave() const { return (asked_.load(std::memory_order_relaxed) & kLeave) != 0; }
  bool abort() const { return (asked_.load(std::memory_order_acquire) & kAbort) != 0; }
  // Of an abort.
  std::string reason() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return reason_;
  }

 private:
  static constexpr uint32_t kLeave = 1;
  static constexpr uint32_t kAbort = 2;
  static constexpr int kAgreeShift = 8;
  std::atomic<uint32_t> asked_{0};
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
