#include "ops/hierarchical/partial_sums.h"

#include <algorithm>

namespace rueda {

void PartialSums::Reset(const BucketOperation& operation, const HostSplit& split, bool narrow) {
  reduce_op_ = operation.kind == OpKind::kBarrier ? ReduceOp::kSum : operation.reduce_op;
  wire_ = CrossWire(operation, reduce_op_, split.members, narrow);
  contributing_.clear();
  for (const std::vector<int>& members : split.members) {
    contributing_.push_back(!std::all_of(members.begin(), members.end(),
                                         [&](int member) { return operation.IsAbsent(member); }));
  }
}

void PartialSums::Reduce(absl::Span<const void* const> operands, char* to, int64_t count) const {
  if (operands.empty() || (operands.size() == 1 && operands[0] == to && wire_.before.none())) {
    return;
  }
  kernels::Reduce(wire_.type, reduce_op_, operands, to, count, wire_.before);
}

void PartialSums::Combine(absl::Span<const char* const> parts, char* to, int64_t count) {
  partials_.clear();
  for (size_t host = 0; host < parts.size(); ++host) {
    if (Contributes(static_cast<int>(host))) partials_.push_back(parts[host]);
  }
  kernels::Combine(wire_, reduce_op_, partials_, to, count);
}

}  // namespace rueda
