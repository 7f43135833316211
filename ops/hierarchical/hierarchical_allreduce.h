// Allreduce, reduce and barrier over several hosts, as the engine sees them: block by block it puts
// what this rank brings where the host's others find it, reduces its stripe of what all of them
// bring, sends that, and takes the stripes that are finished. Several blocks are under way at a
// time.
//
// A result is a sum of hosts' sums: over a host's members in rank order, then over the hosts in the
// order of their first ranks. It depends on the inputs and on who is on which host, and on nothing
// else. What is narrower than float32 travels in float32 and is rounded once; sums of integers that
// are to be averaged travel in a type that holds them (kernels::Wire).
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/communicator.h"
#include "ops/backend/pieces.h"
#include "ops/hierarchical/cut.h"
#include "ops/hierarchical/host_split.h"
#include "ops/hierarchical/local_ring.h"
#include "ops/hierarchical/stripe_exchange.h"

namespace rueda {

class HierarchicalAllreduce {
 public:
  // `first`: the number of the first block. `exchange` null: this rank has no stripe. All outlive
  // this.
  HierarchicalAllreduce(const HostSplit* split, const CutLimits& limits, uint64_t first,
                        LocalRing* ring, StripeExchange* exchange)
      : split_(*split), limits_(limits), next_(first), ring_(*ring), exchange_(exchange) {}

  static bool Does(OpKind kind) {
    return kind == OpKind::kAllreduce || kind == OpKind::kReduce || kind == OpKind::kBarrier;
  }

  // See Communicator.
  void Start(const BucketOperation& operation);
  absl::StatusOr<Progress> Advance();
  PhaseTimes phase_times() const { return times_; }

 private:
  CrossOperation OperationOf() const;
  bool IsAbsent(int local) const {
    return operation_.IsAbsent(split_.own()[static_cast<size_t>(local)]);
  }
  bool HasStripe() const { return exchange_ != nullptr && split_.local < cut_.stripes; }
  bool Shares() const { return ring_.size() > 1; }
  uint64_t Number(int64_t block) const { return first_ + static_cast<uint64_t>(block); }
  absl::StatusOr<bool> Step();
  void Fill();
  void Bring(Range range, char* to);
  absl::StatusOr<bool> ReduceAndSend();
  void ReducePart(Range block, Range part, char* to);
  absl::StatusOr<bool> Take();

  const HostSplit& split_;
  const CutLimits limits_;
  uint64_t next_;  // the number of the next operation's first block
  LocalRing& ring_;
  StripeExchange* const exchange_;

  BucketOperation operation_;
  kernels::Wire wire_;
  Pieces pieces_;
  Cut cut_;
  uint64_t first_ = 0;
  absl::Status status_;  // of the start
  // How many blocks have come so far.
  int64_t filled_ = 0;
  int64_t sent_ = 0;
  int64_t taken_ = 0;
  PhaseTimes times_;
  std::vector<const void*> sources_;
  std::unique_ptr<char[]> narrow_;  // packed elements that are to be widened
};

}  // namespace rueda
