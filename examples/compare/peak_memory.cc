// How much memory a rank needs to train a net with a strategy.
//
//     ruedarun -np 2 peak_memory NAME [COMPRESSION]
//
// NAME is a strategy's, or "none": plain torch, on each rank for itself. A few steps with Adam of a
// net that is large enough for its parameters to count, from its making on. Rank 0 prints the
// largest rank's peak, as JSON.
#include <rueda/strategy.hpp>

#include <torch/torch.h>

#include <cstdio>

#include "examples/compare/memory_meter.h"

namespace hvd = rueda::libtorch;

namespace {

// 12.6 million parameters: 50 MB, and with gradients and Adam's two moments four times that.
constexpr int kLayers = 12;
constexpr int64_t kWidth = 1024;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 3;
// A layer.
constexpr int64_t kBucketBytes = (kWidth + 1) * kWidth * 4;

torch::Tensor LossOf(const torch::Tensor& output) {
  return output.square().mean();
}

void Train(const std::string& name, const std::string& compression) {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::Tanh());
  }
  torch::optim::Adam adam(net->parameters(), 1e-4);
  const torch::Tensor x = torch::ones({kBatch, kWidth});
  if (name == "none") {
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      LossOf(net->forward(x)).backward();
      adam.step();
    }
    return;
  }
  const auto strategy = hvd::make_strategy(
      name, net, adam,
      {.compression = compression, .warmup_steps = 1, .bucket_bytes = kBucketBytes});
  for (int step = 0; step < kSteps; ++step) {
    strategy->zero_grad();
    strategy->backward(LossOf(strategy->forward(x)));
    strategy->step();
  }
}

int Run(const std::string& name, const std::string& compression) {
  compare::StartMemoryMeter();
  hvd::init();
  torch::set_num_threads(1);
  compare::ResetPeak();
  Train(name, compression);
  const torch::Tensor peak =
      hvd::allreduce(torch::tensor(static_cast<double>(compare::PeakBytes())), "peak", hvd::Max);
  if (hvd::rank() == 0) {
    std::printf("{\"strategy\": \"%s\", \"ranks\": %d, \"peak_bytes\": %.0f}\n", name.c_str(),
                hvd::size(), peak.item<double>());
    std::fflush(stdout);
  }
  hvd::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr,
                 "usage: ruedarun -np N peak_memory NAME [COMPRESSION], a strategy or 'none'\n");
    return 2;
  }
  try {
    return Run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peak_memory: %s\n", error.what());
    return 1;
  }
}
