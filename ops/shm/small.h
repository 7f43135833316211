// Small reductions and barriers: every rank writes its slot and arrives once; when all have
// arrived, each that wants the result combines all slots by itself, in rank order. One
// synchronisation, and none that anybody waits for when all have prepared: then the slots are full
// before the operation begins.
#pragma once

#include <vector>

#include "ops/shm/algorithm.h"

namespace rueda {

class SmallAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;

  // Whether what is reduced fits a slot, and is so small that one synchronisation is worth more
  // than each member's reducing all of it. The same answer on all members.
  static bool Fits(const BucketOperation& operation, int members);

  // See Communicator; what fits a slot only.
  void Prepare(const BucketOperation& operation);

  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  void Combine();

  void Fill(const BucketOperation& operation);

  BucketOperation operation_;
  Pieces pieces_;
  int slot_ = 0;
  std::vector<const void*> sources_;
};

}  // namespace rueda
