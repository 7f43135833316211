// PURE
#include "ops/nccl/reduction_algorithm.h"

namespace rueda {
namespace {

// NCCL multiplies with a factor of the tensors' own type: too coarse a number where that is narrow.
bool NcclHasFactors(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// Each member's part of every piece has the same size, as NCCL's reducescatter needs it.
bool HasEqualParts(const BucketOperation& operation, int members) {
  for (size_t i = 0; i < operation.counts.size(); ++i) {
    if (operation.counts[i] !=
        operation.counts[i / static_cast<size_t>(members) * static_cast<size_t>(members)]) {
      return false;
    }
  }
  return true;
}

}  // namespace

ReductionAlgorithm AlgorithmOf(const BucketOperation& operation, int members, bool in_rank_order,
                               const NcclReduces& reduces) {
  const ReductionAlgorithm by_kernels;
  if (members == 1 || in_rank_order) return by_kernels;
  const bool scatters = operation.kind == OpKind::kReducescatter;
  if (scatters && !HasEqualParts(operation, members)) return by_kernels;
  const DType dtype = operation.dtype;
  const ReduceOp op = operation.reduce_op;
  const bool sums = op == ReduceOp::kSum || IsAverage(op);
  const auto& [prescale, postscale, divisor] = operation.scaling;
  const bool scaled = prescale != 1 || postscale != 1;
  ReductionAlgorithm algorithm;
  algorithm.native = true;
  if (!sums) {
    if (scaled || !reduces(dtype, op)) return by_kernels;
    algorithm.reduce_op = op;
    return algorithm;
  }
  if (IsAverage(op) && !scaled && divisor == members && reduces(dtype, ReduceOp::kAverage)) {
    algorithm.reduce_op = ReduceOp::kAverage;
    return algorithm;
  }
  if (!reduces(dtype, ReduceOp::kSum)) return by_kernels;
  algorithm.reduce_op = ReduceOp::kSum;
  if (!scaled && divisor == 1) return algorithm;
  if (!IsFloating(dtype)) return by_kernels;  // a copy scales nothing else
  algorithm.factor = prescale * postscale / static_cast<double>(divisor);
  // A bucket of several tensors is packed anyway. A reducescatter is not.
  algorithm.factor_by_nccl = NcclHasFactors(dtype) && (scatters || operation.pieces.size() == 1);
  if (scatters && !algorithm.factor_by_nccl) return by_kernels;
  return algorithm;
}

}  // namespace rueda
