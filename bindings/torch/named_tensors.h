// A module's tensors by name.
#pragma once

#include <torch/nn/module.h>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

inline void Append(const torch::OrderedDict<std::string, at::Tensor>& from, NamedTensors* to) {
  for (const auto& item : from) to->emplace_back(item.key(), item.value());
}

// Parameters, then buffers: what a checkpoint and a replica have.
inline NamedTensors TensorsOf(const torch::nn::Module& module) {
  NamedTensors tensors;
  Append(module.named_parameters(), &tensors);
  Append(module.named_buffers(), &tensors);
  return tensors;
}

}  // namespace rueda::libtorch
