// PURE
#include "ops/nccl/reduction_way.h"

namespace rueda {
namespace {

// NCCL multiplies with a factor of the tensors' own type: too coarse a number where that is narrow.
bool NcclHasFactors(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// Each member's part of every piece has the same size, as NCCL's reducescatter needs it.
bool HasEqualParts(const Collective& collective, int members) {
  for (size_t i = 0; i < collective.counts.size(); ++i) {
    if (collective.counts[i] !=
        collective.counts[i / static_cast<size_t>(members) * static_cast<size_t>(members)]) {
      return false;
    }
  }
  return true;
}

}  // namespace

ReductionWay WayOf(const Collective& collective, int members, bool in_rank_order,
                   const NcclReduces& reduces) {
  const ReductionWay by_kernels;
  if (members == 1 || in_rank_order) return by_kernels;
  const bool scatters = collective.kind == OpKind::kReducescatter;
  if (scatters && !HasEqualParts(collective, members)) return by_kernels;
  const DType dtype = collective.dtype;
  const ReduceOp op = collective.reduce_op;
  const bool sums = op == ReduceOp::kSum || IsAverage(op);
  const auto& [prescale, postscale, divisor] = collective.scaling;
  const bool scaled = prescale != 1 || postscale != 1;
  ReductionWay way;
  way.native = true;
  if (!sums) {
    if (scaled || !reduces(dtype, op)) return by_kernels;
    way.reduce_op = op;
    return way;
  }
  if (IsAverage(op) && !scaled && divisor == members && reduces(dtype, ReduceOp::kAverage)) {
    way.reduce_op = ReduceOp::kAverage;
    return way;
  }
  if (!reduces(dtype, ReduceOp::kSum)) return by_kernels;
  way.reduce_op = ReduceOp::kSum;
  if (!scaled && divisor == 1) return way;
  if (!IsFloating(dtype)) return by_kernels;  // a copy scales nothing else
  way.factor = prescale * postscale / static_cast<double>(divisor);
  // A bucket of several tensors is packed anyway. A reducescatter is not.
  way.factor_by_nccl = NcclHasFactors(dtype) && (scatters || collective.pieces.size() == 1);
  if (scatters && !way.factor_by_nccl) return by_kernels;
  return way;
}

}  // namespace rueda
