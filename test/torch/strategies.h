// Training with a strategy against training in one process.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "rueda/strategy.hpp"
#include "test/torch/training.h"

namespace rueda::test {

// One step by these samples.
inline void TrainStep(libtorch::Strategy& strategy, const Samples& samples) {
  strategy.zero_grad();
  strategy.backward(torch::mse_loss(strategy.forward(samples.x), samples.y));
  strategy.step();
}

struct Comparison {
  int equal_steps = 0;  // after which the replicas had the same bits
  double distance = 0;  // of the parameters, at the end, from one process on all batches
};

// Trains a net with momentum for kSteps, each of `passes` micro-batches, and another one on all
// ranks' batches together. Each rank begins with weights of its own.
inline Comparison CompareWithOneProcess(const std::string& name,
                                        const libtorch::StrategyOptions& options, int passes) {
  torch::manual_seed(libtorch::rank());
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = libtorch::make_strategy(name, net, sgd, options);
  Net reference = CopyOf(net);
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  Comparison comparison;
  for (int step = 0; step < kSteps; ++step) {
    strategy->zero_grad();
    reference_sgd.zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const Samples all = Batch(step * passes + pass, libtorch::size());
      (Loss(reference, all) / passes).backward();
      const Samples own = Shard(all, libtorch::rank());
      const torch::Tensor loss = torch::mse_loss(strategy->forward(own.x), own.y);
      strategy->backward(loss / passes, pass + 1 == passes);
    }
    strategy->step();
    reference_sgd.step();
    comparison.equal_steps += ReplicasEqual(Flat(*net));
  }
  strategy->finish();
  comparison.distance = Distance(Flat(*net), Flat(*reference));
  return comparison;
}

}  // namespace rueda::test
