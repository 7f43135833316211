// One way to do a collective in shared memory. One file an algorithm: small.cc, staged.cc and
// direct.cc reduce, exchange.cc hands data on, pair.cc is for two.
#pragma once

#include "ops/backend/communicator.h"
#include "ops/backend/pieces.h"
#include "ops/backend/range.h"
#include "ops/shm/shm_group.h"

namespace rueda {

// Owned by the communicator, which runs one algorithm at a time.
class ShmAlgorithm {
 public:
  explicit ShmAlgorithm(ShmGroup* group) : group_(group) {}
  virtual ~ShmAlgorithm() = default;
  virtual void Start(const BucketOperation& operation) = 0;
  virtual absl::StatusOr<Progress> Advance() = 0;
  virtual PhaseTimes phase_times() const { return {}; }

 protected:
  ShmGroup* const group_;
};

}  // namespace rueda
