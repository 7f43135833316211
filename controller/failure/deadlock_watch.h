// For how long this rank has been blocked: what it tells the coordinator (Blocked), which ends
// operations when that is true of all ranks at once.
//
// A rank is blocked while a thread of it is inside a wait, and nothing of the rank moves: no
// operation begins or ends, is executed here, or has a callback that is still to come. That is a
// suspicion and no proof, as a thread may be about to submit what all wait for. So the limit counts
// from the latest of those events, and only the time in which this process ran, and nobody traced
// it. Threads outside of a wait may come back: while there is one that has waited before, the rank
// is not blocked, until that is three limits ago; and as long as there are any, the limit is three
// times as long.
//
// Owner: the engine; the holder of the baton. PURE
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "controller/failure/waiting_threads.h"
#include "controller/negotiation/messages.h"

namespace rueda {

class DeadlockWatch {
 public:
  // Waits that last so long are no exception in a training, but few are longer.
  static constexpr Nanos kMoments = 400 * kMillisecond;

  // What is looked at only when it matters.
  class Facts {
   public:
    virtual ~Facts() = default;
    virtual WaitingThreads::State Threads(Nanos now) = 0;
    // Whether an operation is executed here, or a callback is still to come.
    virtual bool Moves() = 0;
    virtual bool IsTraced() = 0;
  };

  // `limit`: 0: never.
  explicit DeadlockWatch(Nanos limit);

  // An operation begins or ends, or is executed. Whether it was told that this rank is blocked:
  // then that must be taken back, before anything else is said.
  [[nodiscard]] bool Move(Nanos now) {
    since_ = now;
    return std::exchange(told_, Blocked::kNot) != Blocked::kNot;
  }
  void OnQuestion(const StillBlocked& asked) { question_ = asked.question; }

  // What this rank must tell, if that has changed. `waits`: whether any thread may be inside a
  // wait.
  std::optional<Blocked> Check(Nanos now, bool waits, Facts& facts);
  // When to check again.
  Nanos next() const { return next_; }

 private:
  Blocked::Level Judge(Nanos now, Facts& facts);

  const Nanos limit_;
  const Nanos tick_;
  Nanos since_ = 0;
  Nanos counted_from_ = 0;  // what `counted_` is of
  Nanos counted_to_ = 0;
  Nanos counted_ = 0;  // how long it has been blocked, and has run
  Nanos next_ = kForever;
  Blocked::Level told_ = Blocked::kNot;
  std::optional<uint16_t> question_;  // not answered yet
};

}  // namespace rueda
