// Small reductions and barriers: every rank writes its slot and arrives once; when all have arrived,
// each that wants the result combines all slots by itself, in rank order. One synchronisation.
#pragma once

#include <vector>

#include "ops/shm/algorithm.h"

namespace rueda {

class SmallAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;

  // Whether what is reduced fits a slot. The same answer on all members.
  static bool Fits(const Collective& collective);

  void Start(const Collective& collective) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  void Combine();

  Collective collective_;
  Pieces pieces_;
  int slot_ = 0;
  std::vector<const void*> sources_;
};

}  // namespace rueda
