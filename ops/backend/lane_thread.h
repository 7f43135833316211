// The thread of a backend that the engine hands work to: what blocks in a library, or must come
// from one thread alone. Tasks run one after another.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace rueda {

class LaneThread {
 public:
  struct Args {
    std::string what = "a lane thread";  // for people
    const char* name = "rueda-lane";     // as StartThread has it
    // `look` is called every `interval` while `busy` says so; null: there is nothing to look at.
    Nanos interval = 0;
    std::function<bool()> busy = nullptr;
    std::function<void()> look = nullptr;
    std::function<void()> at_end = nullptr;  // the thread's last act
  };
  explicit LaneThread(Args args);
  // As End.
  ~LaneThread();
  LaneThread(const LaneThread&) = delete;
  LaneThread& operator=(const LaneThread&) = delete;

  // Starts the thread, if it does not run yet. RESOURCE_EXHAUSTED.
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tasks run in order, once it has started, and don't throw. Any thread.
  void Add(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the thread end when everything that has been added is done. Any thread.
  void BeginEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, and waits for that. If it never started nothing is done.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: there will be none. A null task: it is time to look.
  bool NextTask(std::function<void()>* task) ABSL_LOCKS_EXCLUDED(mutex_);
  void LookIfDue(bool worked, Nanos* looked);

  const Args args_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
