// A store for ranks that are threads of one test.
#pragma once

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "ops/backend/store.h"

namespace rueda {

class MemoryStore : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    MutexLock lock(mutex_);
    if (aborted_) return absl::AbortedError("the store was aborted");
    values_[std::string(key)] = std::string(value);
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout,
                                  const std::atomic<bool>& cancelled) override {
    const Nanos deadline = DeadlineAfter(MonotonicNow(), timeout);
    MutexLock lock(mutex_);
    while (true) {
      if (aborted_) return absl::AbortedError("the store was aborted");
      if (cancelled.load()) return absl::AbortedError("the lane has ended");
      if (const auto it = values_.find(std::string(key)); it != values_.end()) return it->second;
      const Nanos left = deadline - MonotonicNow();
      if (left <= 0) return absl::DeadlineExceededError(absl::StrCat(key, " was not set in time"));
      ++waiting_;
      waiter_came_.NotifyAll();
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
      --waiting_;
    }
  }
  void Wake() override {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  void Abort() override {
    MutexLock lock(mutex_);
    aborted_ = true;
    changed_.NotifyAll();
  }
  // Until somebody waits for a key.
  void AwaitWaiter() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) waiter_came_.Wait(mutex_);
  }
  std::map<std::string, std::string> values() {
    MutexLock lock(mutex_);
    return values_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  CondVar waiter_came_;
  std::map<std::string, std::string> values_;
  bool aborted_ = false;
  int waiting_ = 0;
};

}  // namespace rueda
