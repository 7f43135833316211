// Threads that wait for a request while another thread turns the engine. Each sleeps on a word of
// its own, and is woken when its request is done or when it should take the baton.
#pragma once

#include <atomic>
#include <vector>

#include "controller/lanes/request.h"
#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/mutex.h"

namespace rueda {

class Sleepers {
 public:
  // Sleeps until woken or `deadline`, unless `keep_awake()` is true once this thread is on the
  // list. Returns whether WakeOne chose this thread, for whatever other reason it woke: then it
  // takes the baton, or sees to it that somebody else does.
  template <typename KeepAwake>
  bool Sleep(const Request* request, Nanos deadline, KeepAwake keep_awake)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // After the request's `done` was set.
  void WakeFor(const Request* request) ABSL_LOCKS_EXCLUDED(mutex_);
  // One of them should take the baton. False when nobody sleeps.
  bool WakeOne() ABSL_LOCKS_EXCLUDED(mutex_);
  // After a sequentially consistent store of what they should see: then either this sees a thread
  // that is about to sleep, or that thread sees the store.
  bool any() const { return count_.load(std::memory_order_seq_cst) > 0; }

 private:
  struct Entry {
    const Request* request;
    std::atomic<uint32_t> woken{0};
    bool called = false;  // by WakeOne; under mutex_
  };
  static void Wake(Entry* entry) {
    entry->woken.store(1, std::memory_order_release);
    FutexWakeAll(entry->woken);
  }

  std::atomic<int> count_{0};
  Mutex mutex_;
  std::vector<Entry*> entries_ ABSL_GUARDED_BY(mutex_);
};

template <typename KeepAwake>
bool Sleepers::Sleep(const Request* request, Nanos deadline, KeepAwake keep_awake) {
  Entry entry{request};
  {
    MutexLock lock(mutex_);
    entries_.push_back(&entry);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  // Whoever is about to wake us looks at count_ behind such a fence too.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!keep_awake()) {
    while (entry.woken.load(std::memory_order_acquire) == 0 && MonotonicNow() < deadline) {
      FutexWait(entry.woken, 0, deadline);
    }
  }
  MutexLock lock(mutex_);
  std::erase(entries_, &entry);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return entry.called;
}

}  // namespace rueda
