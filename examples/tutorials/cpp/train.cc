// Trains a small net on several ranks, each with its part of every batch.
//
//     ruedarun -np 2 build/train
#include <rueda/torch.hpp>

#include <torch/torch.h>

#include <cstdio>
#include <vector>

namespace hvd = rueda::libtorch;

int main() {
  hvd::init();
  torch::manual_seed(1);
  const torch::Tensor points = torch::rand({1024, 2}) * 2 - 1;
  const torch::Tensor inside = points.norm(2, 1).lt(0.7).to(torch::kLong);

  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  torch::optim::Adam adam(net->parameters(), 0.03);
  hvd::broadcast_parameters(*net, 0);
  hvd::DistributedOptimizer optimizer(adam, net->named_parameters());

  for (int epoch = 1; epoch <= 5; ++epoch) {
    torch::Tensor loss;
    for (const torch::Tensor& batch : torch::randperm(1024).split(64)) {
      const torch::Tensor mine = batch.slice(0, hvd::rank(), batch.size(0), hvd::size());
      optimizer.zero_grad();
      loss = torch::cross_entropy_loss(net->forward(points.index({mine})), inside.index({mine}));
      loss.backward();
      optimizer.step();
    }
    loss = hvd::allreduce(loss.detach(), {.name = "loss"});
    if (hvd::rank() == 0) std::printf("epoch %d: loss %.3f\n", epoch, loss.item<double>());
  }

  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : net->parameters()) parts.push_back(parameter.flatten());
  const torch::Tensor weights = torch::cat(parts).detach().unsqueeze(0);
  const torch::Tensor replicas = hvd::allgather(weights, {.name = "weights"});
  const bool equal = replicas.eq(replicas[0]).all().item<bool>();
  if (hvd::rank() == 0) std::printf("replicas equal: %s\n", equal ? "yes" : "no");
  hvd::shutdown();
}
