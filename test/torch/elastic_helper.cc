// A process of the elastic LibTorch job that test/clusters/elastic_test.py starts: trains a small
// model with Adam, says in which memberships, and at the end `done` and a digest of the weights,
// which all ranks have alike.
//
//   torch_elastic_helper STEPS
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
#include <thread>

#include "rueda/torch_elastic.hpp"

namespace hvd = rueda::libtorch;

int main(int, char** argv) {
  const int steps = std::atoi(argv[1]);
  at::set_num_threads(1);
  hvd::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  int step = 0;
  hvd::elastic::State state(*model, adam, step);
  float loss_at_first = 0, loss_at_last = 0;
  const bool wanted = hvd::elastic::run(state, [&] {
    const rueda_membership info = hvd::elastic::membership_info();
    hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
    for (bool is_first = true; step < steps; is_first = false) {
      torch::manual_seed(static_cast<uint64_t>(step * hvd::size() + hvd::rank()));
      const at::Tensor x = torch::randn({8, 16});
      optimizer.zero_grad();
      const at::Tensor loss = torch::nn::functional::mse_loss(model->forward(x), x.slice(1, 0, 1));
      loss.backward();
      optimizer.step();
      loss_at_last = loss.item<float>();
      if (step++ == 0) loss_at_first = loss_at_last;
      if (is_first) {
        std::printf("membership %llu rank %d of %d survivors %d step %d pid %d at %.1f\n",
                    static_cast<unsigned long long>(info.number), info.rank, info.ranks,
                    info.survivors, step, getpid(), 0.0);
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (step % 5 == 0) state.commit();
    }
  });
  if (!wanted) return 0;
  double sum = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    sum += parameter.to(at::kDouble).abs().sum().item<double>();
  }
  std::printf("done %a after training\n", sum);
  if (loss_at_first != 0) std::printf("loss from %g to %g\n", loss_at_first, loss_at_last);
  hvd::shutdown();
  return 0;
}
