// What a net of 12.6 million parameters costs a rank that trains it with a strategy.
//
//     ruedarun -np 2 large_net NAME [--compression C] [--steps N] [--first-steps N] [--slow-last F]
//       [--interval-ms T] [--replicas N]
//
// NAME is a strategy's, or "none": plain torch, on each rank for itself. Trains with Adam. Rank 0
// prints, as JSON, its mean time of a step (the first ones don't count, 3) and the largest rank's
// peak memory from the net's making on. --slow-last: the last rank takes F times as long for a
// step, by sleeping. --interval-ms: async's average_interval_ms. --replicas: dp's, each with a
// batch like a rank's.
#include <rueda/strategy.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "examples/compare/memory_meter.h"

namespace hvd = rueda::libtorch;

namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// 50 MB, and with gradients and Adam's two moments four times that.
constexpr int kLayers = 12;
constexpr int64_t kWidth = 1024;
constexpr int64_t kBatch = 8;
// A layer.
constexpr int64_t kBucketBytes = (kWidth + 1) * kWidth * 4;

struct Arguments {
  std::string name;
  std::string compression;
  int steps = 3;
  int first_steps = 3;
  int replicas = 0;  // 0: two, which share a batch
  double slow_last = 1;
  double interval_ms = 0;
};

torch::Tensor LossOf(const torch::Tensor& output) {
  return output.square().mean();
}

// The mean seconds of a step.
double Train(const Arguments& arguments) {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::Tanh());
  }
  torch::optim::Adam adam(net->parameters(), 1e-4);
  std::unique_ptr<hvd::Strategy> strategy;
  if (arguments.name != "none") {
    strategy = hvd::make_strategy(arguments.name, net, adam,
                                  {.compression = arguments.compression,
                                   .warmup_steps = 1,
                                   .replicas = arguments.replicas > 0 ? arguments.replicas : 2,
                                   .bucket_bytes = kBucketBytes,
                                   .average_interval_ms = arguments.interval_ms});
  }
  // As many rows in a step with all of them.
  const bool has_own = strategy == nullptr || hvd::has_own_batches(arguments.name);
  const int batches = has_own ? std::max(arguments.replicas, 1) : hvd::size();
  const torch::Tensor x = torch::ones({kBatch * batches, kWidth});
  const bool slow = arguments.slow_last > 1 && hvd::rank() == hvd::size() - 1;
  double seconds = 0;
  for (int step = 0; step < arguments.first_steps + arguments.steps; ++step) {
    const Clock::time_point begin = Clock::now();
    if (strategy != nullptr) {
      strategy->zero_grad();
      strategy->backward(LossOf(strategy->forward(x)));
      strategy->step();
    } else {
      adam.zero_grad();
      LossOf(net->forward(x)).backward();
      adam.step();
    }
    const Seconds taken = Clock::now() - begin;
    if (slow) std::this_thread::sleep_for(taken * (arguments.slow_last - 1));
    if (step >= arguments.first_steps) seconds += taken.count();
  }
  if (arguments.name == "async") strategy->finish();
  return seconds / arguments.steps;
}

int Run(const Arguments& arguments) {
  compare::StartMemoryMeter();
  hvd::init();
  torch::set_num_threads(1);
  compare::ResetPeak();
  const double seconds = Train(arguments);
  const torch::Tensor peak = hvd::allreduce(
      torch::tensor(static_cast<double>(compare::PeakBytes())), {.name = "peak", .op = hvd::Max});
  if (hvd::rank() == 0) {
    std::printf("{\"strategy\": \"%s\", \"ranks\": %d, \"step_ms\": %.3f, \"peak_bytes\": %.0f}\n",
                arguments.name.c_str(), hvd::size(), 1e3 * seconds, peak.item<double>());
    std::fflush(stdout);
  }
  hvd::shutdown();
  return 0;
}

// False: they are not as they should be.
bool Parse(int argc, char** argv, Arguments* arguments) {
  if (argc < 2 || argc % 2 != 0) return false;
  arguments->name = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string option = argv[i];
    char* end = argv[i + 1];
    if (option == "--compression") {
      arguments->compression = argv[i + 1];
      continue;
    }
    const double number = std::strtod(argv[i + 1], &end);
    if (end == argv[i + 1] || *end != '\0' || number < 0) return false;
    if (option == "--steps" && number >= 1) {
      arguments->steps = static_cast<int>(number);
    } else if (option == "--first-steps") {
      arguments->first_steps = static_cast<int>(number);
    } else if (option == "--replicas" && number >= 1) {
      arguments->replicas = static_cast<int>(number);
    } else if (option == "--slow-last" && number >= 1) {
      arguments->slow_last = number;
    } else if (option == "--interval-ms") {
      arguments->interval_ms = number;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: ruedarun -np N large_net NAME [--compression C] [--steps N] "
                 "[--first-steps N] [--slow-last F] [--interval-ms T] [--replicas N]; NAME is a "
                 "strategy or 'none'\n");
    return 2;
  }
  try {
    return Run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "large_net: %s\n", error.what());
    return 1;
  }
}
