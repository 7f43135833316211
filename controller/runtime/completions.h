// The completion thread: runs the callbacks of finished operations, one after another, with no lock
// held. Started before the first operation that has one.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/status.h"

namespace rueda {

class Completions {
 public:
  Completions() = default;
  ~Completions() { Stop(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Makes the thread, if there is none. RESOURCE_EXHAUSTED: the system has none left.
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // After Start.
  void Add(std::function<void()> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what has been added, then ends the thread. Not called from a callback.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the calling thread is this object's.
  bool OnThread() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();

  std::atomic<bool> started_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  std::thread::id id_ ABSL_GUARDED_BY(mutex_);  // the thread's, as long as it runs
};

}  // namespace rueda
