// The vectorised half of this folder, compiled once per instruction set; the best one that the
// machine has is chosen at the first call. Private to ops/kernels: reduce.h is the door, and has
// the contract.
#pragma once

#include <cstddef>

#include "ops/kernels/reduce.h"

namespace rueda::kernels {

struct ReduceArgs {
  const void* const* sources = nullptr;
  size_t source_count = 0;  // at least 1
  void* destination = nullptr;
  size_t count = 0;
  Scaling scaling;  // floating types and complex only: the integers' is in reduce.cc
  const double* weights = nullptr;  // one for each source, instead of `scaling.prescale`
};

// A pair that Reduce takes.
void ReduceVectors(DType dtype, ReduceOp op, const ReduceArgs& args);

void WidenVectors(DType from, const void* source, float* destination, size_t count);
void NarrowVectors(DType to, const float* source, void* destination, size_t count);

// As AddProducts in adasum.h.
void AddVectorProducts(DType dtype, absl::Span<const void* const> vectors, size_t count,
                       double* products);

}  // namespace rueda::kernels
