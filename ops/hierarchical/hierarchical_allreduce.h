// Allreduce, reduce and barrier over several hosts: of each block a member reduces its stripe of
// what its host's members bring, and the hosts reduce that among each other.
//
// A result is a sum of hosts' sums: over a host's members in rank order, then over the hosts in the
// order of their first ranks. It depends on the inputs and on who is on which host, and on nothing
// else. How elements travel: CrossWire.
#pragma once

#include <vector>

#include "ops/backend/pieces.h"
#include "ops/hierarchical/block_operation.h"
#include "ops/hierarchical/partial_sums.h"

namespace rueda {

class HierarchicalAllreduce : public BlockOperation {
 public:
  using BlockOperation::BlockOperation;

  static bool Does(OpKind kind) {
    return kind == OpKind::kAllreduce || kind == OpKind::kReduce || kind == OpKind::kBarrier;
  }

  bool BringsNothing() const override { return IsAbsent(split_.local); }
  void Bring(int64_t block, char* to) override;
  const char* Collect(int64_t block, int host, char* to, bool may_stay) override;
  void Take(int64_t block) override;
  void TakeParts(int64_t block, absl::Span<const char* const> parts, char* scratch) override;
  Place PlaceOf(int64_t block, int host) const override;
  size_t SentBytes(int64_t block, int from, int to) const override;
  Extent MadeBy(int64_t block, int host) const override;
  void Finish(int64_t block, absl::Span<const char* const> parts, char* finished) override;

 private:
  BlockLayout Layout() override;
  // This rank's.
  Range Stripe(int64_t block) const { return cut_.Stripe(block, split_.local); }
  void Pack(Range range, char* to);

  PartialSums sums_;
  Pieces pieces_;
  Cut cut_;
  std::vector<const void*> operands_;
};

}  // namespace rueda
