// Who of a job is blocked, as each rank has said. When all have been for the limit, each is asked
// whether it still is: some may have said so a while ago, and been stopped or traced since. When
// all are, the coordinator ends what they wait for. PURE
#pragma once

#include <array>
#include <vector>

#include "controller/negotiation/messages.h"

namespace rueda {

class BlockedRanks {
 public:
  explicit BlockedRanks(int world_size) : levels_(world_size) {
    at_least_[Blocked::kNot] = world_size;
  }

  void Set(Rank rank, const Blocked& said);
  // It is not asked any more.
  void Remove(Rank rank);
  // Whether the job has ranks, and all are.
  bool all(Blocked::Level level) const {
    return remaining() > 0 && at_least_[level] == remaining();
  }
  bool is_blocked(Rank rank) const { return levels_[rank] >= Blocked::kForMoments; }
  // Whether to ask now; once for each time that all have come to kForTheLimit.
  bool MustAsk();
  uint16_t question() const { return question_; }
  // What they waited for has ended.
  void Clear();

 private:
  void Move(Rank rank, Blocked::Level level);
  int remaining() const { return at_least_[Blocked::kNot]; }

  std::vector<Blocked::Level> levels_;               // of those who have left: kNot
  std::array<int, Blocked::kStill + 1> at_least_{};  // by level: how many of those that remain
  uint16_t question_ = 0;
  bool asked_ = false;
};

}  // namespace rueda
