// Which tensors a compressor takes.
#pragma once

#include <ATen/core/Tensor.h>

namespace rueda::libtorch {

inline bool IsCompressible(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return !tensor.is_sparse() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

}  // namespace rueda::libtorch
