#include "ops/backend/lane_thread.h"

#include <utility>

#include "core/base/threads.h"

namespace rueda {

LaneThread::LaneThread(Args args) : args_(std::move(args)) {}

LaneThread::~LaneThread() {
  End();
}

void LaneThread::BeginEnd() {
  MutexLock lock(mutex_);
  ending_ = true;
  changed_.NotifyAll();
}

void LaneThread::End() {
  BeginEnd();
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status LaneThread::Start() {
  MutexLock lock(mutex_);
  if (thread_.joinable()) return absl::OkStatus();
  return StartThread(
      args_.what, args_.name, [this] { Run(); }, &thread_);
}

void LaneThread::Add(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void LaneThread::Run() {
  Nanos looked = MonotonicNow();
  std::function<void()> task;
  while (NextTask(&task)) {
    if (task != nullptr) task();
    if (args_.look != nullptr) LookIfDue(task != nullptr, &looked);
  }
  if (args_.at_end != nullptr) args_.at_end();
}

bool LaneThread::NextTask(std::function<void()>* task) {
  *task = nullptr;
  MutexLock lock(mutex_);
  while (tasks_.empty()) {
    if (ending_) return false;
    if (args_.look != nullptr && args_.busy()) {
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(args_.interval));
      if (tasks_.empty()) return true;
    } else {
      changed_.Wait(mutex_);
    }
  }
  *task = std::move(tasks_.front());
  tasks_.pop_front();
  return true;
}

// Tasks that keep coming don't put it off.
void LaneThread::LookIfDue(bool worked, Nanos* looked) {
  const Nanos now = MonotonicNow();
  if (worked && now - *looked < args_.interval) return;
  *looked = now;
  args_.look();
}

}  // namespace rueda
