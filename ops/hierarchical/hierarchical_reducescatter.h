// Reducescatter over several hosts: each host sends each other one its partial sums of what that
// host's members get. It adds up as HierarchicalAllreduce does.
#pragma once

#include <vector>

#include "ops/backend/channels.h"
#include "ops/hierarchical/block_operation.h"
#include "ops/hierarchical/partial_sums.h"
#include "ops/hierarchical/segments.h"

namespace rueda {

class HierarchicalReducescatter : public BlockOperation {
 public:
  using BlockOperation::BlockOperation;

  static bool Does(OpKind kind) { return kind == OpKind::kReducescatter; }

  bool BringsNothing() const override { return IsAbsent(split_.local); }
  void Bring(int64_t block, char* to) override;
  const char* Collect(int64_t block, int host, char* to, bool may_stay) override;
  void Take(int64_t block) override;
  void TakeParts(int64_t block, absl::Span<const char* const> parts, char* scratch) override;
  Place PlaceOf(int64_t block, int host) const override;
  size_t SentBytes(int64_t block, int from, int to) const override;
  void Finish(int64_t block, absl::Span<const char* const> parts, char* finished) override;

 private:
  BlockLayout Layout() override;
  void Pack(Range range, int host, char* to);

  PartialSums sums_;
  Channels channels_;
  Segments segments_;
  std::vector<const void*> operands_;
};

}  // namespace rueda
