// sharded: ZeRO stages 1 and 2; and what stage 3, fsdp, does likewise.
#include <torch/torch.h>

#include <filesystem>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
namespace optim = torch::optim;

constexpr const char* kNames[] = {"sharded", "fsdp"};

std::unique_ptr<optim::Optimizer> Make(const std::string& kind, Net& net) {
  const std::vector<torch::Tensor> parameters = net->parameters();
  if (kind == "SGD") return std::make_unique<optim::SGD>(parameters, Momentum());
  if (kind == "Adam") {
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(0.01).amsgrad(true));
  }
  if (kind == "AdamW") return std::make_unique<optim::AdamW>(parameters, 0.01);
  if (kind == "RMSprop") {
    return std::make_unique<optim::RMSprop>(
        parameters, optim::RMSpropOptions(0.001).momentum(0.9).centered(true));
  }
  return std::make_unique<optim::Adagrad>(
      parameters, optim::AdagradOptions(0.01).initial_accumulator_value(0.1));
}

void Train(hvd::Strategy& strategy, int from, int to, double max_norm = 0) {
  for (int step = from; step < to; ++step) {
    strategy.zero_grad();
    const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
    strategy.backward(torch::mse_loss(strategy.forward(own.x), own.y));
    if (max_norm > 0) {
      EXPECT_GT(strategy.clip_grad_norm(max_norm), max_norm);
    }
    strategy.step();
  }
}

torch::Tensor TrainWith(const std::string& name, const std::string& kind,
                        const hvd::StrategyOptions& options, double max_norm = 0) {
  torch::manual_seed(5);
  Net net;
  const auto optimizer = Make(kind, net);
  const auto strategy = hvd::make_strategy(name, net, *optimizer, options);
  Train(*strategy, 0, kSteps, max_norm);
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  return Flat(*net);
}

RANKS_TEST(Sharded, TrainsLikeOneProcessOnAllBatches, 1, 2, 3) {
  for (const int stage : {1, 2}) {
    for (const int passes : {1, 4}) {
      const Comparison comparison =
          CompareWithOneProcess("sharded", {.zero_stage = stage, .bucket_bytes = 256}, passes);
      EXPECT_EQ(comparison.equal_steps, kSteps);
      EXPECT_LT(comparison.distance, 1e-5);
    }
  }
}

RANKS_TEST(Sharded, GivesTheWeightsOfAnUnshardedOptimizer, 2, 3) {
  for (const char* kind : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"}) {
    const torch::Tensor whole = TrainWith("ddp", kind, {});
    for (const char* name : kNames) {
      for (const int64_t bucket_bytes : {1, 300, 1 << 20}) {
        const torch::Tensor shared = TrainWith(
            name, kind,
            {.zero_stage = 1 + static_cast<int>(bucket_bytes % 2), .bucket_bytes = bucket_bytes});
        if (kind == std::string("SGD")) {
          EXPECT_TRUE(shared.equal(whole)) << "to the bit, " << name << ", " << bucket_bytes;
        } else {
          EXPECT_LT(Distance(shared, whole), 1e-6) << kind << ", " << name << ", " << bucket_bytes;
        }
      }
    }
  }
}

RANKS_TEST(Sharded, ClipsByTheNormOfAllGradients, 2, 3) {
  const torch::Tensor whole = TrainWith("ddp", "SGD", {}, 0.01);
  for (const char* name : kNames) {
    EXPECT_LT(Distance(TrainWith(name, "SGD", {.bucket_bytes = 256}, 0.01), whole), 1e-6) << name;
  }
}

RANKS_TEST(Sharded, KeepsItsShareOfTheOptimizersState, 2, 3) {
  for (const char* name : kNames) {
    torch::nn::Sequential net(torch::nn::Linear(100, 300), torch::nn::Tanh(),
                              torch::nn::Linear(300, 100));
    optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(name, net, adam, {.bucket_bytes = 50'000});
    strategy->backward(strategy->forward(torch::randn({4, 100})).square().mean());
    strategy->step();
    size_t whole = 0;
    for (const torch::Tensor& parameter : net->parameters()) whole += 2 * parameter.nbytes();
    size_t own = 0;
    for (const auto& [parameter, state] : adam.state()) {
      auto& of_adam = static_cast<optim::AdamParamState&>(*state);
      own += of_adam.exp_avg().nbytes() + of_adam.exp_avg_sq().nbytes();
    }
    EXPECT_LE(static_cast<double>(own), 1.1 * static_cast<double>(whole) / hvd::size()) << name;
    EXPECT_GE(static_cast<double>(own), 0.9 * static_cast<double>(whole) / hvd::size()) << name;
  }
}

RANKS_TEST(Sharded, SharesOutWhatTheOptimizerRemembers, 2) {
  for (const char* kind : {"SGD", "Adam", "Adagrad"}) {
    for (const char* name : kNames) {
      torch::manual_seed(5);
      Net net;
      const auto optimizer = Make(kind, net);
      {
        const auto ddp = hvd::make_strategy("ddp", net, *optimizer);
        Train(*ddp, 0, 10);
      }
      {
        const auto shared = hvd::make_strategy(name, net, *optimizer, {.bucket_bytes = 256});
        Train(*shared, 10, kSteps);
        shared->finish();
      }
      EXPECT_LT(Distance(Flat(*net), TrainWith("ddp", kind, {})), 1e-6) << kind << ", " << name;
      EXPECT_EQ(optimizer->param_groups()[0].params().size(), net->parameters().size())
          << "it gets back its parameters";
    }
  }
}

RANKS_TEST(Sharded, LearningRatesCountFromTheNextStepOn, 2) {
  for (const char* name : kNames) {
    torch::nn::Linear net(2, 1);
    optim::SGD sgd(net->parameters(), 1.0);
    const auto strategy = hvd::make_strategy(name, net, sgd);
    const torch::Tensor start = Flat(*net);
    for (const double lr : {1.0, 0.5, 0.25}) {
      sgd.param_groups()[0].options().set_lr(lr);
      strategy->zero_grad();
      strategy->backward(strategy->forward(torch::ones({1, 2})).sum());
      strategy->step();
    }
    EXPECT_LT(Distance(Flat(*net), start - 1.75), 1e-6) << name;
  }
}

RANKS_TEST(Sharded, OneRanksGradientIsAnAverageWithZeros, 2, 3) {
  for (const char* name : kNames) {
    torch::nn::Linear net(2, 1);
    optim::SGD sgd(net->parameters(), 1.0);
    const auto strategy = hvd::make_strategy(name, net, sgd);
    const torch::Tensor start = Flat(*net);
    if (hvd::rank() == 1) {
      strategy->backward(strategy->forward(torch::ones({1, 2})).sum() * hvd::size());
    }
    strategy->step();
    EXPECT_LT(Distance(Flat(*net), start - 1), 1e-6) << name;
  }
}

RANKS_TEST(Sharded, MistakesAreErrorsOfTheStep, 2) {
  for (const char* name : kNames) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
    optim::SGD sgd(net->parameters(), 1.0);
    const auto strategy = hvd::make_strategy(name, net, sgd);
    const auto pass = [&] { strategy->backward(strategy->forward(torch::ones({1, 2})).sum()); };
    std::string message;
    // Of rank 1 alone; the others go on, and so can it.
    pass();
    if (hvd::rank() == 1) pass();
    EXPECT_EQ(StatusOf([&] { strategy->step(); }, &message),
              hvd::rank() == 1 ? RUEDA_FAILED_PRECONDITION : RUEDA_OK);
    EXPECT_EQ(message.find("computed once more") != std::string::npos, hvd::rank() == 1) << message;
    // Also where all ranks' gradients are looked at before.
    pass();
    if (hvd::rank() == 1) pass();
    EXPECT_EQ(StatusOf([&] { (void)strategy->clip_grad_norm(1); }),
              hvd::rank() == 1 ? RUEDA_FAILED_PRECONDITION : RUEDA_OK);
    strategy->zero_grad();
    pass();
    strategy->step();
    EXPECT_TRUE(ReplicasEqual(Flat(*net)));
    net->parameters()[0].requires_grad_(false);
    EXPECT_EQ(StatusOf([&] { strategy->step(); }, &message), RUEDA_FAILED_PRECONDITION);
    EXPECT_NE(message.find("'0.weight' was frozen"), std::string::npos) << message;
    optim::LBFGS lbfgs(net->parameters());
    EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy(name, net, lbfgs); }, &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("LBFGS"), std::string::npos) << message;
  }
}

// One that can't be made leaves model and optimizer as they were.
RANKS_TEST(Sharded, IsNotMadeWhileAnotherStrategyHasTheModel, 2) {
  for (const char* name : kNames) {
    torch::nn::Linear net(6, 3);
    optim::SGD sgd(net->parameters(), 0.1);
    auto strategy = hvd::make_strategy("ddp", net, sgd);
    std::string message;
    EXPECT_EQ(StatusOf([&] { strategy = hvd::make_strategy(name, net, sgd, {.name = "other"}); },
                       &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("in another DistributedOptimizer or strategy"), std::string::npos);
    const torch::Tensor before = Flat(*net);
    TrainStep(*strategy, Shard(Batch(0, hvd::size()), hvd::rank()));
    EXPECT_GT(Distance(Flat(*net), before), 1e-3);
    EXPECT_TRUE(ReplicasEqual(Flat(*net)));
    strategy = nullptr;
    strategy = hvd::make_strategy(name, net, sgd, {.name = "other"});
    TrainStep(*strategy, Batch(0, 1));
  }
}

}  // namespace
