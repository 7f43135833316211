// How the elements of a reduction travel between hosts. PURE
#pragma once

#include <vector>

#include "core/config/config.h"
#include "ops/backend/communicator.h"
#include "ops/kernels/reduce.h"

namespace rueda {

// The knob wire_precision.
inline bool TravelsNarrow(const Config& config) {
  return config.wire_precision == "tensor";
}

// `hosts`: HostSplit::members. `narrow`: 16-bit floating types travel as themselves, and 8-bit ones
// in 16 bits; else both in float32.
kernels::Wire CrossWire(const BucketOperation& operation, ReduceOp reduce_op,
                        const std::vector<std::vector<int>>& hosts, bool narrow);

}  // namespace rueda
