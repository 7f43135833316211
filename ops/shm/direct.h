// Allreduce and reduce of tensors that lie in arenas: each rank reduces its slice over all ranks'
// tensors where they are and stores the result into all of them (reduce: into the root's). One
// pass, no copies, two arrivals.
//
// With the first arrival every rank says where its tensor lies, or that it lies elsewhere; all look
// at the same descriptors, so all know whether everybody's is in an arena. If not, the staged
// algorithm takes over without another arrival.
#pragma once

#include <vector>

#include "ops/host/arena.h"
#include "ops/shm/algorithm.h"
#include "ops/shm/staged.h"

namespace rueda {

class DirectAlgorithm : public ShmAlgorithm {
 public:
  // `arena`: this rank's own. `staged` outlives this.
  DirectAlgorithm(ShmGroup* group, const Arena* arena, StagedAlgorithm* staged)
      : ShmAlgorithm(group), arena_(arena), staged_(staged) {}

  // See Communicator.
  void Prepare(const BucketOperation& operation);

  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;
  PhaseTimes phase_times() const override {
    return phase_ == Phase::kStaged ? staged_->phase_times() : PhaseTimes();
  }

 private:
  enum class Phase { kWaitForDescriptors, kReduce, kWaitForResults, kStaged };

  void Stage(const BucketOperation& operation);
  absl::Status ReadDescriptors();
  void ReduceChunk();

  const Arena* const arena_;
  StagedAlgorithm* const staged_;
  BucketOperation operation_;
  Phase phase_ = Phase::kStaged;
  int parity_ = 0;
  bool all_resident_ = false;
  std::vector<const char*> inputs_;  // by member, in this process's mapping; null: elsewhere, none
  std::vector<char*> outputs_;       // of those who want the result; this rank's first if it does
  std::vector<const void*> sources_;
  Range rest_;  // of this rank's slice
};

}  // namespace rueda
