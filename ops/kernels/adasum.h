// The two steps of Adasum (arXiv 2006.02924) over elements in memory. Any thread.
//
// Adasum of two vectors is (1 - xy / 2xx) x + (1 - xy / 2yy) y, where xy is their dot product: the
// sum where they are orthogonal, the average where they are parallel. Which vectors are combined,
// and with what factors, is the caller's business: dot products first, over all of a vector's
// pieces, then the combination. As in reduce.h results don't depend on instructions or alignment.
//
// float16, bfloat16, float32 and float64; others are the caller's bug: RUEDA_CHECK.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace rueda::kernels {

// Adds the n(n+1)/2 dot products of n vectors of `count` elements to `products`, row by row of the
// upper triangle: 0 with 0, 0 with 1, ..., 1 with 1, ... Multiplied and summed in float64, in an
// order that depends on `count` alone; a NaN is the one of reduce.h.
void AddProducts(DType dtype, absl::Span<const void* const> vectors, int64_t count,
                 double* products);

// destination[i] = the sum over r, in order, of factors[r] * sources[r][i], for i < count: in
// float32 (float64 for float64), to which the factors are rounded, and rounded once. At least one
// source; `destination` may equal any of them, but not overlap otherwise.
void Combine(DType dtype, absl::Span<const void* const> sources, absl::Span<const double> factors,
             void* destination, int64_t count);

}  // namespace rueda::kernels
