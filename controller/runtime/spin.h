// What a thread does between finding nothing to do and going to sleep: a bounded wait whose kind
// depends on whether every rank of the machine has a core of its own. Measured;
// docs/internals/performance.md.
//
// A yield gives the core to whoever else wants it: best to a rank, which soon yields in turn. One
// that is gone for long went to somebody who computes, and the next would too, each time for a
// whole time slice; who sleeps instead gets the core back when it is rung.
#pragma once

#include <sched.h>

#include "absl/strings/string_view.h"
#include "core/base/clock.h"
#include "core/base/pause.h"

namespace rueda {

// Whether ranks have to share cores: those of a host, or of a machine with several hosts on it.
bool SharesCores(int local_ranks, int machine_ranks);

class Spin {
 public:
  // `kind`: the knob `wait`. `yield`: another sched_yield, for tests.
  Spin(absl::string_view kind, bool shares_cores, int (*yield)() = &sched_yield);

  void Reset() { done_ = 0; }
  // One more pause or yield; false when it is time to sleep.
  bool Again() {
    if (done_ >= limit_) return false;
    if (done_ == 0 && sleeps_ > 0) {
      --sleeps_;
      done_ = limit_;
      return false;
    }
    ++done_;
    if (yields_) {
      const Nanos began = MonotonicNow();
      yield_();
      if (MonotonicNow() - began > kLongYield) {
        done_ = limit_;
        sleeps_ = kSleepsAfterLongYield;
      }
    } else {
      Pause();
    }
    return true;
  }
  // In how many turns sockets are looked at once even if nobody says that they are ready: a yield
  // may take a whole time slice of somebody else's.
  int turns_without_sockets() const { return yields_ ? 64 : 1'024; }

 private:
  static constexpr Nanos kLongYield = kMillisecond;
  static constexpr int kSleepsAfterLongYield = 1'024;

  int (*const yield_)();
  bool yields_ = false;
  int limit_ = 0;
  int done_ = 0;
  int sleeps_ = 0;  // so many times it is time to sleep at once
};

}  // namespace rueda
