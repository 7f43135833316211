#include "ops/nccl/device_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/threads.h"

namespace rueda {

DeviceThread::DeviceThread(Nanos interval, std::function<bool()> busy, std::function<void()> look)
    : interval_(interval), busy_(std::move(busy)), look_(std::move(look)) {}

DeviceThread::~DeviceThread() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status DeviceThread::Start() {
  MutexLock lock(mutex_);
  if (thread_.joinable()) return absl::OkStatus();
  return StartThread(
      "the device's thread", "rueda-device", [this] { Run(); }, &thread_);
}

void DeviceThread::Add(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void DeviceThread::Run() {
  Nanos looked = MonotonicNow();
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      if (tasks_.empty()) {
        if (stopping_) return;
        if (busy_()) {
          changed_.WaitFor(mutex_, std::chrono::nanoseconds(interval_));
        } else {
          changed_.Wait(mutex_);
        }
      }
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (task != nullptr) task();
    // Tasks that keep coming don't put it off.
    const Nanos now = MonotonicNow();
    if (task != nullptr && now - looked < interval_) continue;
    looked = now;
    look_();
  }
}

}  // namespace rueda
