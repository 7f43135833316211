// Calls the callbacks of finished operations: on a thread of their own, one after another, with no
// lock held, or inline.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "controller/lanes/request.h"
#include "controller/timeline/timeline.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace rueda {

// A completion callback and what it is called with.
struct Callback {
  CallbackFn function = nullptr;  // null: there is none
  void* user = nullptr;
  Handle handle = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  Timeline* timeline = nullptr;
  uint32_t track = 0;  // of the operation

  // An exception in it ends the program: there is nobody to tell.
  void Run() const;
};

class Completions {
 public:
  Completions() = default;
  ~Completions() { Stop(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Makes the thread, if there is none. RESOURCE_EXHAUSTED: the system has none left.
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls it, on this thread (`is_inline`) or, after Start, on the other one.
  void Call(const Callback& callback, bool is_inline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls them all as Call does, not inline, and as `like` otherwise.
  void CallLate(Callback like, std::unique_ptr<LateCallbacks::Late> late)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After Start. False: the thread has been stopped, and nothing will run it.
  bool Add(std::function<void()> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a callback was added that has not returned, and its thread is at work: not in a wait.
  bool busy() const {
    return to_return_.load(std::memory_order_relaxed) > 0 &&
           !waits_.load(std::memory_order_relaxed);
  }
  // Its thread is in a wait, as long as this lives. On other threads it does nothing.
  class Waits {
   public:
    explicit Waits(Completions* completions)
        : completions_(Current() == completions ? completions : nullptr) {
      Set(true);
    }
    ~Waits() { Set(false); }
    Waits(const Waits&) = delete;
    Waits& operator=(const Waits&) = delete;

   private:
    void Set(bool waits) {
      if (completions_ != nullptr) completions_->waits_.store(waits, std::memory_order_relaxed);
    }
    Completions* const completions_;
  };
  // Runs what has been added, then ends the thread. Not called from a callback.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The one whose thread the calling thread is; null: none.
  static const Completions* Current();

 private:
  void Run();

  std::atomic<bool> started_{false};
  std::atomic<bool> waits_{false};
  std::atomic<int> to_return_{0};  // how many were added and have not returned
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
  bool runs_ ABSL_GUARDED_BY(mutex_) = false;  // the thread: what is added it will call
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
