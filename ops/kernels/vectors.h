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
  Scaling scaling;  // floating types only: the integers' is in reduce.cc
};

// `op` is not kNone.
void ReduceVectors(DType dtype, ReduceOp op, const ReduceArgs& args);

void WidenVectors(DType from, const void* source, float* destination, size_t count);
void NarrowVectors(DType to, const float* source, void* destination, size_t count);

}  // namespace rueda::kernels
