// One rank's part in a job, from its start to its end: what goes on, and what happens only once.
//
//   running --Leave--> leaving --BeginFarewell--> farewell --End--> over
//      |                  |                          |
//      +------------------+----------Fail------------+--> failing --End--> failed
//
// The holder of the baton changes it; any thread may ask. PURE
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/clock.h"

namespace rueda {

class Membership {
 public:
  // How long the others may take to be done when everybody has left.
  static constexpr Nanos kFarewellPatience = 2 * kSecond;

  enum class State : uint8_t {
    kRunning,
    kLeaving,   // this rank has said that it submits no more
    kFarewell,  // all have, and nothing is under way here; they wait for each other once more
    kOver,
    kFailing,  // the failure is known; what was under way is being completed with it
    kFailed,
  };

  State state() const { return state_.load(std::memory_order_acquire); }
  // Whether there is anything to do yet. If not, nothing moves and no tensor's memory is touched.
  bool goes_on() const { return state() < State::kOver; }
  bool has_failed() const { return state() >= State::kFailing; }
  // Whether it is over for this rank: every operation has been completed.
  bool has_ended() const { return state() == State::kOver || state() == State::kFailed; }

  // Each returns whether this call is the one that does it.
  bool Leave() { return Move(State::kRunning, State::kLeaving); }
  bool BeginFarewell(Nanos now);
  bool Fail();
  // Of the farewell, or of failing.
  bool End();

  // When the farewell is over, whatever is still awaited; kForever while there is none.
  Nanos farewell_until() const { return farewell_until_; }

 private:
  bool Move(State from, State to);

  std::atomic<State> state_{State::kRunning};
  Nanos farewell_until_ = kForever;
};

}  // namespace rueda
