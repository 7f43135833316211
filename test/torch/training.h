// A small net, its data, and how replicas are compared.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::test {

constexpr int kBatch = 8;  // samples of a rank in a step
constexpr int kSteps = 20;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

struct Samples {
  torch::Tensor x, y;
};

// What `ranks` ranks see in a step, one after the other.
inline Samples Batch(int step, int ranks) {
  torch::manual_seed(1000 + step);
  const torch::Tensor x = torch::randn({ranks * kBatch, 6});
  return {x, x.narrow(1, 0, 3).sin()};
}

inline Samples Shard(const Samples& all, int rank) {
  return {all.x.narrow(0, rank * kBatch, kBatch), all.y.narrow(0, rank * kBatch, kBatch)};
}

inline torch::Tensor Loss(const Net& net, const Samples& samples) {
  return torch::mse_loss(net.ptr()->forward(samples.x), samples.y);
}

inline torch::Tensor Flat(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : module.parameters()) {
    parts.push_back(parameter.detach().reshape({-1}));
  }
  return torch::cat(parts);
}

// A net whose weights are those of `from`.
inline Net CopyOf(const Net& from) {
  Net net;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    net->parameters()[i].copy_(from->parameters()[i]);
  }
  return net;
}

// Whether all ranks have the same bits.
inline bool ReplicasEqual(const torch::Tensor& flat) {
  const torch::Tensor all =
      libtorch::allgather(flat.reshape({1, -1}).contiguous(), {.name = "replicas"});
  for (int rank = 1; rank < libtorch::size(); ++rank) {
    if (std::memcmp(all[rank].data_ptr(), all[0].data_ptr(), flat.nbytes()) != 0) return false;
  }
  return true;
}

inline torch::optim::SGDOptions Momentum(double lr = 0.1) {
  return torch::optim::SGDOptions(lr).momentum(0.9);
}

inline double Distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace rueda::test
