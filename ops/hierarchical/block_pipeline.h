// Takes an operation over several hosts through its blocks, as the engine sees it: several are
// under way at a time.
#pragma once

#include "ops/hierarchical/block_operation.h"
#include "ops/hierarchical/stripe_exchange.h"

namespace rueda {

class BlockPipeline {
 public:
  // `first`: the number of the first block. `exchange` null: this rank has no stripe. All outlive
  // this.
  BlockPipeline(const HostSplit* split, uint64_t first, LocalRing* ring, StripeExchange* exchange)
      : split_(*split), next_(first), ring_(*ring), exchange_(exchange) {}

  // See Communicator. `work` outlives the operation.
  void Start(BlockOperation* work, const BucketOperation& operation);
  absl::StatusOr<Progress> Advance();
  PhaseTimes phase_times() const { return work_->times(); }

 private:
  bool HasStripe() const { return exchange_ != nullptr && split_.local < work_->layout().stripes; }
  absl::StatusOr<bool> Step();
  void Fill();
  absl::StatusOr<bool> CollectAndSend();
  absl::StatusOr<bool> Take();

  const HostSplit& split_;
  uint64_t next_;  // the number of the next operation's first block
  LocalRing& ring_;
  StripeExchange* const exchange_;

  BlockOperation* work_ = nullptr;
  absl::Status status_;             // of the start
  std::vector<const char*> parts_;  // scratch
  // How many blocks have come so far.
  int64_t filled_ = 0;
  int64_t sent_ = 0;
  int64_t taken_ = 0;
};

}  // namespace rueda
