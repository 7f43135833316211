// decentralized and async: ranks whose parameters differ, and come together.
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"
#include "test/torch/weights.h"

namespace hvd = rueda::libtorch;
namespace fs = std::filesystem;

namespace {

using namespace rueda::test;

// The largest distance of a rank's parameters from the mean of all.
double ConsensusDistance(const torch::Tensor& flat) {
  const torch::Tensor mean = hvd::allreduce(flat, {.name = "mean"});
  return hvd::allreduce(torch::tensor(Distance(flat, mean)), {.name = "distance", .op = hvd::Max})
      .item<double>();
}

// All ranks' nets in one process. `peers_of`: whose parameters a rank averages in a step.
std::vector<torch::Tensor> TrainAll(int steps,
                                    const std::function<std::vector<int>(int, int)>& peers_of) {
  std::vector<Net> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> sgds;
  for (int rank = 0; rank < hvd::size(); ++rank) {
    torch::manual_seed(rank);
    nets.emplace_back();
    sgds.push_back(std::make_unique<torch::optim::SGD>(nets.back()->parameters(), Momentum()));
  }
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < hvd::size(); ++rank) {
      sgds[rank]->zero_grad();
      Loss(nets[rank], Shard(Batch(step, hvd::size()), rank)).backward();
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      std::vector<torch::Tensor> averages;
      for (int rank = 0; rank < hvd::size(); ++rank) {
        torch::Tensor sum = torch::zeros_like(nets[0]->parameters()[i], torch::kDouble);
        for (const int peer : peers_of(rank, step)) sum += nets[peer]->parameters()[i];
        averages.push_back(sum / static_cast<double>(peers_of(rank, step).size()));
      }
      for (int rank = 0; rank < hvd::size(); ++rank) {
        nets[rank]->parameters()[i].copy_(averages[rank]);
      }
    }
    for (auto& sgd : sgds) sgd->step();
  }
  std::vector<torch::Tensor> flats;
  for (const Net& net : nets) flats.push_back(Flat(*net));
  return flats;
}

struct Result {
  torch::Tensor flat;
  std::vector<double> distances;  // after each step
};

Result Train(const hvd::StrategyOptions& options, int steps) {
  torch::manual_seed(hvd::rank());
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("decentralized", net, sgd, options);
  Result result;
  result.distances.push_back(ConsensusDistance(Flat(*net)));
  for (int step = 0; step < steps; ++step) {
    TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
    result.distances.push_back(ConsensusDistance(Flat(*net)));
  }
  result.flat = Flat(*net);
  strategy->finish();
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  return result;
}

RANKS_TEST(Decentralized, StepsFromTheAverageOfItsPeers, 1, 2, 4) {
  const int ranks = hvd::size();
  const Result all = Train({.broadcast = false, .peers = "all"}, 10);
  std::vector<int> everybody;
  for (int rank = 0; rank < ranks; ++rank) everybody.push_back(rank);
  const auto model = TrainAll(10, [&](int, int) { return everybody; });
  EXPECT_LT(Distance(all.flat, model[hvd::rank()]), 1e-5);

  const Result shift = Train({.broadcast = false, .peers = "shift_one"}, 10);
  // Rank 0 and 1 meet 2 and 3, then 3 and 2.
  const auto pairs = TrainAll(10, [&](int rank, int step) -> std::vector<int> {
    if (ranks == 1) return {0};
    if (ranks == 2) return {0, 1};
    const bool straight = step % 2 == 0;
    const int peers[] = {straight ? 2 : 3, straight ? 3 : 2, straight ? 0 : 1, straight ? 1 : 0};
    return {rank, peers[rank]};
  });
  EXPECT_LT(Distance(shift.flat, pairs[hvd::rank()]), 1e-5);
}

RANKS_TEST(Decentralized, RanksComeTogether, 2, 4) {
  for (const char* peers : {"all", "shift_one"}) {
    const Result result = Train({.broadcast = false, .peers = peers}, 20);
    EXPECT_GT(result.distances.front(), 0.1);
    EXPECT_LT(result.distances.back(), result.distances.front() / 5) << peers;
  }
}

// Hosts 0 and 1 meet 2 and 3, then 3 and 2; all ranks of a host have its average.
void FourHostsOfTwo() {
  const auto pairs = TrainAll(6, [](int rank, int step) -> std::vector<int> {
    const int host = rank / 2, shift = step % 2;
    const int peer = host < 2 ? 2 + (host + shift) % 2 : (host - shift + 2) % 2;
    return {2 * host, 2 * host + 1, 2 * peer, 2 * peer + 1};
  });
  for (int round = 0; round < 2; ++round) {  // the hosts' process sets are there already
    const Result shift = Train({.broadcast = false, .peers = "shift_one", .hierarchical = true}, 6);
    EXPECT_LT(Distance(shift.flat, pairs[hvd::rank()]), 1e-5);
  }
}
TEST(Decentralized, HostsMeetAsRanksDo) {
  RunRanks(8, FourHostsOfTwo, {{"RUEDA_HOSTS_FAKE", "4"}});
}

// One host: its average is all that there is. Three ranks share the parameters unevenly.
RANKS_TEST(Decentralized, OneHostAverages, 1, 3) {
  const Result shift = Train({.broadcast = false, .peers = "shift_one", .hierarchical = true}, 6);
  std::vector<int> everybody;
  for (int rank = 0; rank < hvd::size(); ++rank) everybody.push_back(rank);
  const auto model = TrainAll(6, [&](int, int) { return everybody; });
  EXPECT_LT(Distance(shift.flat, model[hvd::rank()]), 1e-5);
}

void ThreeHostsAreRefused() {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf(
                [&] {
                  (void)hvd::make_strategy("decentralized", net, sgd,
                                           {.peers = "shift_one", .hierarchical = true});
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("even number of hosts; there are 3"), std::string::npos) << message;
  const hvd::ProcessSet set = hvd::add_process_set({0, 1});
  if (set.included()) {
    EXPECT_EQ(StatusOf(
                  [&] {
                    (void)hvd::make_strategy("low_precision_decentralized", net, sgd,
                                             {.process_set = set, .hierarchical = true});
                  },
                  &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("not for a process set"), std::string::npos) << message;
  }
  hvd::barrier();
}
TEST(Decentralized, RefusesWhatDoesNotGoWithHosts) {
  RunRanks(3, ThreeHostsAreRefused, {{"RUEDA_HOSTS_FAKE", "3"}});
}

RANKS_TEST(Decentralized, PairsNeedAnEvenNumber, 3) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(
      StatusOf([&] { (void)hvd::make_strategy("decentralized", net, sgd, {.peers = "shift_one"}); },
               &message),
      RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("even number of ranks; there are 3"), std::string::npos) << message;
}

// An average of what was before does not come to what was loaded.
RANKS_TEST(Decentralized, LoadsWhileAverageIsUnderWay, 2) {
  const fs::path file = "/tmp/rueda-load-" + std::string(std::getenv("RUEDA_JOB_ID"));
  for (const char* name : {"async", "decentralized", "low_precision_decentralized"}) {
    torch::manual_seed(1);
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum());
    const auto strategy = hvd::make_strategy(name, net, sgd);
    TrainStep(*strategy, Shard(Batch(0, hvd::size()), hvd::rank()));
    strategy->save(file);
    const torch::Tensor saved = Flat(*net);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.fill_(NAN);
    }
    TrainStep(*strategy, Shard(Batch(1, hvd::size()), hvd::rank()));
    (void)strategy->forward(torch::ones({1, 6}));
    strategy->load(file);
    EXPECT_TRUE(Flat(*net).equal(saved)) << name;
    TrainStep(*strategy, Shard(Batch(2, hvd::size()), hvd::rank()));
    strategy->finish();
    EXPECT_TRUE(Flat(*net).isfinite().all().item<bool>()) << name;
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
  }
  hvd::barrier();
  fs::remove(file);
}

// One rank has begun an average by looking at an output.
RANKS_TEST(Decentralized, FinishesWhereOneRankHasBegun, 2, 4) {
  for (const char* peers : {"all", "shift_one"}) {
    torch::manual_seed(hvd::rank());
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum());
    const auto strategy =
        hvd::make_strategy("decentralized", net, sgd, {.broadcast = false, .peers = peers});
    if (hvd::rank() == 0) (void)strategy->forward(torch::ones({1, 6}));
    strategy->finish();
    EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  }
}

// A layer whose gradient is 1 everywhere.
struct Line {
  Line() {
    const torch::NoGradGuard no_grad;
    layer->weight.fill_(0);
  }
  void Step(hvd::Strategy& strategy) {
    strategy.zero_grad();
    strategy.backward(strategy.forward(torch::ones({1, 3})).sum());
    strategy.step();
  }
  float value() const { return First(layer->weight.detach()); }
  torch::nn::Linear layer{torch::nn::LinearOptions(3, 1).bias(false)};
  torch::optim::SGD sgd{layer->parameters(), 1.0};
};

// What a rank has stepped counts, whenever the average comes.
RANKS_TEST(AsyncStrategy, LosesNoRanksSteps, 1, 2, 3) {
  Line line;
  const auto strategy = hvd::make_strategy("async", line.layer, line.sgd);
  float steps = 0;
  for (int round = 0; round < 50; ++round) {  // it stops, and goes on
    for (int rank = 0; rank < hvd::size(); ++rank)
      steps += static_cast<float>(1 + (rank + round) % 4);
    for (int step = 0; step < 1 + (hvd::rank() + round) % 4; ++step) line.Step(*strategy);
    strategy->finish();
    ASSERT_NEAR(line.value(), -steps / static_cast<float>(hvd::size()), 1e-3) << round;
    ASSERT_TRUE(ReplicasEqual(Flat(*line.layer)));
  }
}

// Rank 0 does not step before rank 1 has made 20 steps: one that waited for it would hang.
RANKS_TEST(AsyncStrategy, DoesNotWaitForASlowerRank, 2) {
  Line line;
  const auto strategy = hvd::make_strategy("async", line.layer, line.sgd);
  const torch::Tensor done = torch::zeros({1});
  if (hvd::rank() == 0) {
    hvd::recv_(done, 1, {.name = "done"});
    line.Step(*strategy);
  } else {
    for (int step = 0; step < 20; ++step) line.Step(*strategy);
    hvd::send(done, 0, {.name = "done"});
  }
  strategy->finish();
  EXPECT_NEAR(line.value(), -21.0 / 2, 1e-5);
}

RANKS_TEST(AsyncStrategy, WaitsWhenAnAverageIsTooOld, 2) {
  const fs::path file = "/tmp/rueda-async-" + std::string(std::getenv("RUEDA_JOB_ID"));
  Line line;
  const auto strategy = hvd::make_strategy("async", line.layer, line.sgd, {.stale_steps_max = 3});
  const torch::Tensor token = torch::zeros({1});
  if (hvd::rank() == 0) {
    for (int step = 0; step < 3; ++step) hvd::recv_(token, 1, {.name = "step"});
    std::ofstream(file) << "rank 0 steps now";
    line.Step(*strategy);
  } else {
    for (int step = 0; step < 4; ++step) {
      line.Step(*strategy);
      if (step < 3) hvd::send(token, 0, {.name = "step"});
    }
    EXPECT_TRUE(fs::exists(file)) << "the fourth step did not wait for the first one's average";
  }
  strategy->finish();
  EXPECT_NEAR(line.value(), -5.0 / 2, 1e-5);
  fs::remove(file);
}

RANKS_TEST(AsyncStrategy, Converges, 2, 3) {
  torch::manual_seed(3);
  Net net;
  const double before = Loss(net, Batch(999, 1)).item<double>();
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("async", net, sgd, {.average_interval_ms = 1});
  for (int step = 0; step < 200; ++step) {
    TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
  }
  strategy->finish();
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
  // How often averages come is up to the machine, and with it how far this gets.
  EXPECT_LT(Loss(net, Batch(999, 1)).item<double>(), before / 5);
}

// On several hosts averages and what is compressed go by host.
void TwoHostsTrain() {
  for (const char* name : {"async", "qadam", "bytegrad"}) {
    torch::manual_seed(hvd::rank());
    Net net;
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(name, net, adam, {.name = name, .warmup_steps = 10});
    const double before = Loss(net, Batch(999, 1)).item<double>();
    for (int step = 0; step < 200; ++step) {
      TrainStep(*strategy, Shard(Batch(step, hvd::size()), hvd::rank()));
      if (std::string(name) == "async") continue;
      EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
    }
    strategy->finish();
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
    EXPECT_LT(Loss(net, Batch(999, 1)).item<double>(), before / 4) << name;
  }
}
TEST(Strategies, TrainOnTwoHosts) {
  RunRanks(4, TwoHostsTrain, {{"RUEDA_HOSTS_FAKE", "2"}});
}

}  // namespace
