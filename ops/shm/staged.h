// Reductions of ordinary memory of any size: it flows through cache-sized blocks that the members
// share, two of each, so that one block is being filled while the one before is read. One arrival a
// block.
//
// A rank copies the next block's input in (but for its own slice) and arrives; when all have, it
// takes the others' finished slices of the block before, and reduces its own slice of this one, in
// rank order. A member whose tensor lies in an arena copies nothing in: the others read it there.
#pragma once

#include <vector>

#include "ops/shm/algorithm.h"

namespace rueda {

class StagedAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;
  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;
  PhaseTimes phase_times() const override { return times_; }

  // Goes on with a reduction whose first arrival was made by somebody else (DirectAlgorithm, which
  // found that not all members' tensors lie in arenas). `resident`: by member, its tensor in its
  // arena, or null.
  void TakeOver(const BucketOperation& operation, std::vector<const char*> resident);
  // What has to be done before a reduction's first arrival, but for what was prepared.
  void StageFirst(const BucketOperation& operation, bool resident);
  // What StageFirst was given goes away; what it has staged stays.
  void Forget() { Reset({}); }

 private:
  enum class Phase { kFill, kWait, kCollect, kReduce };

  void Reset(const BucketOperation& operation);
  Range BlockOf(int64_t block) const;
  Range OwnSlice(Range block) const;
  void Fill(int64_t block);
  void Collect(int64_t block);
  void Reduce(int64_t block);
  void ReducePart(Range range, Range slice, int parity);
  void Arrive();

  BucketOperation operation_;
  Pieces pieces_;
  size_t element_bytes_ = 1;
  int64_t block_elements_ = 0;
  int64_t blocks_ = 0;
  int64_t step_ = 0;      // the block that is filled next; blocks_ + 1 when all is done
  int first_parity_ = 0;  // block k lies in the blocks of parity first_parity_ + k
  Phase phase_ = Phase::kFill;
  std::vector<const char*> resident_;  // by member: its input in its arena, or null
  std::vector<const void*> sources_;
  PhaseTimes times_;
};

}  // namespace rueda
