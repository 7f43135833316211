// Which rank's failure ended the job. News of a consequence may come before that of its cause: from
// another host, or as who aborts the job may end later than those that hear of it. A rank that
// failed because of another says so (VerdictBoard::Blame); then that one's end is awaited for a
// moment. PURE
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

class FirstFailure {
 public:
  // How long news of the cause may take.
  static constexpr Nanos kPatience = kSecond;

  explicit FirstFailure(int ranks) : failed_(static_cast<size_t>(ranks)) {}

  // `rank` has failed, because of `blames` (-1: nobody, or itself), by what it knows.
  void OnFailed(Rank rank, Rank blames, Nanos now);
  // To be called when deadline() has come, and when no more news can.
  void OnTime(Nanos now);
  Nanos deadline() const { return deadline_; }
  // Whether a cause is awaited.
  bool open() const { return deadline_ != kForever; }

  // -1: none, or not known yet.
  Rank rank() const { return rank_; }
  // That we heard of; -1: none.
  Rank first() const { return first_; }

 private:
  bool Known(Rank rank) const {
    return rank >= 0 && static_cast<size_t>(rank) < failed_.size() &&
           failed_[static_cast<size_t>(rank)];
  }

  std::vector<bool> failed_;
  Rank first_ = -1;   // that we heard of
  Rank blamed_ = -1;  // by it
  Rank rank_ = -1;
  Nanos deadline_ = kForever;
};

}  // namespace rueda
