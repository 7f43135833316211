// How a reduction is done on a device: by NCCL's own, or, to the bit as the CPU does it, by
// exchanging parts and adding them up in rank order with a kernel of ours. The choice depends on
// nothing that may differ between the members. PURE
#pragma once

#include <functional>

#include "ops/backend/communicator.h"

namespace rueda {

struct ReductionAlgorithm {
  // NCCL has it; else parts are exchanged, and added up with all factors by kernels.
  bool native = false;
  ReduceOp reduce_op = ReduceOp::kNone;  // NCCL's: kSum, kAverage, kMin, kMax, kProduct
  // What each member's input is multiplied by before: while it is packed, or by NCCL, which then
  // reads the tensor where it is.
  double factor = 1;
  bool factor_by_nccl = false;
};

// Whether NCCL reduces this type this way: communicators say so.
using NcclReduces = std::function<bool(DType dtype, ReduceOp op)>;

// Of an allreduce, reduce or reducescatter of `members`. `in_rank_order`: results are to have the
// CPU's bits.
ReductionAlgorithm AlgorithmOf(const BucketOperation& operation, int members, bool in_rank_order,
                               const NcclReduces& reduces);

}  // namespace rueda
