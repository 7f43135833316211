// PURE
#include "controller/negotiation/blocked_ranks.h"

#include <algorithm>

namespace rueda {

void BlockedRanks::Move(Rank rank, Blocked::Level level) {
  const Blocked::Level before = levels_[rank];
  for (int passed = before; passed > level; --passed) --at_least_[passed];
  for (int passed = before + 1; passed <= level; ++passed) ++at_least_[passed];
  levels_[rank] = level;
}

void BlockedRanks::Set(Rank rank, const Blocked& said) {
  Blocked::Level level = said.level;
  if (level == Blocked::kStill && (!asked_ || said.question != question_)) {
    level = Blocked::kForTheLimit;  // the answer to an older question
  }
  Move(rank, level);
  if (level >= Blocked::kForTheLimit || !asked_) return;
  asked_ = false;
  for (Rank other = 0; other < static_cast<Rank>(levels_.size()); ++other) {
    if (levels_[other] == Blocked::kStill) Move(other, Blocked::kForTheLimit);
  }
}

void BlockedRanks::Remove(Rank rank) {
  Move(rank, Blocked::kNot);
  --at_least_[Blocked::kNot];
}

bool BlockedRanks::MustAsk() {
  if (asked_ || !all(Blocked::kForTheLimit)) return false;
  asked_ = true;
  ++question_;
  return true;
}

void BlockedRanks::Clear() {
  for (Rank rank = 0; rank < static_cast<Rank>(levels_.size()); ++rank) Move(rank, Blocked::kNot);
  asked_ = false;
}

}  // namespace rueda
