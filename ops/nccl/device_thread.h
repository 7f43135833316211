// The one thread of a rank that enqueues work on its device and calls NCCL: an application's thread
// may be capturing a graph, and communicators of several process sets must be used in one order on
// all ranks, that of the plan.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace rueda {

class DeviceThread {
 public:
  // `look` is called every `interval` while `busy` says so.
  DeviceThread(Nanos interval, std::function<bool()> busy, std::function<void()> look);
  // Does what has been added, and ends.
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // Starts the thread, if it does not run yet. RESOURCE_EXHAUSTED.
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tasks run in order, once it has started. Any thread.
  void Add(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const Nanos interval_;
  const std::function<bool()> busy_;
  const std::function<void()> look_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
