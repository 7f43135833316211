// Mixed precision: autocast, and losses that are scaled, with each kind of strategy.
#include "rueda/precision.hpp"

#include <torch/torch.h>

#include <limits>

#include "rueda/training.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

struct Setting {
  std::string name;
  hvd::StrategyOptions options = {};
};

// Those whose ranks have equal gradients, or shares of them.
const std::vector<Setting>& Reduced() {
  static const std::vector<Setting> settings = {{"ddp"},
                                                {"multi_worker"},
                                                {"ddp2"},
                                                {"sharded", {.zero_stage = 1, .bucket_bytes = 256}},
                                                {"sharded", {.zero_stage = 2, .bucket_bytes = 256}},
                                                {"sharded"},
                                                {"fsdp", {.bucket_bytes = 256}}};
  return settings;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBadStep = 7;

// What becomes of a net in kSteps, in one of which one rank's loss is infinite.
struct Trained {
  torch::Tensor weights;
  std::vector<double> scales;  // after each step
  int stepped = 0;
  bool equal = true;  // the replicas, after each step
};

Trained Train(const Setting& setting, const hvd::LossScalerOptions& options, int bad_rank,
              double max_norm = 0) {
  torch::manual_seed(5);
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  const auto strategy = hvd::make_strategy(setting.name, net, sgd, setting.options);
  hvd::LossScaler scaler(options);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    strategy->zero_grad();
    const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
    torch::Tensor loss = torch::mse_loss(strategy->forward(own.x), own.y);
    if (step == kBadStep && hvd::rank() == bad_rank) loss = loss * kInfinity;
    strategy->backward(scaler.scale(loss));
    if (max_norm > 0) {
      scaler.unscale(*strategy);
      strategy->clip_grad_norm(max_norm);
    }
    const torch::Tensor before = Flat(*net);
    const bool stepped = scaler.step(*strategy);
    EXPECT_EQ(stepped, !before.equal(Flat(*net))) << step;
    trained.stepped += stepped;
    trained.scales.push_back(scaler.scale());
    trained.equal &= ReplicasEqual(Flat(*net));
  }
  strategy->finish();
  trained.weights = Flat(*net);
  return trained;
}

// One process, on all ranks' batches, that leaves the bad step out.
torch::Tensor Reference(bool sums, double max_norm = 0) {
  torch::manual_seed(5);
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    (Loss(net, Batch(step, hvd::size())) * (sums ? hvd::size() : 1)).backward();
    if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
    if (step != kBadStep) sgd.step();
  }
  return Flat(*net);
}

RANKS_TEST(LossScaler, OneRanksInfinityIsASkippedStepOfAll, 1, 2, 3) {
  const hvd::LossScalerOptions options = {.initial_scale = 1024, .growth_interval = 5};
  for (const Setting& setting : Reduced()) {
    for (const double max_norm : {0.0, 0.05}) {
      const Trained trained = Train(setting, options, hvd::size() - 1, max_norm);
      const std::string what = setting.name + std::to_string(setting.options.zero_stage);
      EXPECT_TRUE(trained.equal) << what;
      EXPECT_EQ(trained.stepped, kSteps - 1) << what;
      EXPECT_LT(Distance(trained.weights, Reference(setting.name == "multi_worker", max_norm)),
                1e-5)
          << what;
      // Grows after the 5th, halved by the 8th, grows 5 and 10 steps later.
      EXPECT_EQ(trained.scales[3], 1024) << what;
      EXPECT_EQ(trained.scales[4], 2048) << what;
      EXPECT_EQ(trained.scales[6], 2048) << what;
      EXPECT_EQ(trained.scales[7], 1024) << what;
      EXPECT_EQ(trained.scales[12], 2048) << what;
      EXPECT_EQ(trained.scales[17], 4096) << what;
    }
  }
}

// That it can fail: a rank that nobody votes with goes on alone.
RANKS_TEST(LossScaler, WithoutTheOthersARankSkipsAlone, 2) {
  std::vector<hvd::ProcessSet> alone;
  for (int rank = 0; rank < hvd::size(); ++rank) alone.push_back(hvd::add_process_set({rank}));
  for (const char* name : {"ddp", "sharded"}) {
    const Trained trained = Train({name, {.process_set = alone[hvd::rank()]}}, {}, 1);
    EXPECT_EQ(trained.stepped, kSteps - (hvd::rank() == 1 ? 1 : 0));
    EXPECT_FALSE(trained.equal);
  }
}

// Infinite on one rank and finite elsewhere, in a share that is the other rank's.
RANKS_TEST(LossScaler, AnInfinityInAnyShareIsSeenByAll, 2, 3) {
  struct Weights : torch::nn::Module {
    Weights() { w = register_parameter("w", torch::zeros({3 * 64})); }
    torch::Tensor w;
  };
  for (const int stage : {1, 2}) {
    const auto weights = std::make_shared<Weights>();
    torch::optim::SGD sgd(weights->parameters(), 1.0);
    const auto strategy = hvd::make_strategy("sharded", weights, sgd, {.zero_stage = stage});
    hvd::LossScaler scaler;
    for (int64_t bad = 0; bad < 3 * 64; bad += 64) {
      for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        torch::Tensor factors = torch::ones({3 * 64});
        if (hvd::rank() == 1) factors[bad] = value;
        strategy->backward(scaler.scale((weights->w * factors).sum()));
        EXPECT_FALSE(scaler.step(*strategy));
      }
    }
    EXPECT_EQ(scaler.scale(), 128);
    strategy->backward(scaler.scale(weights->w.sum()));
    EXPECT_TRUE(scaler.step(*strategy));
    EXPECT_TRUE(weights->w.eq(-1).all().item<bool>());
  }
}

// Whatever a compressor makes of an infinity, and of what it remembers.
RANKS_TEST(LossScaler, OneRanksInfinityComesThroughCompression, 2, 3) {
  std::vector<Setting> settings = {{"bytegrad"}, {"qadam", {.warmup_steps = 3}}};
  for (const char* compression : {"fp16", "int8", "1bit", "topk:0.1", "powersgd:2"}) {
    settings.push_back({"ddp", {.compression = compression}});
  }
  for (const Setting& setting : settings) {
    const std::string what = setting.name + " " + setting.options.compression;
    torch::manual_seed(5);
    Net net;
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(setting.name, net, adam, setting.options);
    hvd::LossScaler scaler({.initial_scale = 1024});
    double first_loss = 0, last_loss = 0;
    for (int step = 0; step < kSteps; ++step) {
      strategy->zero_grad();
      const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
      torch::Tensor loss = torch::mse_loss(strategy->forward(own.x), own.y);
      last_loss = loss.item<double>();
      if (step == 0) first_loss = last_loss;
      // Before qadam's warm-up ends, and after.
      const bool bad = step == 1 || step == kBadStep;
      if (bad && hvd::rank() == 1) loss = loss * kInfinity;
      strategy->backward(scaler.scale(loss));
      EXPECT_EQ(scaler.step(*strategy), !bad) << what << " " << step;
      EXPECT_TRUE(ReplicasEqual(Flat(*net))) << what << " " << step;
    }
    strategy->finish();
    EXPECT_EQ(scaler.scale(), 256) << what;
    EXPECT_TRUE(Flat(*net).isfinite().all().item<bool>()) << what;
    EXPECT_LT(last_loss, first_loss) << what;
  }
}

// Of all stages, whichever has the gradients that are not finite.
RANKS_TEST(LossScaler, AllStagesOfAPipelineSkip, 2, 3) {
  for (const auto& [type, error] :
       {std::pair(torch::kFloat, 1e-5), {torch::kHalf, 5e-3}, {torch::kBFloat16, 5e-2}}) {
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 3));
    const auto reference = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
    torch::optim::SGD reference_sgd(reference->parameters(), Momentum(0.05));
    const auto strategy = hvd::make_strategy("pipeline", net, sgd);
    hvd::LossScaler scaler({.initial_scale = 1024});
    for (int step = 0; step < kSteps; ++step) {
      const Samples all = Batch(step, 2);
      strategy->zero_grad();
      torch::Tensor loss;
      {
        const hvd::Autocast autocast(type);
        loss = torch::mse_loss(strategy->forward(all.x), all.y);
      }
      // Not in the first stage's, whose gradients are taken from here.
      const torch::Tensor last = net->parameters().back();
      if (step == kBadStep) loss = loss + (last * kInfinity).sum();
      strategy->backward(scaler.scale(loss));
      EXPECT_EQ(scaler.step(*strategy), step != kBadStep);
      reference_sgd.zero_grad();
      torch::mse_loss(reference->forward(all.x), all.y).backward();
      if (step != kBadStep) reference_sgd.step();
    }
    EXPECT_EQ(scaler.scale(), 512);
    strategy->finish();
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), error) << type;
  }
}

// Powers of two are exact.
RANKS_TEST(LossScaler, LeavesTheBitsAsTheyAre, 2) {
  for (const Setting& setting : Reduced()) {
    const torch::Tensor scaled = Train(setting, {.growth_interval = 3}, -1).weights;
    EXPECT_TRUE(scaled.equal(Train(setting, {.initial_scale = 1}, -1).weights)) << setting.name;
  }
}

// The scale and the skipped step are one rank's own; averages go on, and nobody waits forever.
RANKS_TEST(LossScaler, RanksThatStepByThemselvesSkipByThemselves, 1, 2, 3) {
  std::vector<Setting> settings = {{"local_sgd", {.local_steps = 3}},
                                   {"diloco", {.local_steps = 3}},
                                   {"adasum"},
                                   {"decentralized"},
                                   {"low_precision_decentralized"},
                                   {"async"}};
  if (hvd::size() == 2) settings.push_back({"decentralized", {.peers = "shift_one"}});
  for (const Setting& setting : settings) {
    torch::manual_seed(5);
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum(0.02));
    const auto strategy = hvd::make_strategy(setting.name, net, sgd, setting.options);
    hvd::LossScaler scaler({.initial_scale = 1024});
    double first_loss = 0, last_loss = 0;
    for (int step = 0; step < kSteps; ++step) {
      strategy->zero_grad();
      const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
      torch::Tensor loss = torch::mse_loss(strategy->forward(own.x), own.y);
      last_loss = loss.item<double>();
      if (step == 0) first_loss = last_loss;
      const bool bad = step % 4 == 1 && hvd::rank() == hvd::size() - 1;
      if (bad) loss = loss * kInfinity;
      strategy->backward(scaler.scale(loss));
      EXPECT_EQ(scaler.step(*strategy), !bad);
    }
    strategy->finish();
    EXPECT_EQ(scaler.scale(), hvd::rank() == hvd::size() - 1 ? 32 : 1024) << setting.name;
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << setting.name;
    EXPECT_TRUE(Flat(*net).isfinite().all().item<bool>()) << setting.name;
    EXPECT_LT(last_loss, first_loss) << setting.name;
  }
}

RANKS_TEST(LossScaler, GoesOnFromItsState, 1) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  const auto step = [&](hvd::LossScaler& scaler, float factor) {
    strategy->zero_grad();
    strategy->backward(scaler.scale(Loss(net, Batch(0, 1)) * factor));
    return scaler.step(*strategy);
  };
  hvd::LossScaler first({.growth_interval = 3});
  EXPECT_FALSE(step(first, kInfinity));
  EXPECT_TRUE(step(first, 1));
  EXPECT_TRUE(step(first, 1));
  hvd::LossScaler second({.growth_interval = 3});
  second.set_state(first.state());
  EXPECT_TRUE(step(second, 1));
  EXPECT_EQ(second.scale(), 65536) << "halved, and grown in the third step";
  EXPECT_EQ(second.state().skipped_steps, 1);
}

RANKS_TEST(LossScaler, SaysWhenTheLossItselfIsBad, 2) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  hvd::LossScaler scaler;
  std::string message;
  int steps = 0;
  const rueda_status status = StatusOf(
      [&] {
        for (; steps < 1000; ++steps) {
          strategy->zero_grad();
          strategy->backward(scaler.scale(Loss(net, Batch(0, 1)) * kInfinity));
          scaler.step(*strategy);
        }
      },
      &message);
  EXPECT_EQ(status, RUEDA_FAILED_PRECONDITION);
  EXPECT_LT(steps, 100);
  EXPECT_NE(message.find("the loss infinite or NaN itself"), std::string::npos) << message;
}

RANKS_TEST(LossScaler, MistakesAreRefused, 1) {
  std::string message;
  const auto make = [&](const hvd::LossScalerOptions& options) {
    return StatusOf([&] { hvd::LossScaler scaler(options); }, &message);
  };
  EXPECT_EQ(make({.initial_scale = 0}), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(make({.growth_factor = 0.5}), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(make({.backoff_factor = 1}), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(make({.growth_interval = 0}), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("growth_interval"), std::string::npos) << message;
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  hvd::LossScaler scaler;
  strategy->backward(scaler.scale(Loss(net, Batch(0, 1))));
  EXPECT_TRUE(scaler.unscale(*strategy));
  EXPECT_EQ(StatusOf([&] { scaler.unscale(*strategy); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_TRUE(scaler.step(*strategy));
  EXPECT_EQ(StatusOf([] { const hvd::Autocast autocast(torch::kDouble); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("the type is Double"), std::string::npos) << message;
}

TEST(Autocast, ComputesInItsTypeWhileItLives) {
  const torch::Tensor x = torch::randn({4, 6});
  torch::nn::Linear linear(6, 3);
  const auto type = [&] { return linear(x).scalar_type(); };
  EXPECT_EQ(type(), torch::kFloat);
  {
    const hvd::Autocast half(torch::kHalf);
    EXPECT_EQ(type(), torch::kHalf);
    {
      const hvd::Autocast bfloat16(torch::kBFloat16);
      EXPECT_EQ(type(), torch::kBFloat16);
      EXPECT_EQ(torch::mse_loss(linear(x), x.narrow(1, 0, 3)).scalar_type(), torch::kFloat);
    }
    EXPECT_EQ(type(), torch::kHalf);
    {
      const hvd::Autocast none(torch::kFloat);
      EXPECT_EQ(type(), torch::kFloat);
    }
    EXPECT_EQ(type(), torch::kHalf);
  }
  EXPECT_EQ(type(), torch::kFloat);
}

// A cast of the weights that outlives a step would be of the old ones.
TEST(Autocast, SeesTheWeightsOfTheLastStep) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  const auto output = [&] {
    const hvd::Autocast autocast(torch::kBFloat16);
    return linear(torch::ones({1, 1})).item<float>();
  };
  for (const float weight : {2.0f, 3.0f}) {
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(weight);
    }
    EXPECT_EQ(output(), weight);
  }
}

torch::Tensor TrainIn(torch::ScalarType type, const Setting& setting, int rank, int ranks) {
  torch::manual_seed(5);
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  const auto strategy = hvd::make_strategy(setting.name, net, sgd, setting.options);
  hvd::LossScaler scaler;
  for (int step = 0; step < kSteps; ++step) {
    strategy->zero_grad();
    const Samples own = Shard(Batch(step, ranks), rank);
    torch::Tensor loss;
    {
      const hvd::Autocast autocast(type);
      const torch::Tensor output = strategy->forward(own.x);
      EXPECT_EQ(output.scalar_type(), type) << setting.name;
      loss = torch::mse_loss(output, own.y);
    }
    strategy->backward(scaler.scale(loss));
    EXPECT_TRUE(scaler.step(*strategy));
  }
  strategy->finish();
  return Flat(*net);
}

RANKS_TEST(Autocast, TrainsNearlyAsFloat32WithEachStrategy, 1, 2) {
  for (const Setting& setting : Reduced()) {
    const torch::Tensor whole = TrainIn(torch::kFloat, setting, hvd::rank(), hvd::size());
    for (const auto& [type, error] : {std::pair(torch::kHalf, 5e-3), {torch::kBFloat16, 3e-2}}) {
      const torch::Tensor part = TrainIn(type, setting, hvd::rank(), hvd::size());
      EXPECT_TRUE(ReplicasEqual(part)) << setting.name;
      EXPECT_LT(Distance(part, whole), error) << setting.name << " " << type;
      EXPECT_GT(Distance(part, whole), 0) << "the types differ";
    }
  }
}

// Gradients that float16 has not, but for the scale.
RANKS_TEST(Autocast, SmallGradientsNeedTheScaler, 2) {
  for (const bool scaled : {true, false}) {
    torch::manual_seed(5);
    Net net;
    torch::optim::SGD sgd(net->parameters(), 1e8);
    const auto strategy = hvd::make_strategy("sharded", net, sgd);
    hvd::LossScaler scaler({.initial_scale = scaled ? 65536.0 : 1.0});
    const torch::Tensor before = Flat(*net);
    const Samples own = Shard(Batch(0, hvd::size()), hvd::rank());
    torch::Tensor loss;
    {
      const hvd::Autocast autocast(torch::kHalf);
      loss = torch::mse_loss(strategy->forward(own.x), own.y) * 1e-8;
    }
    strategy->backward(scaler.scale(loss));
    EXPECT_TRUE(scaler.step(*strategy));
    const auto moved = Flat(*net).ne(before).sum().item<int64_t>();
    EXPECT_EQ(moved > 10, scaled) << moved;
  }
}

}  // namespace
