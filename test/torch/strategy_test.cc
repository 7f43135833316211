// Strategies: what all promise, and ddp. A file each for the others.
#include "rueda/strategy.hpp"

#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

RANKS_TEST(Strategy, DdpTrainsLikeOneProcessOnAllBatches, 1, 2, 3) {
  for (const int passes : {1, 4}) {
    const Comparison comparison = CompareWithOneProcess("ddp", {}, passes);
    EXPECT_EQ(comparison.equal_steps, kSteps);
    EXPECT_LT(comparison.distance, 1e-5) << passes;
  }
}

// That the tests of each strategy can fail: every rank trains by itself, in a process set of its
// own. (Of dp, mirrored and pipeline, whose ranks all see the same: in their own tests.)
RANKS_TEST(Strategy, WithoutTheOthersReplicasDrift, 2) {
  std::vector<hvd::ProcessSet> alone;
  for (int rank = 0; rank < hvd::size(); ++rank) alone.push_back(hvd::add_process_set({rank}));
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored" || name == "pipeline") continue;
    torch::manual_seed(1);
    Net net;
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(
        name, net, adam, {.process_set = alone[hvd::rank()], .warmup_steps = 2, .local_steps = 4});
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
    for (int step = 0; step < 8; ++step) {
      TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    }
    strategy->finish();
    EXPECT_FALSE(ReplicasEqual(Flat(*net))) << name;
  }
  for (const char* name : {"ddp", "bytegrad", "ddp2", "sharded", "fsdp"}) {
    EXPECT_GT(CompareWithOneProcess(name, {.process_set = alone[hvd::rank()]}, 1).distance, 1e-3);
  }
}

RANKS_TEST(Strategy, UnusedParametersAreNamedAndStayAsTheyAre, 1, 2) {
  struct Parts : torch::nn::Module {
    Parts() {
      for (const char* name : {"all", "first", "none"}) {
        tensors.push_back(register_parameter(name, torch::ones({3})));
      }
    }
    std::vector<torch::Tensor> tensors;
  } parts;
  torch::optim::SGD sgd(parts.parameters(), torch::optim::SGDOptions(0.5).weight_decay(0.5));
  hvd::DistributedOptimizer optimizer(sgd, parts.named_parameters());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss = parts.tensors[0].sum();
    if (hvd::rank() == 0) loss = loss + parts.tensors[1].sum() * hvd::size();
    loss.backward();
    optimizer.step();
    EXPECT_EQ(optimizer.unused_parameters(), std::vector<std::string>{"none"});
  }
  float expected = 1;
  for (int step = 0; step < 3; ++step) expected -= 0.5f * (1 + 0.5f * expected);
  EXPECT_FLOAT_EQ(parts.tensors[0][0].item<float>(), expected);
  EXPECT_FLOAT_EQ(parts.tensors[1][0].item<float>(), expected) << "one rank had it";
  EXPECT_EQ(parts.tensors[2][0].item<float>(), 1) << "not even decayed";
  optimizer.zero_grad();
  (parts.tensors[0] + parts.tensors[1] + parts.tensors[2]).sum().backward();
  optimizer.step();
  EXPECT_EQ(optimizer.unused_parameters(), std::vector<std::string>{});
}

// Tied weights, as of an embedding and the layer that undoes it.
RANKS_TEST(Strategy, SharedParametersAreReducedOnce, 2) {
  for (const char* name : {"ddp", "sharded", "fsdp"}) {
    struct Tied : torch::nn::Module {
      Tied() {
        layer =
            register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
        register_parameter("again", layer->weight);
      }
      torch::Tensor forward(const torch::Tensor& x) {
        return torch::tanh(x.matmul(layer->weight)).matmul(layer->weight.t());
      }
      torch::nn::Linear layer{nullptr};
    };
    torch::manual_seed(1);
    const auto tied = std::make_shared<Tied>();
    const torch::Tensor start = tied->layer->weight.detach().clone();
    torch::optim::SGD sgd({tied->layer->weight}, 1.0);
    const auto strategy = hvd::make_strategy(name, tied, sgd, {.name = name});
    const torch::Tensor x = torch::randn({2 * hvd::size(), 4});
    strategy->backward(strategy->forward(x.narrow(0, 2 * hvd::rank(), 2)).square().mean());
    strategy->step();
    // In one process.
    const torch::Tensor w = start.clone().requires_grad_();
    torch::tanh(x.matmul(w)).matmul(w.t()).square().mean().backward();
    EXPECT_LT(Distance(tied->layer->weight.detach(), start - w.grad()), 1e-6) << name;
  }
}

// 10 batches on rank 0, 13 on the others. The rule: a rank that has joined counts as zeros, and the
// average is by all ranks.
RANKS_TEST(Strategy, UnevenInputEndsWithJoin, 2, 3) {
  const auto batches_of = [](int rank) { return rank == 0 ? 10 : 13; };
  torch::manual_seed(7);
  Net net;
  Net reference = CopyOf(net);
  torch::optim::SGD sgd(net->parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  for (int step = 0; step < batches_of(hvd::rank()); ++step) {
    strategy->zero_grad();
    strategy->backward(Loss(net, Shard(Batch(step, hvd::size()), hvd::rank())));
    strategy->step();
  }
  const int last = hvd::join();
  EXPECT_NE(last, 0);
  // Rank 0 has missed the last steps.
  hvd::broadcast_parameters(*net, last);
  for (int step = 0; step < 13; ++step) {
    reference_sgd.zero_grad();
    for (int rank = 0; rank < hvd::size(); ++rank) {
      if (step >= batches_of(rank)) continue;
      (Loss(reference, Shard(Batch(step, hvd::size()), rank)) / hvd::size()).backward();
    }
    reference_sgd.step();
  }
  EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5);
  // And go on together.
  hvd::broadcast_optimizer_state(sgd, last);
  strategy->zero_grad();
  strategy->backward(Loss(net, Shard(Batch(20, hvd::size()), hvd::rank())));
  strategy->step();
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
}

RANKS_TEST(Strategy, BucketsFollowTheOrderOfTheFirstStep, 2) {
  // 80 gradients of 100 kB, of which 41 fit a bucket, the last parameters first.
  struct Many : torch::nn::Module {
    Many() {
      for (int i = 0; i < 80; ++i) {
        tensors.push_back(register_parameter("p" + std::to_string(i), torch::ones({25'000})));
      }
    }
    std::vector<torch::Tensor> tensors;
  } many;
  torch::optim::SGD sgd(many.parameters(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, many.named_parameters());
  const auto storage_of = [&](int i) { return many.tensors[i].grad().storage().data(); };
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    // The odd ones first.
    for (const int odd : {1, 0}) {
      torch::Tensor loss = torch::zeros({});
      for (int i = odd; i < 80; i += 2) {
        loss = loss + many.tensors[i].sum() * (hvd::rank() * 2.0);
      }
      loss.backward();
    }
    optimizer.step();
    EXPECT_EQ(storage_of(0), storage_of(2)) << step;
    EXPECT_EQ(storage_of(0) == storage_of(1), step == 0) << step;
    EXPECT_EQ(storage_of(1) == storage_of(79), step > 0) << step;
    for (const torch::Tensor& tensor : many.tensors) {
      EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(-step * (hvd::size() - 1)));
      EXPECT_TRUE(tensor.eq(tensor[0]).all().item<bool>());
    }
  }
}

RANKS_TEST(Strategy, MistakesAreRefused, 2) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  const auto make = [&](const std::string& name, const hvd::StrategyOptions& options = {}) {
    return StatusOf([&] { (void)hvd::make_strategy(name, net, sgd, options); }, &message);
  };
  EXPECT_EQ(make("dpp"), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("there are ddp, horovod"), std::string::npos) << message;
  EXPECT_EQ(make("local_sgd", {.local_steps = 0}), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("local_steps is 0"), std::string::npos) << message;
  EXPECT_EQ(make("sharded", {.zero_stage = 3}), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("zero_stage is 3"), std::string::npos) << message;
  torch::nn::Linear other(2, 2);
  torch::optim::SGD elsewhere(other->parameters(), 0.1);
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("ddp", net, elsewhere); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("none of the model's"), std::string::npos) << message;
}

RANKS_TEST(Strategy, ModelsThatDifferAreAnErrorOnAllRanks, 2, 3) {
  torch::nn::Linear net(4, hvd::rank() == 1 ? 3 : 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("ddp", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1 has 'weight' (Float 3 4) where rank 0 has 'weight' (Float 2 4)"),
            std::string::npos)
      << message;
  hvd::barrier();
}

RANKS_TEST(Strategy, WhatElseDiffersIsAnErrorOnAllRanks, 2) {
  const auto message_of = [](hvd::StrategyOptions options, bool frozen) {
    torch::nn::Linear net(4, 2);
    net->bias.requires_grad_(!frozen);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    std::string message;
    EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("local_sgd", net, sgd, options); }, &message),
              RUEDA_INVALID_ARGUMENT);
    return message;
  };
  const bool last = hvd::rank() == 1;
  EXPECT_NE(message_of({.local_steps = last ? 8 : 4}, false)
                .find("rank 1 has local_steps 8 where rank 0 has local_steps 4"),
            std::string::npos);
  EXPECT_NE(message_of({}, last).find("rank 1 has 'bias' in group 0 of the optimizer, frozen where "
                                      "rank 0 has 'bias' in group 0"),
            std::string::npos);
  hvd::barrier();
}

// What is not known when a strategy is made would be trained by each rank for itself.
RANKS_TEST(Strategy, ParametersThatComeLaterAreAnErrorOfTheStep, 2) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored") continue;
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Linear(4, 3));
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(name, net, adam);
    TrainStep(*strategy, Batch(0, 1));
    torch::nn::Linear more(2, 2);
    adam.add_param_group({more->parameters()});
    std::string message;
    const rueda_status status = StatusOf([&] { TrainStep(*strategy, Batch(0, 1)); }, &message);
    EXPECT_EQ(status, RUEDA_FAILED_PRECONDITION) << name;
    EXPECT_NE(message.find("make it again"), std::string::npos) << name << ": " << message;
    adam.param_groups().pop_back();
    if (name == "async") strategy->finish();
  }
}

RANKS_TEST(Strategy, ParametersThatAreUnfrozenLaterAreAnErrorOrTrained, 2) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored" || name == "pipeline") continue;
    torch::manual_seed(1);
    Net net;
    net->hidden->bias.requires_grad_(false);
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy =
        hvd::make_strategy(name, net, adam, {.warmup_steps = 2, .local_steps = 2});
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
      }
      strategy->finish();
      EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
    };
    train(4);
    const torch::Tensor before = net->hidden->bias.detach().clone();
    net->hidden->bias.requires_grad_(true);
    std::string message;
    const rueda_status status = StatusOf([&] { train(4); }, &message);
    if (status == RUEDA_OK) {
      EXPECT_GT(Distance(net->hidden->bias.detach(), before), 1e-4) << name;
    } else {
      EXPECT_EQ(status, RUEDA_FAILED_PRECONDITION) << name;
      EXPECT_NE(message.find("frozen"), std::string::npos) << name << ": " << message;
      net->hidden->bias.requires_grad_(false);
      if (name == "async") strategy->finish();
    }
  }
}

RANKS_TEST(Strategy, ModelsThatDifferInOtherTensorsAreAnErrorOnAllRanks, 2) {
  std::string message;
  const auto make = [&](torch::nn::Sequential net) {
    torch::optim::SGD sgd(net->parameters(), 0.1);
    return StatusOf([&] { (void)hvd::make_strategy("sharded", net, sgd); }, &message);
  };
  const bool last = hvd::rank() == 1;
  const auto options = torch::nn::BatchNorm1dOptions(3).track_running_stats(!last);
  EXPECT_EQ(make(torch::nn::Sequential(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(options))),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1 has nothing where rank 0 has '1.running_mean' (Float 3)"),
            std::string::npos)
      << message;
  torch::nn::Sequential convolution(torch::nn::Conv2d(2, 2, 3));
  if (last) {
    torch::Tensor weight = convolution->parameters()[0];
    weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  EXPECT_EQ(make(convolution), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("'0.weight' (Float 2 2 3 3, strides 18 1 6 2) where rank 0 has '0.weight' "
                         "(Float 2 2 3 3)"),
            std::string::npos)
      << message;
  hvd::barrier();
}

// Ranks 0 and 2 train together, while rank 1 does something else.
RANKS_TEST(Strategy, APartOfTheRanksTrains, 3) {
  const hvd::ProcessSet set = hvd::add_process_set({0, 2});
  const std::string file = "/tmp/rueda-set-" + std::string(std::getenv("RUEDA_JOB_ID"));
  const auto equal = [&](const torch::nn::Sequential& net) {
    const torch::Tensor all =
        hvd::allgather(Flat(*net).reshape({1, -1}), {.name = "replicas", .process_set = set});
    return all.size(0) == 2 && all[0].equal(all[1]);
  };
  if (!set.included()) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const torch::Tensor start = Flat(*net).clone();
    for (int step = 0; step < 20; ++step) {
      sgd.zero_grad();
      Loss(net, Batch(step, 1)).backward();
      sgd.step();
    }
    EXPECT_GT(Distance(Flat(*net), start), 1e-3);
  }
  for (const std::string& name : hvd::strategy_names()) {
    if (!set.included() || name == "dp" || name == "mirrored") continue;
    torch::manual_seed(hvd::rank());
    torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 3));
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(
        name, net, adam,
        {.process_set = set, .warmup_steps = 2, .local_steps = 2, .peers = "shift_one"});
    const auto train = [&](int from, int to) {
      for (int step = from; step < to; ++step) {
        const int shard = hvd::has_own_batches(name) ? hvd::rank() : 0;
        TrainStep(*strategy, Shard(Batch(step, hvd::size()), shard));
      }
      strategy->finish();
      EXPECT_TRUE(equal(net)) << name;
    };
    const torch::Tensor start = Flat(*net).clone();
    train(0, 5);
    EXPECT_GT(Distance(Flat(*net), start), 1e-3) << name;
    strategy->save(file);
    const torch::Tensor saved = Flat(*net).clone();
    train(5, 7);
    EXPECT_GT(Distance(Flat(*net), saved), 1e-3) << name;
    strategy->load(file);
    strategy->finish();
    EXPECT_TRUE(Flat(*net).equal(saved)) << name;
    train(5, 7);
  }
  hvd::barrier();
  if (hvd::rank() == 0) std::filesystem::remove(file);
}

RANKS_TEST(Strategy, PredividedGradientsAreTheSame, 2, 3) {
  const auto train = [](double factor) {
    torch::manual_seed(1);
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum());
    const auto strategy =
        hvd::make_strategy("ddp", net, sgd, {.gradient_predivide_factor = factor});
    for (int step = 0; step < 10; ++step) {
      TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    }
    return Flat(*net).clone();
  };
  const torch::Tensor expected = train(1);
  EXPECT_LT(Distance(train(2), expected), 1e-5);
  // That the factor reaches the gradients: what is divided by so much comes back as no number.
  EXPECT_FALSE(train(1e45).isfinite().all().item<bool>());
}

RANKS_TEST(Strategy, BeginsWithTheFirstRanksBuffersAndOptimizerState, 2, 3) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored") continue;
    for (const bool broadcast : {true, false}) {
      torch::manual_seed(hvd::rank());
      torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3),
                                torch::nn::Linear(3, 3));
      for (torch::Tensor& buffer : net->buffers()) buffer.fill_(hvd::rank() + 5);
      torch::optim::Adam adam(net->parameters(),
                              torch::optim::AdamOptions(0.01 * (hvd::rank() + 1)));
      for (int step = 0; step <= hvd::rank(); ++step) {  // the others have more behind them
        for (torch::Tensor& parameter : net->parameters()) {
          parameter.mutable_grad() = torch::full_like(parameter, hvd::rank() + 1);
        }
        adam.step();
      }
      adam.zero_grad();
      const auto strategy =
          hvd::make_strategy(name, net, adam, {.name = name, .broadcast = broadcast});
      for (const torch::Tensor& buffer : net->buffers()) {
        const double expected = 5 + (broadcast ? 0 : hvd::rank());
        EXPECT_TRUE(buffer.eq(expected).all().item<bool>()) << name;
      }
      if (name != "ddp" && name != "local_sgd") continue;  // where it is as it was
      const double rank = broadcast ? 0 : hvd::rank();
      for (const torch::Tensor& parameter : net->parameters()) {
        const auto& state = static_cast<const torch::optim::AdamParamState&>(
            *adam.state().at(parameter.unsafeGetTensorImpl()));
        EXPECT_EQ(state.step(), rank + 1) << name;
        const double momentum = (rank + 1) * (1 - std::pow(0.9, rank + 1));
        EXPECT_LT(Distance(state.exp_avg(), torch::full_like(parameter, momentum)), 1e-5) << name;
      }
    }
  }
}

}  // namespace
