// Small operations: every rank writes its slot and arrives once; when all have arrived, each
// combines all slots by itself, in rank order. One synchronisation.
#pragma once

#include <vector>

#include "ops/shm/algorithm.h"

namespace rueda {

class SmallAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;

  // Whether every member's part fits a slot. The same answer on all members.
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
