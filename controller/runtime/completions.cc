#include "controller/runtime/completions.h"

#include <pthread.h>

#include "core/base/log.h"
#include "core/base/signals_blocked.h"

namespace rueda {

void Completions::Add(std::function<void()> callback) {
  MutexLock lock(mutex_);
  callbacks_.push_back(std::move(callback));
  if (!thread_.joinable() && !stopping_) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this, rank = LogRank()] {
      SetLogRank(rank);
      pthread_setname_np(pthread_self(), "rueda-callback");
      Run();
    });
    id_ = thread_.get_id();
  }
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
