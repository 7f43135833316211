// How much memory training takes: every byte of tensors, wherever they are allocated.
#include <torch/torch.h>

#include <cstdio>

#include "examples/compare/memory_meter.h"
#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"

namespace {

namespace hvd = rueda::libtorch;
using namespace rueda::test;

// 24 layers with 2048 x 2048 weights: 100 million parameters.
constexpr int kLayers = 24;
constexpr int64_t kWidth = 2048;

torch::nn::Sequential MakeNet() {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

torch::Tensor LossOf(const torch::Tensor& output) {
  return output.square().mean();
}

double PeakOfOneProcess() {
  compare::ResetPeak();
  torch::nn::Sequential net = MakeNet();
  torch::optim::Adam adam(net->parameters(), 1e-4);
  LossOf(net->forward(torch::ones({2, kWidth}))).backward();
  adam.step();
  return static_cast<double>(compare::PeakBytes());
}

double PeakOf(const std::string& name, const hvd::StrategyOptions& options, int steps) {
  compare::ResetPeak();
  torch::nn::Sequential net = MakeNet();
  torch::optim::Adam adam(net->parameters(), 1e-4);
  const auto strategy = hvd::make_strategy(name, net, adam, options);
  for (int step = 0; step < steps; ++step) {
    strategy->zero_grad();
    strategy->backward(LossOf(strategy->forward(torch::ones({2, kWidth}))));
    strategy->step();
  }
  return static_cast<double>(compare::PeakBytes());
}

// Beginning with the whole model that each rank makes.
RANKS_TEST(Memory, FsdpTakesThreeFifthsOfOneProcessOnTwoRanks, 2) {
  torch::set_num_threads(1);
  compare::StartMemoryMeter();
  const double alone = PeakOfOneProcess();
  EXPECT_GT(alone, 4 * 4.0 * kLayers * kWidth * kWidth) << "parameters, gradients, two moments";
  const double fsdp = PeakOf("fsdp", {}, 2) / alone;
  // What the bound is for: parameters that are not shared out don't keep it.
  const double stage2 = PeakOf("sharded", {.zero_stage = 2}, 1) / alone;
  const double stage1 = PeakOf("sharded", {.zero_stage = 1}, 1) / alone;
  std::printf("of one process's %.0f MB: fsdp %.3f, stage 2 %.3f, stage 1 %.3f\n", alone / 1e6,
              fsdp, stage2, stage1);
  EXPECT_LE(fsdp, 0.6);
  EXPECT_GT(fsdp, 0.5) << "nothing was counted";
  EXPECT_GT(stage2, 0.6);
  EXPECT_LT(stage2, stage1);
}

}  // namespace
