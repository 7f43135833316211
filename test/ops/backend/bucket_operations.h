// Operations for the tests of communicators.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "ops/backend/communicator.h"

namespace rueda {

inline BucketOperation BarrierOf(uint32_t digest = 0) {
  BucketOperation operation;
  operation.digest = digest;
  return operation;
}

// With a digest of its size.
inline BucketOperation AllreduceOf(absl::Span<const Piece> pieces, DType dtype,
                                   ReduceOp op = ReduceOp::kSum) {
  BucketOperation operation;
  operation.kind = OpKind::kAllreduce;
  operation.dtype = dtype;
  operation.reduce_op = op;
  operation.pieces = pieces;
  for (const Piece& piece : pieces) operation.elements += piece.elements;
  operation.digest = static_cast<uint32_t>(operation.elements) + 1;
  return operation;
}

}  // namespace rueda
