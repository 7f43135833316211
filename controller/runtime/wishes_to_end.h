// What threads of this rank have asked of the engine: to leave the job, or to end it. Any thread
// asks; whoever turns the engine looks.
#pragma once

#include <atomic>
#include <new>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace rueda {

class WishesToEnd {
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
  std::atomic<uint32_t> asked_{0};
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
