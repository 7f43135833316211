// What a thread does between finding nothing to do and going to sleep: a bounded wait whose kind
// depends on whether every rank of the host has a core of its own. Measured; docs/performance.md.
#pragma once

#include <sched.h>

#include "absl/strings/string_view.h"

namespace rueda {

class Spin {
 public:
  // `kind`: the knob `wait`. `local_ranks`: how many ranks share the cores.
  Spin(absl::string_view kind, int local_ranks);

  void Reset() { done_ = 0; }
  // One more pause or yield; false when it is time to sleep.
  bool Again() {
    if (done_ >= limit_) return false;
    ++done_;
    if (yields_) {
      sched_yield();
    } else {
      __builtin_ia32_pause();
    }
    return true;
  }
  // In how many turns sockets are looked at once even if nobody says that they are ready: a yield
  // may take a whole time slice of somebody else's.
  int turns_without_sockets() const { return yields_ ? 8 : 1'024; }

 private:
  bool yields_ = false;
  int limit_ = 0;
  int done_ = 0;
};

}  // namespace rueda
