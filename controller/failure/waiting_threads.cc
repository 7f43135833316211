#include "controller/failure/waiting_threads.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace rueda {
namespace {

std::atomic<uint64_t> latest_number{0};

// Dead threads are forgotten when more than so many are known.
constexpr size_t kThreadsKept = 64;

bool Lives(pid_t thread) {
  return tgkill(getpid(), thread, 0) == 0 || errno != ESRCH;
}

}  // namespace

thread_local uint64_t WaitingThreads::submits_in = 0;
thread_local uint64_t WaitingThreads::waits_in = 0;
thread_local bool WaitingThreads::exempt = false;

WaitingThreads::WaitingThreads() : number_(++latest_number) {}

void WaitingThreads::Add(bool waits) {
  if (exempt) return;
  const Nanos now = MonotonicNow();
  MutexLock lock(mutex_);
  Thread* const own = Own();
  if (own == nullptr) return;
  submits_in = number_;
  if (!waits) return;
  waits_in = number_;
  if (!std::exchange(own->waits, true)) own->until = own->since = now;
}

WaitingThreads::Thread* WaitingThreads::Own() {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));  // gettid() is younger than glibc 2.28
  for (Thread& thread : threads_) {
    if (thread.id == self) return &thread;
  }
  if (threads_.size() >= kThreadsKept) {
    std::erase_if(threads_, [](const Thread& thread) { return !Lives(thread.id); });
  }
  try {
    threads_.push_back({self});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return &threads_.back();
}

void WaitingThreads::SetWaitsOutside(bool waits) {
  const Nanos now = MonotonicNow();
  MutexLock lock(mutex_);
  Thread* const own = Own();
  if (own == nullptr) return;
  own->waits_outside = waits;
  own->since = own->until = now;  // it has not been at work until now
}

void WaitingThreads::Enter(Nanos until) {
  const Nanos now = MonotonicNow();
  MutexLock lock(mutex_);
  Thread* const own = Own();
  if (own == nullptr) return;
  if (!own->waits || now - own->until > kBetweenSlices) own->since = now;
  own->inside = own->waits = true;
  own->until = until;
  inside_.fetch_add(1, std::memory_order_relaxed);
}

void WaitingThreads::Exit() {
  const Nanos now = MonotonicNow();
  MutexLock lock(mutex_);
  Thread* const own = Own();
  if (own == nullptr || !own->inside) return;
  own->inside = false;
  own->until = now;
  inside_.fetch_sub(1, std::memory_order_relaxed);
  if (exempt) threads_.erase(threads_.begin() + (own - threads_.data()));
}

WaitingThreads::State WaitingThreads::StateAt(Nanos now) {
  State state;
  MutexLock lock(mutex_);
  for (const Thread& thread : threads_) {
    if (thread.waits_outside && !thread.inside) continue;
    const Nanos out = thread.waits ? DeadlineAfter(thread.until, kBetweenSlices) : 0;
    if (thread.inside || now < out) {
      state.since = std::min(state.since, thread.since);
      if (now < out) state.changes_at = std::min(state.changes_at, out);
    } else if (!Lives(thread.id)) {
      continue;
    } else if (thread.waits) {
      state.waiter_left = std::max(state.waiter_left.value_or(0), thread.until);
    } else {
      state.other_outside = true;
    }
  }
  return state;
}

}  // namespace rueda
