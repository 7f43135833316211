// pipeline: stages on ranks.
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
using torch::nn::Linear;
using torch::nn::Sequential;

Sequential MakeLayers(int seed) {
  torch::manual_seed(seed);
  return Sequential(Linear(6, 16), torch::nn::Tanh(), Linear(16, 16), torch::nn::Tanh(),
                    Linear(16, 3));
}

Samples BatchOf(int step, int64_t rows) {
  torch::manual_seed(1000 + step);
  const torch::Tensor x = torch::randn({rows, 6});
  return {x, x.narrow(1, 0, 3).sin()};
}

RANKS_TEST(Pipeline, IsOneProcess, 1, 2, 3, 5) {
  for (const int micro_batches : {1, 4}) {
    Sequential layers = MakeLayers(hvd::rank());
    torch::optim::SGD sgd(layers->parameters(), Momentum());
    const auto strategy =
        hvd::make_strategy("pipeline", layers, sgd, {.micro_batches = micro_batches});
    Sequential reference = MakeLayers(0);
    torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
    for (int step = 0; step < kSteps; ++step) {
      const Samples batch = BatchOf(step, step % 3 == 0 ? 10 : 3);
      strategy->zero_grad();
      const torch::Tensor output = strategy->forward(batch.x);
      const torch::Tensor expected = reference->forward(batch.x);
      EXPECT_LT(Distance(output.detach(), expected.detach()), 1e-5);
      strategy->backward(torch::mse_loss(output, batch.y));
      reference_sgd.zero_grad();
      torch::mse_loss(expected, batch.y).backward();
      int own = 0;
      for (size_t i = 0; i < layers->parameters().size(); ++i) {
        if (!layers->parameters()[i].grad().defined()) continue;
        ++own;
        EXPECT_LT(Distance(layers->parameters()[i].grad(), reference->parameters()[i].grad()),
                  1e-5);
      }
      EXPECT_EQ(own > 0, hvd::size() < 5 || hvd::rank() % 2 == 0);  // five: two have no parameters
      EXPECT_EQ(own == 6, hvd::size() == 1);
      strategy->step();
      reference_sgd.step();
    }
    strategy->finish();
    EXPECT_TRUE(ReplicasEqual(Flat(*layers)));
    EXPECT_LT(Distance(Flat(*layers), Flat(*reference)), 1e-5);
  }
}

// That the test above can fail: stages of two models.
RANKS_TEST(Pipeline, StagesOfTwoModelsAreNeither, 2) {
  Sequential layers = MakeLayers(hvd::rank());
  torch::optim::SGD sgd(layers->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd, {.broadcast = false});
  const Samples batch = BatchOf(0, 10);
  const torch::Tensor output = strategy->forward(batch.x).detach();
  for (const int seed : {0, 1}) {
    EXPECT_GT(Distance(output, MakeLayers(seed)->forward(batch.x).detach()), 1e-2);
  }
}

// 4, 4 and 40 weights: the first two layers together are nearest to a half.
RANKS_TEST(Pipeline, SharesOutLayersByTheirSize, 2) {
  const auto of = [](int64_t in, int64_t out) {
    return Linear(torch::nn::LinearOptions(in, out).bias(false));
  };
  Sequential layers(of(2, 2), of(2, 2), torch::nn::Tanh(), of(2, 20));
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  strategy->backward(strategy->forward(torch::ones({2, 2})).sum());
  std::vector<bool> own;
  for (const torch::Tensor& parameter : layers->parameters()) {
    own.push_back(parameter.grad().defined());
  }
  const bool first = hvd::rank() == 0;
  EXPECT_EQ(own, (std::vector<bool>{first, first, !first}));
}

RANKS_TEST(Pipeline, EvaluatesAndClips, 2) {
  Sequential layers = MakeLayers(0);
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  Sequential reference = MakeLayers(0);
  const Samples batch = BatchOf(0, 8);
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(Distance(strategy->forward(batch.x), reference->forward(batch.x)), 1e-6);
    }
  }
  strategy->backward(torch::mse_loss(strategy->forward(batch.x), batch.y));
  torch::mse_loss(reference->forward(batch.x), batch.y).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01);
  EXPECT_NEAR(strategy->clip_grad_norm(0.01), norm, 1e-6);
  for (size_t i = 0; i < layers->parameters().size(); ++i) {
    if (!layers->parameters()[i].grad().defined()) continue;
    EXPECT_LT(Distance(layers->parameters()[i].grad(), reference->parameters()[i].grad()), 1e-6);
  }
}

RANKS_TEST(Pipeline, ClipsSparseGradientsToo, 2) {
  torch::manual_seed(0);
  torch::nn::Sequential layers(
      torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)), torch::nn::Flatten(),
      torch::nn::Linear(8, 3));
  const auto reference = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(layers->clone());
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd, {.broadcast = false});
  const torch::Tensor x = torch::tensor({{1, 2}, {2, 2}, {3, 9}, {1, 9}});
  strategy->backward(strategy->forward(x).sum());
  reference->forward(x).sum().backward();
  double squares = 0;
  for (const torch::Tensor& parameter : reference->parameters()) {
    squares += parameter.grad().to_dense().square().sum().item<double>();
  }
  EXPECT_NEAR(strategy->clip_grad_norm(1e9), std::sqrt(squares), 1e-5);
}

RANKS_TEST(Pipeline, SavesWhatAllStagesHave, 2, 3) {
  const std::string path = "/tmp/rueda-pipeline-" + std::string(std::getenv("RUEDA_JOB_ID"));
  const auto train = [](hvd::Strategy& strategy, int from, int to) {
    for (int step = from; step < to; ++step) TrainStep(strategy, BatchOf(step, 8));
    strategy.finish();
  };
  Sequential layers = MakeLayers(0);
  torch::optim::Adam adam(layers->parameters(), 0.01);
  const auto strategy = hvd::make_strategy("pipeline", layers, adam);
  train(*strategy, 0, 5);
  strategy->save(path);
  train(*strategy, 5, 10);
  Sequential others = MakeLayers(1);
  torch::optim::Adam others_adam(others->parameters(), 0.01);
  const auto ddp = hvd::make_strategy("ddp", others, others_adam, {.name = "ddp"});
  ddp->load(path);
  train(*ddp, 5, 10);
  EXPECT_LT(Distance(Flat(*layers), Flat(*others)), 1e-5);
  hvd::barrier();
  if (hvd::rank() == 0) std::filesystem::remove(path);
}

// How far the stages' gradients are from those of one process; 1e9 if some parameter has one here
// and not there, or not on one rank alone.
double GradientDistance(const Sequential& layers, const Sequential& reference) {
  double distance = 0;
  for (size_t i = 0; i < layers->parameters().size(); ++i) {
    const torch::Tensor own = layers->parameters()[i].grad();
    const torch::Tensor expected = reference->parameters()[i].grad();
    const torch::Tensor count =
        hvd::allreduce(torch::tensor(own.defined() ? 1 : 0), {.name = "count", .op = hvd::Sum});
    if (count.item<int>() != (expected.defined() ? 1 : 0)) return 1e9;
    if (!expected.defined()) continue;
    const torch::Tensor sum = hvd::allreduce(own.defined() ? own : torch::zeros_like(expected),
                                             {.name = "sum", .op = hvd::Sum});
    distance = std::max(distance, Distance(sum, expected));
  }
  return distance;
}

// Of some steps by it and by one process: the largest of the gradients' distances.
double DistanceOf(const std::function<Sequential()>& make, const torch::Tensor& x,
                  const hvd::StrategyOptions& options = {}) {
  Sequential layers = make();
  Sequential reference = make();
  torch::optim::SGD sgd(layers->parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd, options);
  double distance = 0;
  for (int step = 0; step < 4; ++step) {
    strategy->zero_grad();
    reference_sgd.zero_grad();
    const torch::Tensor output = strategy->forward(x);
    const torch::Tensor expected = reference->forward(x);
    EXPECT_TRUE(output.requires_grad());
    strategy->backward(output.square().mean());
    expected.square().mean().backward();
    distance = std::max(distance, GradientDistance(layers, reference));
    strategy->step();
    reference_sgd.step();
  }
  strategy->finish();
  EXPECT_TRUE(ReplicasEqual(Flat(*layers)));
  return distance;
}

torch::nn::Functional Detached() {
  return torch::nn::Functional([](const torch::Tensor& x) { return x.detach(); });
}

// Integers, what frozen layers make of them, and what is used for nothing that has a gradient.
RANKS_TEST(Pipeline, StagesWhoseOutputsTakeNoGradient, 1, 2, 3) {
  torch::manual_seed(9);
  const torch::Tensor ids = torch::randint(100, {6, 2}, torch::kLong);
  const torch::Tensor x = torch::randn({6, 6});
  const auto embedding = [] {
    torch::manual_seed(0);
    return Sequential(torch::nn::Flatten(), torch::nn::Embedding(100, 8), torch::nn::Flatten(),
                      Linear(16, 3));
  };
  EXPECT_LT(DistanceOf(embedding, ids), 1e-5);
  for (const int frozen : {1, 3}) {  // layers; 3: of three stages the first two
    const auto fixed = [&] {
      Sequential layers = MakeLayers(0);
      for (int i = 0; i < frozen; ++i) {
        for (torch::Tensor& parameter : layers->ptr(i)->parameters()) {
          parameter.requires_grad_(false);
        }
      }
      return layers;
    };
    EXPECT_LT(DistanceOf(fixed, x), 1e-5) << frozen;
  }
  // On two ranks the second's stage begins with it; on three one's has nothing else behind it.
  const auto cut = [] {
    torch::manual_seed(0);
    return Sequential(Linear(6, 16), Detached(), Linear(16, 16), Linear(16, 3));
  };
  EXPECT_LT(DistanceOf(cut, x), 1e-5);
  const auto cut_late = [] {
    torch::manual_seed(0);
    return Sequential(Linear(6, 20), Linear(20, 6), Detached(), Linear(6, 20), Linear(20, 3));
  };
  EXPECT_LT(DistanceOf(cut_late, x, {.micro_batches = 3}), 1e-5);
}

RANKS_TEST(Pipeline, AnOutputWithoutAGradientHasNoneOnAnyRank, 2, 3) {
  Sequential layers(Linear(6, 16), torch::nn::Tanh(), Linear(16, 3), Detached());
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  EXPECT_FALSE(strategy->forward(torch::ones({4, 6})).requires_grad());
  std::string message;
  EXPECT_EQ(StatusOf(
                [&] {
                  strategy->forward(torch::ones({4, 6}).requires_grad_());
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("must not require a gradient"), std::string::npos) << message;
}

RANKS_TEST(Pipeline, SeveralForwardPassesGoIntoOneLoss, 2, 3) {
  Sequential layers = MakeLayers(0);
  Sequential reference = MakeLayers(0);
  torch::optim::SGD sgd(layers->parameters(), 0.01);
  torch::optim::SGD reference_sgd(reference->parameters(), 0.01);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  for (int step = 0; step < 60; ++step) {
    const Samples batch = BatchOf(step, 8);
    const int passes = step % 20 == 0 ? 20 : 2;
    torch::Tensor output = torch::ones({8, 3}), expected = output;
    for (int pass = 0; pass < passes; ++pass) {
      output = output * strategy->forward(batch.x + pass);
      expected = expected * reference->forward(batch.x + pass);
      if (step % 7 == 0) (void)strategy->forward(batch.x);  // nobody uses it
    }
    strategy->zero_grad();
    strategy->backward(torch::mse_loss(output, batch.y));
    reference_sgd.zero_grad();
    torch::mse_loss(expected, batch.y).backward();
    EXPECT_LT(GradientDistance(layers, reference), 1e-5) << step;
    strategy->step();
    reference_sgd.step();
  }
}

RANKS_TEST(Pipeline, AddsUpSeveralPasses, 2, 3) {
  Sequential layers = MakeLayers(0);
  Sequential reference = MakeLayers(0);
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  for (int pass = 0; pass < 4; ++pass) {
    const Samples batch = BatchOf(pass, 8);
    strategy->backward(torch::mse_loss(strategy->forward(batch.x), batch.y) / 4, pass == 3);
    (torch::mse_loss(reference->forward(batch.x), batch.y) / 4).backward();
  }
  EXPECT_LT(GradientDistance(layers, reference), 1e-6);
  strategy->step();
  strategy->finish();
  torch::optim::SGD(reference->parameters(), 0.1).step();
  EXPECT_LT(Distance(Flat(*layers), Flat(*reference)), 1e-6);
}

// That comparing gradients can fail: the stage before gets others than the next one computed.
RANKS_TEST(Pipeline, WithOtherGradientsFromTheNextStageItIsNotOneProcess, 2, 3) {
  for (const double factor : {1.0, 1.5}) {
    bool reference = false;  // the second that is made
    const auto make = [&] {
      const double own = std::exchange(reference, true) ? 1 : factor;
      torch::manual_seed(0);
      return Sequential(Linear(6, 16), torch::nn::Functional([own](const torch::Tensor& x) {
                          torch::Tensor y = x.clone();
                          if (y.requires_grad() && hvd::rank() > 0) {
                            y.register_hook([own](const torch::Tensor& g) { return g * own; });
                          }
                          return y;
                        }),
                        Linear(16, 3));
    };
    const double distance = DistanceOf(make, torch::ones({6, 6}));
    if (factor == 1) {
      EXPECT_LT(distance, 1e-5);
    } else {
      EXPECT_GT(distance, 1e-3);
    }
  }
}

RANKS_TEST(Pipeline, OutputsThatOutliveItSayThatItIsGone, 1, 2) {
  Sequential layers = MakeLayers(0);
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  const torch::Tensor output = strategy->forward(torch::ones({4, 6}));
  strategy.reset();
  std::string message;
  EXPECT_EQ(StatusOf([&] { output.sum().backward(); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("strategy is gone"), std::string::npos) << message;
}

// One rank's sampler, or its generator after a dropout that the others do not have.
RANKS_TEST(Pipeline, OtherBatchesOnOtherRanksAreRefused, 2, 3) {
  Sequential layers = MakeLayers(0);
  torch::optim::SGD sgd(layers->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("pipeline", layers, sgd);
  const torch::Tensor x = torch::ones({4, 6});
  std::vector<torch::Tensor> others = {torch::ones({5, 6}), torch::ones({4, 7}), x.to(at::kDouble),
                                       x.clone()};
  others.back()[3][5] = 2;
  for (const torch::Tensor& other : others) {
    std::string message;
    const bool differs = hvd::rank() == hvd::size() - 1;
    EXPECT_EQ(StatusOf([&] { (void)strategy->forward(differs ? other : x); }, &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("the ranks' batches differ"), std::string::npos) << message;
  }
  EXPECT_EQ(strategy->forward(x).size(0), 4);
}

RANKS_TEST(Pipeline, WhatItCannotSplitIsRefused, 2) {
  std::string message;
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("pipeline", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("must be a torch::nn::Sequential"), std::string::npos) << message;
  Sequential one(Linear(6, 3));
  torch::optim::SGD one_sgd(one->parameters(), 0.1);
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("pipeline", one, one_sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("1 layers for 2 ranks"), std::string::npos) << message;
}

}  // namespace
