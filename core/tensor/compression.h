// How a reduction's tensors are compressed on their way. Values. PURE
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/traits.h"

namespace rueda {

// "fp16", "topk:0.01", "int8,no_feedback", as rueda.h has it under `compressor`; "" and "none" are
// none. INVALID_ARGUMENT says what is wrong and what there is.
absl::StatusOr<Compression> ParseCompression(absl::string_view text);

// Whether ParseCompression could have given it: for what comes over the wire.
bool IsValid(const Compression& compression);

// What can be compressed: INVALID_ARGUMENT with the reason for anything but a sum or average of
// float32, float16 or bfloat16 by allreduce or reducescatter.
absl::Status CheckCompressible(const Compression& compression, OpKind kind, ReduceOp op,
                               DType dtype);

}  // namespace rueda
