// An ordinary LibTorch training loop, and what becomes of it with Rueda. docs/guides/libtorch.md
// and docs/guides/strategies.md quote it.
//
//     ruedarun -np 2 torch_loop
//
// Every rank trains one net by itself on whole batches, and others together with the other ranks on
// its part of each batch. All must come to the same weights; exit status 0 says that they did.
#include <rueda/strategy.hpp>
#include <rueda/torch.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

namespace hvd = rueda::libtorch;

namespace {

constexpr int kSteps = 20;
constexpr int64_t kBatch = 24;  // samples of a step; ranks share them evenly

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(4, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 2));
};
TORCH_MODULE(Net);

struct Samples {
  torch::Tensor x, y;
};

// The `part`-th of `parts` equal parts of a step's samples.
Samples Batch(int step, int part, int parts) {
  torch::manual_seed(step);
  const torch::Tensor x = torch::randn({kBatch, 4});
  const int64_t size = kBatch / parts;
  const torch::Tensor mine = x.narrow(0, part * size, size);
  return {mine, mine.narrow(1, 0, 2).sin()};
}

void TrainAlone(Net& net) {
  torch::optim::Adam adam(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const Samples batch = Batch(step, 0, 1);
    adam.zero_grad();
    torch::mse_loss(net(batch.x), batch.y).backward();
    adam.step();
  }
}

void TrainTogether(Net& net) {
  torch::optim::Adam adam(net->parameters(), 0.01);
  hvd::broadcast_parameters(*net, 0);
  hvd::broadcast_optimizer_state(adam, 0);
  hvd::DistributedOptimizer optimizer(adam, net->named_parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Samples batch = Batch(step, hvd::rank(), hvd::size());
    optimizer.zero_grad();
    torch::mse_loss(net(batch.x), batch.y).backward();
    optimizer.step();
  }
}

// The same again, by a strategy that is chosen by its name.
void TrainByName(Net& net, const std::string& name) {
  torch::optim::Adam adam(net->parameters(), 0.01);
  auto strategy = hvd::make_strategy(name, net, adam);
  for (int step = 0; step < kSteps; ++step) {
    const Samples batch = Batch(step, hvd::rank(), hvd::size());
    strategy->zero_grad();
    strategy->backward(torch::mse_loss(strategy->forward(batch.x), batch.y));
    strategy->step();
  }
  strategy->finish();
}

// One more step of that kind, with the averaged gradients clipped.
void ClippedStep(Net& net, hvd::DistributedOptimizer& optimizer, const Samples& batch) {
  optimizer.zero_grad();
  torch::mse_loss(net(batch.x), batch.y).backward();
  optimizer.synchronize();
  torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
  optimizer.step();
}

// Four batches a step, added up before the ranks' sums are averaged.
void StepOfFourBatches(Net& net, torch::optim::Optimizer& sgd, const Samples& batch) {
  hvd::DistributedOptimizer optimizer(sgd, net->named_parameters(),
                                      {.backward_passes_per_step = 4});
  optimizer.zero_grad();
  for (int pass = 0; pass < 4; ++pass) {
    (torch::mse_loss(net(batch.x), batch.y) / 4).backward();
  }
  optimizer.step();
}

// What disagrees fails, on all ranks, and what agrees goes on.
bool DisagreementIsAnError() {
  try {
    hvd::allreduce(torch::zeros({hvd::rank() + 1}), {.name = "of different shapes"});
  } catch (const rueda::Error& error) {
    if (hvd::rank() == 0) std::printf("as expected: %s\n", error.what());
    return error.status() == RUEDA_INVALID_ARGUMENT && !error.recoverable();
  }
  return hvd::size() == 1;
}

torch::Tensor Weights(const Net& net) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : net->parameters()) parts.push_back(parameter.flatten());
  return torch::cat(parts).detach();
}

bool Run() {
  if (kBatch % hvd::size() != 0) throw std::runtime_error("takes 1, 2, 3, 4, 6, ... ranks");
  torch::manual_seed(1);
  Net alone;
  torch::manual_seed(1 + hvd::rank());  // all take rank 0's weights
  Net together;
  torch::manual_seed(1 + hvd::rank());
  Net sharded;
  TrainAlone(alone);
  TrainTogether(together);
  double distance = (Weights(alone) - Weights(together)).abs().max().item<double>();
  TrainByName(sharded, "sharded");
  distance = std::max(distance, (Weights(alone) - Weights(sharded)).abs().max().item<double>());
  const torch::Tensor all = hvd::allgather(Weights(together).unsqueeze(0), {.name = "weights"});
  bool equal = all.eq(all[0]).all().item<bool>();
  {
    torch::optim::SGD sgd(together->parameters(), 0.1);
    hvd::DistributedOptimizer optimizer(sgd, together->named_parameters());
    ClippedStep(together, optimizer, Batch(0, hvd::rank(), hvd::size()));
  }
  torch::optim::SGD sgd(together->parameters(), 0.1);
  StepOfFourBatches(together, sgd, Batch(1, hvd::rank(), hvd::size()));
  const torch::Tensor after = hvd::allgather(Weights(together).unsqueeze(0), {.name = "weights"});
  equal = equal && after.eq(after[0]).all().item<bool>();
  if (hvd::rank() == 0) {
    std::printf("%d ranks, %d steps: at most %.1e from one process; replicas %s\n", hvd::size(),
                kSteps, distance, equal ? "equal" : "DIFFER");
  }
  return DisagreementIsAnError() && equal && distance < 1e-5;
}

}  // namespace

int main() {
  try {
    hvd::init();
    const bool ok = Run();
    hvd::shutdown();
    return ok ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_loop: %s\n", error.what());
    return 1;
  }
}
