// Compressed gradients, momenta and parameters: ddp, bytegrad, qadam, low_precision_decentralized.
#include <torch/torch.h>

#include <filesystem>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
using torch::Tensor;

struct Result {
  Tensor flat;
  int equal_steps = 0;
  double loss = 0;  // over all ranks' batches, of the model before finish
};

template <typename Optimizer, typename Options>
Result Train(const std::string& name, hvd::StrategyOptions options, const Options& optimizer,
             int steps) {
  // What another one has lost is not this one's.
  static int count = 0;
  options.name = "training " + std::to_string(++count);
  torch::manual_seed(1);
  Net net;
  Optimizer optim(net->parameters(), optimizer);
  const auto strategy = hvd::make_strategy(name, net, optim, options);
  Result result;
  for (int step = 0; step < steps; ++step) {
    TrainStep(*strategy, Shard(Batch(step % 4, hvd::size()), hvd::rank()));
    result.equal_steps += ReplicasEqual(Flat(*net));
  }
  result.flat = Flat(*net);
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < 4; ++step) {
    result.loss += Loss(net, Batch(step, hvd::size())).item<double>() / 4;
  }
  strategy->finish();
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  return result;
}

Result TrainDdp(const std::string& compression, int steps = kSteps) {
  return Train<torch::optim::SGD>("ddp", {.compression = compression}, Momentum(0.05), steps);
}

RANKS_TEST(Compression, OfAllElementsIsNone, 1, 2, 3) {
  const Comparison comparison = CompareWithOneProcess("ddp", {.compression = "topk:1"}, 4);
  EXPECT_EQ(comparison.equal_steps, kSteps);
  EXPECT_LT(comparison.distance, 1e-5);
}

// All get where float32 gets, or nearly; the replicas have the same bits all the time.
RANKS_TEST(Compression, TrainsAsWellAsNone, 2) {
  constexpr int kMany = 120;
  const Result none = TrainDdp("", kMany);
  for (const char* compression :
       {"fp16", "bf16", "fp8", "int8", "1bit", "topk:0.1", "powersgd:1", "auto"}) {
    const Result result = TrainDdp(compression, kMany);
    EXPECT_EQ(result.equal_steps, kMany) << compression;
    EXPECT_LT(result.loss, 1.5 * none.loss + 0.005) << compression;
  }
  EXPECT_LT(Distance(TrainDdp("fp16").flat, TrainDdp("").flat), 2e-3);
  EXPECT_GT(Distance(TrainDdp("1bit").flat, TrainDdp("").flat), 2e-3) << "it is compressed";
}

// Gradients are what is compressed, parameters come whole.
RANKS_TEST(Compression, GoesWithShards, 2, 3) {
  for (const char* name : {"sharded", "fsdp"}) {
    const Comparison exact = CompareWithOneProcess(
        name, {.name = name, .compression = "topk:1", .bucket_bytes = 400}, 2);
    EXPECT_EQ(exact.equal_steps, kSteps) << name;
    EXPECT_LT(exact.distance, 1e-5) << name;
    for (const char* compression : {"fp16", "int8", "1bit", "powersgd:2"}) {
      const Result none = Train<torch::optim::SGD>(name, {}, Momentum(0.05), 60);
      const Result result =
          Train<torch::optim::SGD>(name, {.compression = compression}, Momentum(0.05), 60);
      EXPECT_LT(result.loss, 1.5 * none.loss + 0.01) << name << " " << compression;
      EXPECT_GT(Distance(result.flat, none.flat), 0) << name << " " << compression;
    }
  }
}

// Of the first element, the larger, the ranks' gradients cancel each other: without feedback
// nothing else is ever sent.
RANKS_TEST(Compression, FeedbackBringsWhatIsSmall, 2) {
  for (const bool feedback : {true, false}) {
    struct Pair : torch::nn::Module {
      Pair() : w(register_parameter("w", torch::zeros({2}))) {}
      Tensor forward(const Tensor& x) { return w * x; }
      Tensor w;
    };
    const auto pair = std::make_shared<Pair>();
    torch::optim::SGD sgd(pair->parameters(), 1.0);
    const auto strategy =
        hvd::make_strategy("ddp", pair, sgd,
                           {.name = feedback ? "with" : "without",
                            .compression = feedback ? "topk:0.5" : "topk:0.5,no_feedback"});
    for (int step = 0; step < 40; ++step) {
      strategy->zero_grad();
      const float large = hvd::rank() == 0 ? 10 : -10;
      strategy->backward(strategy->forward(torch::tensor({large, 1.0f})).sum());
      strategy->step();
    }
    const float moved = -pair->w[1].item<float>();
    if (feedback) {
      EXPECT_GT(moved, 40 - 12) << "but for what waits for its turn";
    } else {
      EXPECT_EQ(moved, 0);
    }
  }
}

RANKS_TEST(Compression, GoesIntoCheckpoints, 2) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("rueda_lost_" + std::to_string(getppid()));
  for (const char* compression : {"1bit", "topk:0.1", "powersgd:1"}) {
    // One run without a break, and one whose second half begins with the file.
    Tensor whole;
    {
      Net net;
      torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
      const auto strategy = hvd::make_strategy("ddp", net, sgd, {.compression = compression});
      for (int step = 0; step < 6; ++step) {
        TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
      }
      strategy->save(path);
      for (int step = 6; step < 12; ++step) {
        TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
      }
      whole = Flat(*net);
    }
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
    const auto strategy = hvd::make_strategy("ddp", net, sgd, {.compression = compression});
    strategy->load(path);
    for (int step = 6; step < 12; ++step) {
      TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    }
    EXPECT_TRUE(torch::equal(Flat(*net), whole)) << compression;
  }
  hvd::barrier();
  if (hvd::rank() == 0) std::filesystem::remove(path);
}

RANKS_TEST(Compression, MistakesAreNamed, 1, 2) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  const auto make = [&](const std::string& name, const std::string& compression) {
    return StatusOf([&] { (void)hvd::make_strategy(name, net, sgd, {.compression = compression}); },
                    &message);
  };
  EXPECT_EQ(make("ddp", "zip"), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("compressor 'zip': unknown"), std::string::npos) << message;
  EXPECT_EQ(make("local_sgd", "int8"), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("local_sgd: takes no compression; ddp"), std::string::npos) << message;
  EXPECT_EQ(StatusOf(
                [&] {
                  hvd::DistributedOptimizer optimizer(
                      sgd, net->named_parameters(),
                      {.op = hvd::Adasum, .compression = "fp16", .name = "other"});
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("Average and Sum"), std::string::npos) << message;
}

// The quantiser in another way: blocks of 512 of each parameter, 256 steps.
Tensor Quantised(const Tensor& values) {
  const Tensor flat = values.detach().reshape({-1});
  std::vector<Tensor> blocks;
  for (const Tensor& block : flat.split(512)) {
    const Tensor step = (block.max() - block.min()) / 255;
    const Tensor levels = ((block - block.min()) / step + 0.5).floor().clamp(0, 255);
    blocks.push_back(levels * step + block.min());
  }
  return torch::cat(blocks).view(values.sizes());
}

RANKS_TEST(ByteGrad, IsTheQuantisedMeanOfQuantisedGradients, 2, 3) {
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Net model = CopyOf(net);
  const auto strategy = hvd::make_strategy("bytegrad", net, sgd);
  for (int step = 0; step < 5; ++step) {
    TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    std::vector<Tensor> means;
    for (const Tensor& parameter : model->parameters())
      means.push_back(torch::zeros_like(parameter));
    for (int rank = 0; rank < hvd::size(); ++rank) {
      model->zero_grad();
      Loss(model, Shard(Batch(step, hvd::size()), rank)).backward();
      for (size_t i = 0; i < means.size(); ++i) {
        means[i] += Quantised(model->parameters()[i].grad()) / hvd::size();
      }
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < means.size(); ++i) {
      const Tensor moved = model->parameters()[i] - Quantised(means[i]);
      // Where a number lies between two steps the last bits decide: a step of the quantiser.
      const double tolerance = 1.5 * (means[i].max() - means[i].min()).item<double>() / 255;
      EXPECT_LT(Distance(net->parameters()[i], moved), tolerance) << step;
      // And nearly all of them are the same.
      const double same =
          (net->parameters()[i] - moved).abs().lt(1e-6).to(torch::kDouble).mean().item<double>();
      EXPECT_GT(same, 0.9) << step;
      model->parameters()[i].copy_(net->parameters()[i]);
    }
  }
}

// The rule, in one process and float64. `wd`: decoupled if the optimizer is an AdamW.
Tensor QAdamModel(int steps, int warmup, bool decoupled, double weight_decay) {
  torch::manual_seed(1);
  Net net;
  net->to(torch::kDouble);
  const size_t count = net->parameters().size();
  const int ranks = hvd::size();
  constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-8;
  std::vector<Tensor> m, v;
  for (const Tensor& parameter : net->parameters()) {
    m.push_back(torch::zeros_like(parameter));
    v.push_back(torch::zeros_like(parameter));
  }
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensor> mean;
    for (const Tensor& parameter : net->parameters()) mean.push_back(torch::zeros_like(parameter));
    for (int rank = 0; rank < ranks; ++rank) {
      const Samples own = Shard(Batch(step % 4, ranks), rank);
      net->zero_grad();
      torch::mse_loss(net->forward(own.x.to(torch::kDouble)), own.y.to(torch::kDouble)).backward();
      for (size_t i = 0; i < count; ++i) mean[i] += net->parameters()[i].grad() / ranks;
    }
    const torch::NoGradGuard no_grad;
    const double share1 = 1 - std::pow(kBeta1, step + 1);
    const double share2 = 1 - std::pow(kBeta2, std::min(step + 1, warmup));
    for (size_t i = 0; i < count; ++i) {
      Tensor p = net->parameters()[i];
      const Tensor g = decoupled ? mean[i] : mean[i] + weight_decay * p;
      if (decoupled) p.mul_(1 - kLr * weight_decay);
      // The mean of the ranks' momenta is the momentum of their mean gradient.
      m[i].mul_(kBeta1).add_(g, 1 - kBeta1);
      if (step < warmup) v[i].mul_(kBeta2).add_(g * g, 1 - kBeta2);
      p.sub_(kLr / share1 * m[i] / ((v[i] / share2).sqrt() + kEps));
    }
  }
  return Flat(*net).to(torch::kFloat);
}

RANKS_TEST(QAdam, FollowsTheRuleAndNearlySoInEightBits, 1, 2, 3) {
  const hvd::StrategyOptions exact = {.compression = "topk:1", .warmup_steps = 8};
  const hvd::StrategyOptions bits = {.warmup_steps = 8};
  const auto adam = torch::optim::AdamOptions(0.01).betas({0.9, 0.99}).weight_decay(0.01);
  const Tensor model = QAdamModel(20, 8, false, 0.01);
  const Result followed = Train<torch::optim::Adam>("qadam", exact, adam, 20);
  EXPECT_EQ(followed.equal_steps, 20);
  EXPECT_LT(Distance(followed.flat, model), 1e-4);
  const Result quantised = Train<torch::optim::Adam>("qadam", bits, adam, 20);
  EXPECT_EQ(quantised.equal_steps, 20);
  EXPECT_LT(Distance(quantised.flat, model), 0.03);
  if (hvd::size() > 1) {
    EXPECT_GT(Distance(quantised.flat, model), 1e-4) << "it is compressed";
  }
  const auto adamw = torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1);
  EXPECT_LT(Distance(Train<torch::optim::AdamW>("qadam", exact, adamw, 20).flat,
                     QAdamModel(20, 8, true, 0.1)),
            1e-4);
}

// From an Adam that has stepped for longer than the warm-up: its variance is of all those steps.
RANKS_TEST(QAdam, GoesOnFromAnAdam, 2) {
  torch::manual_seed(1);
  Net net;
  const auto options = torch::optim::AdamOptions(0.01).betas({0.9, 0.99}).weight_decay(0.01);
  torch::optim::Adam adam(net->parameters(), options);
  const std::string file = "/tmp/rueda-qadam-" + std::string(std::getenv("RUEDA_JOB_ID"));
  const auto train = [&](hvd::Strategy& strategy, int from, int to) {
    for (int step = from; step < to; ++step) {
      TrainStep(strategy, Shard(Batch(step % 4, hvd::size()), hvd::rank()));
    }
  };
  {
    const auto ddp = hvd::make_strategy("ddp", net, adam);
    train(*ddp, 0, 10);
  }
  const hvd::StrategyOptions whole = {.compression = "topk:1", .warmup_steps = 3};
  {
    const auto qadam = hvd::make_strategy("qadam", net, adam, whole);
    train(*qadam, 10, 15);
    qadam->save(file);
  }
  {
    const auto again = hvd::make_strategy("qadam", net, adam, whole);
    again->load(file);
    train(*again, 15, 20);
  }
  EXPECT_LT(Distance(Flat(*net), QAdamModel(20, 10, false, 0.01)), 1e-4);
  if (hvd::rank() == 0) std::filesystem::remove(file);
}

RANKS_TEST(QAdam, TakesParametersThatAreNotCompressed, 2) {
  torch::manual_seed(1);
  Net net;
  net->to(torch::kDouble);
  torch::optim::Adam adam(net->parameters(),
                          torch::optim::AdamOptions(0.01).betas({0.9, 0.99}).weight_decay(0.01));
  const auto strategy = hvd::make_strategy("qadam", net, adam, {.warmup_steps = 8});
  for (int step = 0; step < 20; ++step) {
    const Samples own = Shard(Batch(step % 4, hvd::size()), hvd::rank());
    TrainStep(*strategy, {own.x.to(torch::kDouble), own.y.to(torch::kDouble)});
  }
  EXPECT_LT(Distance(Flat(*net), QAdamModel(20, 8, false, 0.01)), 1e-6);
}

// Their variance is 0, and a momentum that the quantiser made of nothing would be divided by it.
RANKS_TEST(QAdam, WeightsOfInputsThatAreAlwaysZeroStay, 2) {
  torch::manual_seed(1);
  torch::nn::Linear layer(64, 8);
  const Tensor before = layer->weight.detach().clone();
  torch::optim::Adam adam(layer->parameters(), 0.01);
  const auto strategy = hvd::make_strategy("qadam", layer, adam, {.warmup_steps = 5});
  torch::manual_seed(2 + hvd::rank());
  const Tensor x = torch::randn({16, 64}), y = torch::randn({16, 8});
  x.narrow(1, 32, 32).zero_();
  for (int step = 0; step < 40; ++step) TrainStep(*strategy, {x, y});
  const Tensor moved = (layer->weight.detach() - before).abs();
  EXPECT_LT(moved.narrow(1, 32, 32).max().item<float>(), 0.01) << "a step of Adam's";
  EXPECT_GT(moved.narrow(1, 0, 32).max().item<float>(), 0.1);
}

RANKS_TEST(QAdam, IsForAdamAlone, 1) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("qadam", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("needs an Adam or AdamW"), std::string::npos) << message;
}

// All ranks in one process, `local_size` of which average first; `quantise` as the ranks do it, or
// not at all.
Tensor RingModel(int steps, const std::function<Tensor(const Tensor&)>& quantise,
                 int local_size = 1) {
  const int ranks = hvd::size(), hosts = ranks / local_size;
  std::vector<Net> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> sgds;
  std::vector<Tensor> known;  // by host
  for (int rank = 0; rank < ranks; ++rank) {
    torch::manual_seed(1);
    nets.emplace_back();
    sgds.push_back(std::make_unique<torch::optim::SGD>(nets.back()->parameters(), Momentum(0.05)));
    if (rank < hosts) known.push_back(Flat(*nets.back()));
  }
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensor> changes;
    for (int host = 0; host < hosts; ++host) {
      Tensor mean = torch::zeros_like(known[host]);
      for (int rank = host * local_size; rank < (host + 1) * local_size; ++rank) {
        sgds[rank]->zero_grad();
        Loss(nets[rank], Shard(Batch(step % 4, ranks), rank)).backward();
        sgds[rank]->step();
        mean += Flat(*nets[rank]) / local_size;
      }
      const Tensor &left = known[(host + hosts - 1) % hosts], &right = known[(host + 1) % hosts];
      changes.push_back(quantise(mean + left / 3 + right / 3 - known[host] * (5.0 / 3)));
    }
    const torch::NoGradGuard no_grad;
    for (int host = 0; host < hosts; ++host) known[host] = known[host] + changes[host];
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t begin = 0;
      for (Tensor& parameter : nets[rank]->parameters()) {
        parameter.copy_(
            known[rank / local_size].narrow(0, begin, parameter.numel()).view(parameter.sizes()));
        begin += parameter.numel();
      }
    }
  }
  return Flat(*nets[hvd::rank()]);
}

RANKS_TEST(LowPrecision, IsAnAverageOverTheRingInEightBits, 2, 3, 4) {
  const auto train = [](int steps) {
    return Train<torch::optim::SGD>("low_precision_decentralized", {}, Momentum(0.05), steps);
  };
  EXPECT_LT(Distance(train(3).flat, RingModel(3, Quantised)), 2e-3);
  const Result result = train(40);
  EXPECT_EQ(result.equal_steps, 0) << "ranks differ while they train";
  const Tensor whole = RingModel(40, [](const Tensor& change) { return change; });
  EXPECT_LT(Distance(result.flat, whole), 0.03) << "errors of the quantiser don't add up";
}

void ThreeHostsOfTwo() {
  const auto train = [](int steps) {
    return Train<torch::optim::SGD>("low_precision_decentralized", {.hierarchical = true},
                                    Momentum(0.05), steps);
  };
  // The blocks that share a scale are others in a share.
  EXPECT_LT(Distance(train(3).flat, RingModel(3, Quantised, 2)), 5e-3);
  const Tensor whole = RingModel(
      40, [](const Tensor& change) { return change; }, 2);
  EXPECT_LT(Distance(train(40).flat, whole), 0.03);
}
TEST(LowPrecision, HostsAreARingAsRanksAre) {
  RunRanks(6, ThreeHostsOfTwo, {{"RUEDA_HOSTS_FAKE", "3"}});
}

// Each row is a block of equal numbers, which eight bits keep.
RANKS_TEST(LowPrecision, LargeModelsAreWorkedOnInChunks, 2) {
  constexpr int64_t kRows = 300, kColumns = 512;
  torch::nn::Linear layer(torch::nn::LinearOptions(kColumns, kRows).bias(false));
  {
    const torch::NoGradGuard no_grad;
    layer->weight.zero_();
  }
  const auto gradient = [](int rank) { return torch::arange(1, kRows + 1) * (rank + 1) / 100.0; };
  torch::optim::SGD sgd(layer->parameters(), 1.0);
  const auto strategy = hvd::make_strategy("low_precision_decentralized", layer, sgd);
  for (int step = 0; step < 2; ++step) {
    strategy->zero_grad();
    const Tensor out = strategy->forward(torch::ones({1, kColumns}));
    strategy->backward((out * gradient(hvd::rank())).sum());
    strategy->step();
  }
  const Tensor expected =
      -gradient(hvd::rank()) * (4.0 / 3) - gradient(1 - hvd::rank()) * (2.0 / 3);
  EXPECT_LT(Distance(layer->weight.detach(), expected.view({-1, 1}).expand({kRows, kColumns})),
            1e-3);
}

RANKS_TEST(LowPrecision, OneRankTrainsByItself, 1) {
  const Result result =
      Train<torch::optim::SGD>("low_precision_decentralized", {}, Momentum(0.05), 10);
  EXPECT_TRUE(torch::equal(result.flat, TrainDdp("", 10).flat));
}

}  // namespace
