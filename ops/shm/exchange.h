// Operations that hand data on (ops/backend/channels.h), of tensors of any size.
//
// Each member's data flows through its shared block, two in turn, one arrival a block; the block is
// divided among the channels. In each step a member fills its channels, arrives, and when all have,
// takes what is for it from everybody's block. What it has for itself it does not take from there.
#pragma once

#include <vector>

#include "ops/backend/channels.h"
#include "ops/shm/algorithm.h"

namespace rueda {

class ExchangeAlgorithm : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;
  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  void FillAndArrive();
  void Copy();
  void Reduce();
  const char* ChannelOf(int giver) const;

  BucketOperation operation_;
  Channels channels_;
  size_t channel_bytes_ = 0;  // of one channel in a block
  int64_t steps_ = 0;
  int64_t step_ = 0;
  int parity_ = 0;  // of the step's blocks
  std::vector<const void*> sources_;
};

}  // namespace rueda
