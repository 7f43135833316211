// Operations for the tests of communicators.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "ops/backend/communicator.h"

namespace rueda {

inline Collective BarrierOf(uint32_t digest = 0) {
  Collective collective;
  collective.digest = digest;
  return collective;
}

// With a digest of its size.
inline Collective AllreduceOf(absl::Span<const Piece> pieces, DType dtype,
                              ReduceOp op = ReduceOp::kSum) {
  Collective collective;
  collective.kind = OpKind::kAllreduce;
  collective.dtype = dtype;
  collective.reduce_op = op;
  collective.pieces = pieces;
  for (const Piece& piece : pieces) collective.elements += piece.elements;
  collective.digest = static_cast<uint32_t>(collective.elements) + 1;
  return collective;
}

}  // namespace rueda
