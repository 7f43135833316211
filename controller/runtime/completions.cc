#include "controller/runtime/completions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/threads.h"

namespace rueda {

absl::Status Completions::Start() {
  if (started_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (thread_.joinable() || stopping_) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(StartThread(
      "the thread for callbacks", "rueda-callback", [this] { Run(); }, &thread_));
  id_ = thread_.get_id();
  started_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void Completions::Add(std::function<void()> callback) {
  MutexLock lock(mutex_);
  callbacks_.push_back(std::move(callback));
  changed_.NotifyOne();
}

void Completions::Run() {
  while (true) {
    std::function<void()> callback;
    {
      MutexLock lock(mutex_);
      while (callbacks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (callbacks_.empty()) return;
      callback = std::move(callbacks_.front());
      callbacks_.pop_front();
    }
    callback();
  }
}

void Completions::Stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
    changed_.NotifyAll();
  }
  if (!thread.joinable()) return;
  thread.join();
  MutexLock lock(mutex_);
  id_ = std::thread::id();
}

bool Completions::OnThread() const {
  MutexLock lock(mutex_);
  return id_ == std::this_thread::get_id();
}

}  // namespace rueda
