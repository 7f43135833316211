// Element-wise arithmetic on the CPU: reduction, scaling, conversion, for every dtype. The vector
// instructions are chosen when the program runs. Any thread.
//
// A result depends on nothing but its inputs and their order, not on the instructions either:
// operands are combined in the order given, floats narrower than float32 are combined in float32
// and rounded once, to nearest even, nothing is contracted into fused multiply-adds, and a NaN that
// is computed is always the same one (quiet, positive, no payload), of complex numbers part by
// part.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/traits.h"

namespace rueda::kernels {

// Which (dtype, op) pairs are refused: INVALID_ARGUMENT with the reason. Averages of bool, min and
// max of complex types, bitwise operations on anything but integers and bool, adasum of anything
// but float16, bfloat16, float32 and float64, and kNone.
absl::Status CheckReducible(DType dtype, ReduceOp op);

// An average of integers of 8 to 32 bits: its sum must not wrap around before it is divided.
bool IsExactAverage(DType dtype, ReduceOp op);

// destination[i] = finish(op over r, in order, of prescaled sources[r][i]), for i < count.
//
// A factor or divisor of 1 is skipped. Floating types: prescale multiplies each operand, then
// divisor divides the result, then postscale multiplies it, all in the type that is summed in
// (float64 for float64, else float32). Complex types: the same for both parts, in the parts' type.
// Integers: the factors apply in float64 and the product truncates towards zero, saturating at the
// type's range (0 if a factor is not finite and the product is NaN); the divisor divides the sum
// towards zero. bool: no scaling, whatever stands there.
//
// kAverage and kAverageLive sum; the divisor is the caller's. Integers wrap around, but for exact
// averages: the divisor divides their exact sum. bool: any non-zero byte is true, sum, max and bor
// are `or`, product, min and band are `and`, results are 0 or 1. min and max: NaN if any operand is
// NaN; of equal operands the earlier one, so that of -0 and +0 the one that comes first in
// `sources` is the result. A product of complex numbers is (ac - bd) + (ad + bc)i, each step
// rounded. What is too large for float8_e4m3fn, which has no infinity, becomes its NaN and keeps
// its sign.
//
// `sources` holds at least one pointer; one alone without scaling is copied bit by bit (bool is
// normalised still). `destination` may equal any of them, also several, but not overlap otherwise.
// No alignment is assumed. Pairs that CheckReducible refuses, adasum (see adasum.h), a negative
// count and a divisor below 1 are the caller's bugs: RUEDA_CHECK.
void Reduce(DType dtype, ReduceOp op, absl::Span<const void* const> sources, void* destination,
            int64_t count, const Scaling& scaling);

// Fills `destination` with what changes nothing as an operand of `op`: 0 for sums, averages, bor,
// bxor and adasum, 1 for products, all ones for band, for min the type's largest value (infinity
// where there is one), for max its smallest. A pair that CheckReducible takes.
void FillNeutral(DType dtype, ReduceOp op, void* destination, int64_t count);

// Widens a type that sums in float32 to it, exactly; NaN stays NaN. The buffers don't overlap.
void ToFloat32(DType from, const void* source, float* destination, int64_t count);
// Rounds float32 to such a type, to nearest, ties to even; a NaN becomes the one above. What is too
// large becomes infinity; of float8_e4m3fn (from 464 on, excluding that) NaN with the value's sign.
// The buffers don't overlap.
void FromFloat32(DType to, const float* source, void* destination, int64_t count);

// How elements travel in a reduction that combines some operands here, which makes a partial, and
// the partials of all places there: in a type that holds what is between. float32 for floating
// types that are narrower; for exact averages the narrowest integer that holds as many operands of
// any value; else the tensors' own.
struct Wire {
  DType dtype = DType::kUInt8;  // the tensors'
  DType type = DType::kUInt8;
  // The operation's factors: of the call of Reduce that makes a partial, and of Combine. Integers
  // have theirs in the tensors' type: Widen multiplies by the first, Combine by the last.
  Scaling before, after;
  double first = 1, last = 1;

  bool widens() const { return type != dtype; }
};
// `operands`: at most so many.
Wire WireOf(DType dtype, ReduceOp op, const Scaling& scaling, int64_t operands);
// The same with half the bytes for narrow floating types, at the price of one more rounding, of the
// partials: those of 16 bits travel as themselves, those of 8 as bfloat16. `together`: a partial
// has at most so many operands. With one it is the operand itself, and nothing is rounded but the
// result. An average's partial is divided by them, so that it fits where the operands do.
Wire NarrowWireOf(DType dtype, ReduceOp op, const Scaling& scaling, int64_t operands,
                  int64_t together);

// To the type that travels, of a wire that widens. The buffers don't overlap.
void Widen(const Wire& wire, const void* source, void* destination, int64_t count);
// The result of partials, which are as they travelled. `destination` may equal one of them where
// the wire does not widen, and does not overlap them otherwise.
void Combine(const Wire& wire, ReduceOp op, absl::Span<const void* const> partials,
             void* destination, int64_t count);
// Of an element of a type that is widened.
inline constexpr size_t kNarrowBytesMax = sizeof(uint32_t);

}  // namespace rueda::kernels
