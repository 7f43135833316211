// The threads that use a context, and which of them are inside a wait. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace rueda {

class WaitingThreads {
 public:
  // Who waits in slices, to look at something else in between, waits all the time: so long a thread
  // may be outside of a wait that has timed out.
  static constexpr Nanos kBetweenSlices = 100 * kMillisecond;

  struct State {
    Nanos since = kForever;       // since when a thread has been inside; kForever: none is
    Nanos changes_at = kForever;  // when that may be different though no thread comes or leaves
    // Of the living threads that are not inside now:
    std::optional<Nanos> waiter_left;  // the latest that one left its wait; none has ever waited
    bool other_outside = false;        // whether there is one that has only submitted
  };

  WaitingThreads();

  // The calling thread is one of the library's, which submits and waits for others: it is known
  // otherwise whether it is at work. Only its waits count, while they last.
  static void ExemptThisThread() { exempt = true; }

  // The calling thread submits. Costs a comparison, unless it was in another context before.
  void NoteSubmission() {
    if (__builtin_expect(submits_in != number_, 0)) Add(/*waits=*/false);
  }
  // The calling thread waits, though perhaps without sleep.
  void NoteWait() {
    if (__builtin_expect(waits_in != number_, 0)) Add(/*waits=*/true);
  }

  // Whether the calling thread waits outside of the library, for threads that use the context: then
  // it is none that may come back before them.
  void SetWaitsOutside(bool waits) ABSL_LOCKS_EXCLUDED(mutex_);

  // The calling thread sleeps inside a wait, as long as this lives; `until`: its time limit.
  class Inside {
   public:
    // Null: it waits for no operation, and does not count.
    Inside(WaitingThreads* threads, Nanos until) : threads_(threads) {
      if (threads_ != nullptr) threads_->Enter(until);
    }
    ~Inside() {
      if (threads_ != nullptr) threads_->Exit();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    WaitingThreads* const threads_;
  };

  // How many are inside.
  int inside() const { return inside_.load(std::memory_order_relaxed); }
  State StateAt(Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Thread {
    pid_t id;
    bool inside = false;
    bool waits = false;  // has done so
    bool waits_outside = false;
    Nanos since = 0;  // of its latest wait
    Nanos until = 0;  // of its latest wait: when it ends at the latest, or has ended
  };

  void Add(bool waits) ABSL_LOCKS_EXCLUDED(mutex_);
  void Enter(Nanos until) ABSL_LOCKS_EXCLUDED(mutex_);
  void Exit() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: there is no memory to note it.
  Thread* Own() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // In which of these the thread was noted last.
  static thread_local uint64_t submits_in;
  static thread_local uint64_t waits_in;
  static thread_local bool exempt;

  const uint64_t number_;
  std::atomic<int> inside_{0};
  Mutex mutex_;
  std::vector<Thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
