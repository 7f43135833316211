#include "controller/membership/membership.h"

namespace rueda {

bool Membership::Move(State from, State to) {
  return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
}

bool Membership::BeginFarewell(Nanos now) {
  if (!Move(State::kLeaving, State::kFarewell)) return false;
  farewell_until_ = DeadlineAfter(now, kFarewellPatience);
  return true;
}

bool Membership::Fail() {
  const bool fails = Move(State::kRunning, State::kFailing) ||
                     Move(State::kLeaving, State::kFailing) ||
                     Move(State::kFarewell, State::kFailing);
  if (fails) farewell_until_ = kForever;
  return fails;
}

bool Membership::End() {
  const bool ends = Move(State::kFarewell, State::kOver) || Move(State::kFailing, State::kFailed);
  if (ends) farewell_until_ = kForever;
  return ends;
}

}  // namespace rueda
