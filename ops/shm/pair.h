// Send and receive: from one member to another, while the rest of the process set does nothing. The
// data flows through the two halves of the sender's next block, which nobody reads: everybody has
// left the operation that used it. No arrivals; the two count blocks by themselves.
#pragma once

#include "ops/shm/algorithm.h"

namespace rueda {

class PairAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;
  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  bool sends() const { return operation_.root == group_->self(); }
  uint64_t Word(uint64_t blocks) const;
  bool HasReached(uint64_t word, uint64_t blocks) const;
  char* HalfOf(uint64_t block) const;
  size_t BytesOf(uint64_t block) const;
  absl::StatusOr<Progress> Send();
  absl::StatusOr<Progress> Receive();

  BucketOperation operation_;
  size_t bytes_ = 0;
  uint64_t blocks_ = 0;
  uint64_t block_ = 0;  // the next one to send or to receive
};

}  // namespace rueda
