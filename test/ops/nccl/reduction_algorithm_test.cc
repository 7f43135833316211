// Which reductions NCCL does, and which are done in rank order by kernels: that it depends on
// nothing that differs between members is checked by its arguments; here, that it is the right one.
#include "ops/nccl/reduction_algorithm.h"

#include <gtest/gtest.h>

#include <vector>

namespace rueda {
namespace {

// As NCCL 2.24 and later on Hopper.
bool Reduces(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kBool:
    case DType::kInt16:
    case DType::kUInt16:
      return false;
    case DType::kComplex64:
    case DType::kComplex128:
      return op == ReduceOp::kSum;
    default:
      break;
  }
  if (op == ReduceOp::kAverage) return IsFloating(dtype);
  return op == ReduceOp::kSum || op == ReduceOp::kProduct || op == ReduceOp::kMin ||
         op == ReduceOp::kMax;
}

struct Case {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1;
  double postscale = 1;
  int64_t divisor = 1;
  size_t pieces = 1;
  OpKind kind = OpKind::kAllreduce;
  std::vector<int64_t> counts = {};
};

ReductionAlgorithm Of(const Case& of, int members = 4, bool in_rank_order = false) {
  const std::vector<Piece> pieces(of.pieces);
  BucketOperation operation;
  operation.kind = of.kind;
  operation.dtype = of.dtype;
  operation.reduce_op = of.op;
  operation.scaling.prescale = of.prescale;
  operation.scaling.postscale = of.postscale;
  operation.scaling.divisor = of.divisor;
  operation.pieces = pieces;
  operation.counts = of.counts;
  return AlgorithmOf(operation, members, in_rank_order, &Reduces);
}

TEST(ReductionAlgorithm, WhatNcclHasIsNccls) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    const ReductionAlgorithm algorithm = Of({.op = op});
    EXPECT_TRUE(algorithm.native);
    EXPECT_EQ(algorithm.reduce_op, op);
    EXPECT_EQ(algorithm.factor, 1);
  }
  EXPECT_TRUE(Of({.dtype = DType::kComplex64}).native);
}

TEST(ReductionAlgorithm, WhatItHasNotIsAddedUpByKernels) {
  EXPECT_FALSE(Of({.dtype = DType::kBool, .op = ReduceOp::kMax}).native);
  EXPECT_FALSE(Of({.dtype = DType::kInt16}).native);
  EXPECT_FALSE(Of({.dtype = DType::kInt32, .op = ReduceOp::kBitXor}).native);
  EXPECT_FALSE(Of({.dtype = DType::kComplex64, .op = ReduceOp::kProduct}).native);
  // Integers divide and scale as nobody else does.
  EXPECT_FALSE(Of({.dtype = DType::kInt32, .op = ReduceOp::kAverage, .divisor = 4}).native);
  EXPECT_FALSE(Of({.dtype = DType::kInt32, .prescale = 2}).native);
  EXPECT_FALSE(Of({.op = ReduceOp::kMin, .prescale = 2}).native);
}

TEST(ReductionAlgorithm, AnAverageOverAllIsNcclsOwn) {
  const ReductionAlgorithm algorithm = Of({.op = ReduceOp::kAverage, .divisor = 4, .pieces = 3});
  EXPECT_TRUE(algorithm.native);
  EXPECT_EQ(algorithm.reduce_op, ReduceOp::kAverage);
  EXPECT_EQ(algorithm.factor, 1);
}

// Over those who have not joined, or with factors, it is a sum of multiplied numbers.
TEST(ReductionAlgorithm, OtherAveragesArePremultipliedSums) {
  const ReductionAlgorithm live = Of({.op = ReduceOp::kAverageLive, .divisor = 3});
  EXPECT_TRUE(live.native);
  EXPECT_EQ(live.reduce_op, ReduceOp::kSum);
  EXPECT_DOUBLE_EQ(live.factor, 1.0 / 3);
  EXPECT_TRUE(live.factor_by_nccl);
  const ReductionAlgorithm scaled =
      Of({.op = ReduceOp::kAverage, .prescale = 3, .postscale = 0.5, .divisor = 4});
  EXPECT_EQ(scaled.reduce_op, ReduceOp::kSum);
  EXPECT_DOUBLE_EQ(scaled.factor, 3 * 0.5 / 4);
}

TEST(ReductionAlgorithm, FactorsOfNarrowTypesAndBucketsAreAppliedWhilePacking) {
  EXPECT_FALSE(Of({.dtype = DType::kFloat16, .prescale = 0.1}).factor_by_nccl);
  EXPECT_TRUE(Of({.dtype = DType::kFloat16, .prescale = 0.1}).native);
  EXPECT_FALSE(Of({.prescale = 0.1, .pieces = 2}).factor_by_nccl);
  EXPECT_TRUE(Of({.prescale = 0.1, .pieces = 2}).native);
}

TEST(ReductionAlgorithm, AReducescatterIsNcclsWhereAllPartsAreEqual) {
  Case of = {.pieces = 2, .kind = OpKind::kReducescatter, .counts = {5, 5, 5, 5, 2, 2, 2, 2}};
  EXPECT_TRUE(Of(of).native);
  of.prescale = 0.5;
  EXPECT_TRUE(Of(of).factor_by_nccl);
  of.dtype = DType::kBFloat16;  // it is not packed, so nobody could multiply
  EXPECT_FALSE(Of(of).native);
  of = {.pieces = 2, .kind = OpKind::kReducescatter, .counts = {5, 5, 5, 5, 3, 2, 2, 2}};
  EXPECT_FALSE(Of(of).native);
}

TEST(ReductionAlgorithm, ALoneMemberAndRankOrderNeedNoNccl) {
  EXPECT_FALSE(Of({}, 1).native);
  EXPECT_FALSE(Of({}, 4, /*in_rank_order=*/true).native);
}

}  // namespace
}  // namespace rueda
