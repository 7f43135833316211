// PURE
#include "controller/launcher/decide/first_failure.h"

namespace rueda {

void FirstFailure::OnFailed(Rank rank, Rank blames, Nanos now) {
  failed_[static_cast<size_t>(rank)] = true;
  if (rank_ >= 0) return;
  if (first_ < 0) {
    first_ = rank;
    blamed_ = blames == rank || static_cast<size_t>(blames) >= failed_.size() ? -1 : blames;
    deadline_ = DeadlineAfter(now, kPatience);
  }
  if (blamed_ < 0) {
    rank_ = first_;
  } else if (Known(blamed_)) {
    rank_ = blamed_;
  }
  if (rank_ >= 0) deadline_ = kForever;
}

void FirstFailure::OnTime(Nanos now) {
  if (now < deadline_) return;
  rank_ = first_;
  deadline_ = kForever;
}

}  // namespace rueda
