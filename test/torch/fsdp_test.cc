// fsdp: ZeRO stage 3, beside what sharded_test.cc has of it.
#include <torch/torch.h>

#include <thread>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
namespace nn = torch::nn;
namespace optim = torch::optim;

// Every module is a unit of its own.
const hvd::StrategyOptions kSmallUnits = {.bucket_bytes = 1};

RANKS_TEST(Fsdp, TrainsLikeOneProcessOnAllBatches, 1, 2, 3) {
  for (const int64_t bucket_bytes : {1, 1 << 20}) {
    for (const int passes : {1, 4}) {
      const Comparison comparison =
          CompareWithOneProcess("fsdp", {.bucket_bytes = bucket_bytes}, passes);
      EXPECT_EQ(comparison.equal_steps, kSteps);
      EXPECT_LT(comparison.distance, 1e-5);
    }
  }
}

// Layers in an order of its own: twice, around others, tied, not at all, and one that is frozen.
struct WindingImpl : nn::Module {
  WindingImpl() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(6, 6)));
    }
    norm = register_module("norm", nn::BatchNorm1d(6));
    frozen = register_module("frozen", nn::Linear(6, 6));
    for (const torch::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    unused = register_module("unused", nn::Linear(6, 6));
    scale = register_parameter("scale", torch::ones({6}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (const int layer : order) y = y + torch::tanh(layers[static_cast<size_t>(layer)](y));
    y = norm(frozen(y)) * scale + layers[1](y);
    return y.matmul(layers[0]->weight.t()).narrow(1, 0, 3);
  }
  std::vector<int> order = {0, 1, 0, 2, 3};
  std::vector<nn::Linear> layers;
  nn::BatchNorm1d norm{nullptr};
  nn::Linear frozen{nullptr}, unused{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Winding);

struct Trained {
  torch::Tensor parameters;
  double evaluated = 0;  // a loss on the way
};

// `order_of`: of the layers, by step.
Trained TrainWinding(const std::string& name, int passes,
                     const std::function<std::vector<int>(int step)>& order_of) {
  torch::manual_seed(5);
  Winding net;
  optim::SGD sgd(net->parameters(), 0.05);
  const auto strategy = hvd::make_strategy(name, net, sgd, kSmallUnits);
  Trained trained;
  for (int step = 0; step < 8; ++step) {
    net->order = order_of(step);
    strategy->zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const Samples own = Shard(Batch(step * passes + pass, hvd::size()), hvd::rank());
      const torch::Tensor loss = torch::mse_loss(strategy->forward(own.x), own.y);
      strategy->backward(loss / passes, pass + 1 == passes);
    }
    if (step == 3) {
      const torch::NoGradGuard no_grad;
      net->eval();
      // Once more on rank 0, which nobody has told the others.
      for (int times = hvd::rank() == 0 ? 2 : 1; times > 0; --times) {
        const Samples all = Batch(100, hvd::size());
        trained.evaluated = torch::mse_loss(net->forward(all.x), all.y).item<double>();
      }
      net->train();
    }
    strategy->step();
  }
  strategy->finish();
  trained.parameters = Flat(*net);
  return trained;
}

void ExpectTheBitsOfDdp(const std::function<std::vector<int>(int step)>& order_of) {
  for (const int passes : {1, 3}) {
    const Trained whole = TrainWinding("ddp", passes, order_of);
    const Trained shared = TrainWinding("fsdp", passes, order_of);
    EXPECT_TRUE(shared.parameters.equal(whole.parameters))
        << passes << " passes, " << Distance(shared.parameters, whole.parameters);
    EXPECT_EQ(shared.evaluated, whole.evaluated);
    EXPECT_TRUE(ReplicasEqual(shared.parameters));
  }
}

RANKS_TEST(Fsdp, TakesLayersInAnyOrder, 2, 3) {
  ExpectTheBitsOfDdp([](int) { return std::vector<int>{0, 1, 0, 2, 3}; });
}

RANKS_TEST(Fsdp, TakesAnotherOrderThanTheStepBefore, 2, 3) {
  ExpectTheBitsOfDdp([](int step) {
    const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {3, 1}, {2, 2, 0, 3, 1}, {1}};
    return orders[static_cast<size_t>(step) % orders.size()];
  });
}

// As with layers that are dropped at random: nobody waits for what the others don't do.
RANKS_TEST(Fsdp, RanksMayTakeDifferentLayers, 2, 3) {
  ExpectTheBitsOfDdp([](int step) {
    std::vector<int> order;
    for (int layer = 0; layer < 4; ++layer) {
      if ((layer + step) % (hvd::rank() + 2) != 0) order.push_back(layer);
    }
    if (hvd::rank() == 1) std::reverse(order.begin(), order.end());
    return order;
  });
}

// With weights in lists, gathered by index, of three dimensions.
struct MixedImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    const torch::Tensor seen = std::get<0>(lstm(embedding(words)));
    return out(conv(norm(seen).transpose(1, 2)).flatten(1));
  }
  nn::Embedding embedding = register_module("embedding", nn::Embedding(20, 8));
  nn::LSTM lstm = register_module(
      "lstm", nn::LSTM(nn::LSTMOptions(8, 6).num_layers(2).bidirectional(true).batch_first(true)));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({12})));
  nn::Conv1d conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(12, 4, 3)));
  nn::Linear out = register_module("out", nn::Linear(12, 3));
};
TORCH_MODULE(Mixed);

RANKS_TEST(Fsdp, TakesModulesOfManyKinds, 2) {
  std::vector<torch::Tensor> ends;
  for (const char* name : {"ddp", "fsdp"}) {
    torch::manual_seed(5);
    Mixed net;
    optim::SGD sgd(net->parameters(), Momentum(0.05));
    const auto strategy = hvd::make_strategy(name, net, sgd, kSmallUnits);
    for (int step = 0; step < 6; ++step) {
      torch::manual_seed(hvd::size() * step + hvd::rank());
      strategy->zero_grad();
      const torch::Tensor words = torch::randint(20, {4, 5}, torch::kLong);
      strategy->backward(strategy->forward(words).square().mean());
      strategy->step();
    }
    ends.push_back(Flat(*net));
  }
  EXPECT_TRUE(ends[0].equal(ends[1])) << Distance(ends[0], ends[1]);
}

// Rank 1 waits in the middle of each pass until rank 0 has used the unit that comes next, which it
// could not gather if rank 1 had not sent its share already.
RANKS_TEST(Fsdp, TheNextUnitIsOnItsWayBeforeItIsUsed, 2) {
  nn::Linear first(6, 6), second(6, 6), third(6, 3);
  nn::Sequential net(first, second, third);
  optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
  const auto between = [](const char* name) {
    if (hvd::rank() == 1) hvd::recv_(torch::zeros({1}), 0, {.name = name});
  };
  const auto after = [](const char* name) {
    if (hvd::rank() == 0) hvd::send(torch::zeros({1}), 1, {.name = name});
  };
  for (int step = 0; step < 3; ++step) {
    const bool knows_the_order = step > 0;
    const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
    strategy->zero_grad();
    const torch::Tensor x = own.x.clone().requires_grad_();
    const torch::Tensor a = first(x);
    if (knows_the_order) between("forward");
    const torch::Tensor b = second(a);
    if (knows_the_order) {
      after("forward");
      a.register_hook([&](const torch::Tensor&) { between("backward"); });
      x.register_hook([&](const torch::Tensor&) { after("backward"); });
    }
    strategy->backward(torch::mse_loss(third(b), own.y));
    strategy->step();
  }
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
}

RANKS_TEST(Fsdp, ParametersAreWholeAfterFinishUntilTrainingGoesOn, 2) {
  nn::Sequential net(nn::Linear(6, 6), nn::Linear(6, 3));
  const torch::Tensor weight = net->parameters()[0];
  optim::SGD sgd(net->parameters(), 0.1);
  auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
  const auto read = [&] { return weight.const_data_ptr<float>()[0]; };
  const auto expect_shared_out = [&] {
    try {
      read();
      ADD_FAILURE() << "it was read";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("only its share of '0.weight' to '0.bias':"),
                std::string::npos)
          << error.what();
    }
  };
  expect_shared_out();
  EXPECT_TRUE(std::isfinite(weight.sum().item<float>())) << "operators gather it";
  const Samples samples = Shard(Batch(0, hvd::size()), hvd::rank());
  TrainStep(*strategy, samples);
  expect_shared_out();
  strategy->finish();
  strategy->finish();
  EXPECT_EQ(read(), weight.flatten()[0].item<float>());
  {
    const torch::NoGradGuard no_grad;
    (void)strategy->forward(samples.x);
  }
  EXPECT_EQ(read(), weight.flatten()[0].item<float>()) << "evaluating changes nothing";
  strategy->zero_grad();
  expect_shared_out();
  strategy->finish();
  const float last = read();
  strategy = nullptr;
  EXPECT_EQ(read(), last) << "they outlive the strategy";
}

RANKS_TEST(Fsdp, WhatIsWrittenToParametersCounts, 2, 3) {
  for (const bool whole : {false, true}) {
    nn::Sequential net(nn::Linear(6, 6), nn::Linear(6, 3));
    optim::SGD sgd(net->parameters(), 0.0);
    const auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
    if (whole) strategy->finish();
    for (const torch::Tensor& parameter : net->parameters()) {
      const torch::NoGradGuard no_grad;
      if (whole) {  // where nobody sees it
        std::fill_n(parameter.mutable_data_ptr<float>(), parameter.numel(), 3.0f);
      } else {
        parameter.fill_(3);
      }
    }
    TrainStep(*strategy, Shard(Batch(0, hvd::size()), hvd::rank()));
    EXPECT_TRUE(Flat(*net).eq(3).all().item<bool>()) << whole;
  }
}

// Which no operator can throw: the pass is stopped, and the strategy says why.
RANKS_TEST(Fsdp, EvaluatesInInferenceMode, 2) {
  torch::manual_seed(1);
  Net net;
  optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
  Net reference = CopyOf(net);
  optim::SGD reference_sgd(reference->parameters(), Momentum());
  for (int step = 0; step < 4; ++step) {
    {
      const c10::InferenceMode inference;
      const Samples samples = Batch(step, 1);
      EXPECT_LT(Distance(strategy->forward(samples.x), reference->forward(samples.x)), 1e-5);
    }
    TrainStep(*strategy, Batch(step, 1));
    reference_sgd.zero_grad();
    Loss(reference, Batch(step, 1)).backward();
    reference_sgd.step();
  }
  EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5);
}

// One rank may be at work before another one watches its operators.
TEST(FsdpOnThreads, TrainsLikeOneProcess) {
  rueda_group* group = nullptr;
  ASSERT_EQ(rueda_group_create(2, &group), RUEDA_OK);
  const auto run = [group](int rank) {
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.group = group;
    options.group_rank = rank;
    rueda_context* context = nullptr;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
    rueda_set_thread_context(context);
    for (int round = 0; round < 10; ++round) {
      Net net;
      optim::SGD sgd(net->parameters(), 0.1);
      const auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
      Net reference = CopyOf(net);
      optim::SGD reference_sgd(reference->parameters(), 0.1);
      TrainStep(*strategy, {torch::ones({2, 6}), torch::zeros({2, 3})});
      Loss(reference, {torch::ones({2, 6}), torch::zeros({2, 3})}).backward();
      reference_sgd.step();
      strategy->finish();
      EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-6);
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  rueda_group_destroy(group);
}

RANKS_TEST(Fsdp, ALostRankIsAnErrorOfThePass, 2, 3) {
  nn::Sequential net(nn::Linear(6, 6), nn::Linear(6, 3));
  optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("fsdp", net, sgd, kSmallUnits);
  const Samples samples = Shard(Batch(0, hvd::size()), hvd::rank());
  TrainStep(*strategy, samples);
  if (hvd::rank() == 1) LeaveWithoutShutdown();
  std::string message;
  EXPECT_EQ(StatusOf([&] { TrainStep(*strategy, samples); }, &message), RUEDA_ABORTED);
  EXPECT_NE(message.find("rank 1 "), std::string::npos) << message;
  LeaveWithoutShutdown();
}

}  // namespace
