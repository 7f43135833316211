// A model that is nothing but its parameters.
#pragma once

#include <torch/torch.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::test {

// Parameters w0, w1, ... of these sizes, all zeros.
struct Weights {
  explicit Weights(std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) {
      named.emplace_back("w" + std::to_string(named.size()),
                         torch::zeros(size, torch::requires_grad()));
    }
  }
  std::vector<torch::Tensor> all() const {
    std::vector<torch::Tensor> tensors;
    for (const auto& [name, tensor] : named) tensors.push_back(tensor);
    return tensors;
  }
  torch::Tensor& operator[](size_t i) { return named[i].second; }
  libtorch::NamedTensors named;
};

inline float First(const torch::Tensor& tensor) {
  return tensor.reshape({-1})[0].item<float>();
}

}  // namespace rueda::test
