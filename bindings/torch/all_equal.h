// Whether all ranks have the same number: a fingerprint of what they must have alike.
#pragma once

#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>

#include <string>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

// Collective; one small operation.
inline bool AllEqual(uint64_t mine, const std::string& name, ProcessSet process_set) {
  const at::Tensor own = at::scalar_tensor(static_cast<int64_t>(mine), at::kLong).reshape({1});
  return allgather(own, {.name = name, .process_set = process_set}).eq(own).all().item<bool>();
}

}  // namespace rueda::libtorch
