// adasum, local_sgd, diloco.
#include <torch/torch.h>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

// All ranks' nets in one process, which step by themselves; every `period` steps `combine` makes
// them one.
template <typename Combine>
torch::Tensor TrainAll(const Net& from, int steps, int period, Combine combine) {
  std::vector<Net> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> sgds;
  for (int rank = 0; rank < hvd::size(); ++rank) {
    nets.push_back(CopyOf(from));
    sgds.push_back(std::make_unique<torch::optim::SGD>(nets.back()->parameters(), Momentum()));
  }
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < hvd::size(); ++rank) {
      sgds[rank]->zero_grad();
      Loss(nets[rank], Shard(Batch(step, hvd::size()), rank)).backward();
      sgds[rank]->step();
    }
    if ((step + 1) % period == 0 || step + 1 == steps) combine(nets);
  }
  return Flat(*nets[0]);
}

void SetAll(std::vector<Net>& nets, size_t i, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  for (Net& net : nets) net->parameters()[i].copy_(value);
}

torch::Tensor Mean(std::vector<Net>& nets, size_t i) {
  torch::Tensor sum = torch::zeros_like(nets[0]->parameters()[i], torch::kDouble);
  for (Net& net : nets) sum += net->parameters()[i].detach().to(torch::kDouble);
  return sum / static_cast<double>(nets.size());
}

struct Trained {
  torch::Tensor flat;
  int equal_steps = 0;
};

Trained Train(const std::string& name, const hvd::StrategyOptions& options, Net& net, int steps) {
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy(name, net, sgd, options);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    trained.equal_steps += ReplicasEqual(Flat(*net));
  }
  strategy->finish();
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  trained.flat = Flat(*net);
  return trained;
}

RANKS_TEST(LocalSgd, IsTheMeanOfWhatRanksDoByThemselves, 2, 3) {
  torch::manual_seed(3);
  Net net;
  const Net start = CopyOf(net);
  // The last average is finish()'s.
  const Trained trained = Train("local_sgd", {.local_steps = 4}, net, 22);
  EXPECT_EQ(trained.equal_steps, 5);
  const torch::Tensor model = TrainAll(start, 22, 4, [](std::vector<Net>& nets) {
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) SetAll(nets, i, Mean(nets, i));
  });
  EXPECT_LT(Distance(trained.flat, model), 1e-5);
}

RANKS_TEST(Diloco, GivesTheMeanChangeToAnOuterOptimizer, 2, 3) {
  torch::manual_seed(3);
  Net net;
  const Net start = CopyOf(net);
  const Trained trained =
      Train("diloco", {.local_steps = 4, .outer_lr = 0.6, .outer_momentum = 0.8}, net, 20);
  EXPECT_EQ(trained.equal_steps, 5);
  const Net outer = CopyOf(start);
  torch::optim::SGD sgd(outer->parameters(),
                        torch::optim::SGDOptions(0.6).momentum(0.8).nesterov(true));
  const torch::Tensor model = TrainAll(start, 20, 4, [&](std::vector<Net>& nets) {
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      torch::Tensor parameter = outer->parameters()[i];
      parameter.mutable_grad() = parameter.detach() - Mean(nets, i).to(torch::kFloat);
    }
    sgd.step();
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      SetAll(nets, i, outer->parameters()[i].detach());
    }
  });
  EXPECT_LT(Distance(trained.flat, model), 1e-5);
}

RANKS_TEST(LocalSgd, ConvergesWithSixteenSteps, 2) {
  for (const char* name : {"local_sgd", "diloco"}) {
    torch::manual_seed(3);
    Net net;
    const double before = Loss(net, Batch(999, 1)).item<double>();
    Train(name, {.local_steps = 16}, net, 160);
    EXPECT_LT(Loss(net, Batch(999, 1)).item<double>(), before / 20) << name;
  }
}

RANKS_TEST(LocalSgd, FrozenParametersAreNotTouched, 2) {
  torch::manual_seed(3);
  Net net;
  net->hidden->weight.requires_grad_(false);
  const torch::Tensor frozen = net->hidden->weight.clone();
  const torch::Tensor moving = net->out->weight.detach().clone();
  Train("local_sgd", {.local_steps = 2}, net, 4);
  EXPECT_TRUE(net->hidden->weight.equal(frozen));
  EXPECT_FALSE(net->out->weight.detach().equal(moving));
}

// a (1 - ab / 2|a|^2) + b (1 - ab / 2|b|^2): arXiv 2006.02924, of pairs, then of pairs of pairs.
torch::Tensor AdasumOf(const std::vector<torch::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors[0];
  const auto half = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() / 2);
  const torch::Tensor a = AdasumOf({tensors.begin(), half});
  const torch::Tensor b = AdasumOf({half, tensors.end()});
  const torch::Tensor product = (a * b).sum();
  return a * (1 - product / (2 * a.square().sum())) + b * (1 - product / (2 * b.square().sum()));
}

RANKS_TEST(AdasumStrategy, CombinesTheOptimizersSteps, 2, 4) {
  torch::manual_seed(3);
  Net net;
  const Net start = CopyOf(net);
  const Trained trained = Train("adasum", {}, net, 10);
  EXPECT_EQ(trained.equal_steps, 10);
  Net before = CopyOf(start);
  const torch::Tensor model = TrainAll(start, 10, 1, [&](std::vector<Net>& nets) {
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      const torch::Tensor from = before->parameters()[i].detach().to(torch::kDouble);
      std::vector<torch::Tensor> changes;
      for (Net& each : nets) {
        changes.push_back(each->parameters()[i].detach().to(torch::kDouble) - from);
      }
      const torch::Tensor to = from + AdasumOf(changes);
      SetAll(nets, i, to);
      const torch::NoGradGuard no_grad;
      before->parameters()[i].copy_(to);
    }
  });
  EXPECT_LT(Distance(trained.flat, model), 1e-5);
}

}  // namespace
