// PURE
#include "ops/hierarchical/cross_wire.h"

#include <algorithm>

namespace rueda {

kernels::Wire CrossWire(const BucketOperation& operation, ReduceOp reduce_op,
                        const std::vector<std::vector<int>>& hosts, bool narrow) {
  size_t members = 0, together = 0;
  for (const std::vector<int>& own : hosts) {
    members += own.size();
    together = std::max(together, own.size());
  }
  const auto operands = static_cast<int64_t>(members);
  return narrow ? kernels::NarrowWireOf(operation.dtype, reduce_op, operation.scaling, operands,
                                        static_cast<int64_t>(together))
                : kernels::WireOf(operation.dtype, reduce_op, operation.scaling, operands);
}

}  // namespace rueda
