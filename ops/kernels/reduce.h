// Element-wise arithmetic on the CPU: reduction, scaling, conversion, for every dtype. The vector
// instructions are chosen when the program runs. Any thread.
//
// A result depends on nothing but its inputs and their order, not on the instructions either:
// operands are combined in the order given, half types are summed in float32 and rounded once, to
// nearest even, nothing is contracted into fused multiply-adds, and a NaN that is computed is
// always the same one (quiet, positive, no payload).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/tensor/signature.h"

namespace rueda::kernels {

// What happens to each operand before and to the result after the reduction; a neutral step is
// skipped. Floating types: prescale multiplies each operand, then divisor divides the result, then
// postscale multiplies it, all in the type that is summed in (float64 for float64, else float32).
// Integers: the factors apply in float64 and the product truncates towards zero, saturating at the
// type's range (0 if a factor is not finite and the product is NaN); the divisor divides the sum,
// which may have wrapped around, as integers do, towards zero. bool: no scaling, whatever stands
// here.
struct Scaling {
  double prescale = 1;
  double postscale = 1;
  int64_t divisor = 1;  // at least 1; average: the number of members

  bool none() const { return prescale == 1 && postscale == 1 && divisor == 1; }
};

// Which (dtype, op) pairs are refused: INVALID_ARGUMENT with the reason (average of bool; kNone).
absl::Status CheckReducible(DType dtype, ReduceOp op);

// destination[i] = finish(op over r, in order, of prescaled sources[r][i]), for i < count.
//
// kAverage sums; the divisor is the caller's. Integers wrap around. bool: any non-zero byte is
// true, sum and max are `or`, product and min are `and`, results are 0 or 1. min and max: NaN if
// any operand is NaN; of equal operands the earlier one, so that of -0 and +0 the one that comes
// first in `sources` is the result.
//
// `sources` holds at least one pointer; one alone without scaling is copied bit by bit (bool is
// normalised still). `destination` may equal any of them, also several, but not overlap otherwise.
// No alignment is assumed. Pairs that CheckReducible refuses, a negative count and a divisor below
// 1 are the caller's bugs: RUEDA_CHECK.
void Reduce(DType dtype, ReduceOp op, absl::Span<const void* const> sources, void* destination,
            int64_t count, const Scaling& scaling);

// Widens float16 or bfloat16 to float32, exactly; NaN stays NaN. The buffers don't overlap.
void ToFloat32(DType from, const void* source, float* destination, int64_t count);
// Rounds float32 to float16 or bfloat16, to nearest, ties to even, overflow to infinity; a NaN
// becomes the one above. The buffers don't overlap.
void FromFloat32(DType to, const float* source, void* destination, int64_t count);

}  // namespace rueda::kernels
