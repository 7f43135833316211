// A process of the elastic LibTorch jobs that test/clusters/elastic_test.py starts: trains a small
// model with Adam, says in which memberships, and at the end `done` and a digest of the weights,
// which all ranks have alike.
//
//   torch_elastic_helper STEPS                  with a DistributedOptimizer
//   torch_elastic_helper --strategy NAME FOLDER with a strategy, until there is FOLDER/end
//
// With a strategy it writes what Strategy::save has to say to files of the folder: before each
// commit, and before it looks for other ranks between commits, at-MEMBERSHIP-STEP, and at the
// beginning of a membership begin-MEMBERSHIP-STEP.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "rueda/torch_elastic.hpp"

namespace hvd = rueda::libtorch;

namespace {

torch::nn::Sequential MakeModel() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 33), torch::nn::Tanh(),
                               torch::nn::Linear(33, 1));
}

at::Tensor BatchOf(int step, int rank) {
  torch::manual_seed(static_cast<uint64_t>(step * 64 + rank));
  return torch::randn({8, 16});
}

at::Tensor LossOf(const at::Tensor& output, const at::Tensor& x) {
  return torch::nn::functional::mse_loss(output, x.slice(1, 0, 1));
}

void SayWhere(int step) {
  const rueda_membership info = hvd::elastic::membership_info();
  std::printf("membership %llu rank %d of %d survivors %d step %d pid %d at %.1f\n",
              static_cast<unsigned long long>(info.number), info.rank, info.ranks, info.survivors,
              step, getpid(), 0.0);
  std::fflush(stdout);
}

void SayDone(const torch::nn::Module& model) {
  double sum = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    sum += parameter.to(at::kDouble).abs().sum().item<double>();
  }
  std::printf("done %a after training\n", sum);
}

void Pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

int TrainWithOptimizer(int steps) {
  torch::nn::Sequential model = MakeModel();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  int step = 0;
  hvd::elastic::State state(*model, adam, step);
  float loss_at_first = 0, loss_at_last = 0;
  const bool wanted = hvd::elastic::run(state, [&] {
    hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
    for (bool is_first = true; step < steps; is_first = false) {
      const at::Tensor x = BatchOf(step, hvd::rank());
      optimizer.zero_grad();
      const at::Tensor loss = LossOf(model->forward(x), x);
      loss.backward();
      optimizer.step();
      loss_at_last = loss.item<float>();
      if (step++ == 0) loss_at_first = loss_at_last;
      if (is_first) SayWhere(step);
      Pause();
      if (step % 5 == 0) state.commit();
    }
  });
  if (!wanted) return 0;
  SayDone(*model);
  if (loss_at_first != 0) std::printf("loss from %g to %g\n", loss_at_first, loss_at_last);
  hvd::shutdown();
  return 0;
}

int TrainWithStrategy(const std::string& name, const std::string& folder) {
  const torch::nn::Sequential model = MakeModel();
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  int step = 0;
  bool is_over = false;
  hvd::elastic::StrategyState state(
      {.strategy = name, .strategy_options = {.warmup_steps = 7, .local_steps = 3}}, model, adam,
      step, is_over);
  const bool wanted = hvd::elastic::run(state, [&] {
    hvd::Strategy& strategy = state.strategy();
    const auto write = [&](const std::string& what) {
      strategy.save(folder + "/" + what + "-" + std::to_string(rueda::membership()) + "-" +
                    std::to_string(step));
    };
    write("begin");
    for (bool is_first = true; !is_over; is_first = false) {
      const at::Tensor x = BatchOf(step, hvd::has_own_batches(name) ? hvd::rank() : 0);
      strategy.zero_grad();
      strategy.backward(LossOf(strategy.forward(x), x));
      strategy.step();
      ++step;
      if (is_first) SayWhere(step);
      Pause();
      if (step % 2 != 0) continue;
      write("at");
      if (step % 4 != 0) {
        state.check_host_updates();
        continue;
      }
      const int own = access((folder + "/end").c_str(), F_OK) == 0 ? 1 : 0;
      is_over =
          hvd::allreduce(torch::tensor(own), {.name = "end", .op = hvd::Max}).item<int>() != 0;
      state.commit();
    }
    strategy.finish();
  });
  if (!wanted) {
    std::printf("dismissed\n");
    return 0;
  }
  SayDone(*model);
  hvd::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    hvd::init();
    return argc > 3 ? TrainWithStrategy(argv[2], argv[3]) : TrainWithOptimizer(std::atoi(argv[1]));
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 3;
  }
}
