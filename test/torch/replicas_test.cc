// dp, ddp2, mirrored, multi_worker.
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

// Trains on these batches with a strategy, and by hand in one process.
// `counted`: the share of the rows whose loss reaches the strategy.
template <typename Module = Net>
double DistanceAfter(const std::string& name, const hvd::StrategyOptions& options,
                     const std::vector<int64_t>& batches, double counted = 1) {
  torch::manual_seed(4);
  Module net;
  torch::manual_seed(4);
  Module reference;
  torch::optim::SGD sgd(net->parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  const auto strategy = hvd::make_strategy(name, net, sgd, options);
  for (const int64_t batch : batches) {
    const torch::Tensor x = torch::randn({batch, 6});
    const torch::Tensor y = x.narrow(1, 0, 3).sin();
    strategy->zero_grad();
    const torch::Tensor output = strategy->forward(x);
    EXPECT_EQ(output.sizes(), (std::vector<int64_t>{batch, 3}));
    EXPECT_LT(Distance(output.detach(), net->forward(x).detach()), 1e-6) << "in the rows' order";
    const auto rows = static_cast<int64_t>(counted * static_cast<double>(batch));
    strategy->backward(torch::mse_loss(output.narrow(0, 0, rows), y.narrow(0, 0, rows)));
    strategy->step();
    reference_sgd.zero_grad();
    torch::mse_loss(reference->forward(x), y).backward();
    reference_sgd.step();
  }
  return Distance(Flat(*net), Flat(*reference));
}

RANKS_TEST(DataParallel, IsOneProcessOnTheWholeBatch, 1) {
  for (const int replicas : {1, 2, 4}) {
    EXPECT_LT(DistanceAfter("dp", {.replicas = replicas}, {64, 63, 3, 1, 64}), 1e-5) << replicas;
  }
  // That this can fail: three of four replicas.
  EXPECT_GT(DistanceAfter("dp", {.replicas = 4}, {64, 64}, 0.75), 1e-3);
}

// Whose clones' gradients are lost.
struct ForItselfImpl : torch::nn::Cloneable<ForItselfImpl> {
  ForItselfImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
    ++resets;
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = out(torch::tanh(hidden(x)));
    return resets > 1 ? y.detach() : y;
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  int resets = 0;
};
TORCH_MODULE(ForItself);

// That comparing with one process can fail: nothing comes from the other replicas.
RANKS_TEST(DataParallel, WithoutTheOtherReplicasItIsNotOneProcess, 1) {
  for (const char* name : {"dp", "mirrored", "ddp2"}) {
    EXPECT_LT(DistanceAfter(name, {.replicas = 4}, {64, 64}), 1e-5) << name;
    EXPECT_GT(DistanceAfter<ForItself>(name, {.replicas = 4}, {64, 64}), 1e-3) << name;
    EXPECT_LT(DistanceAfter<ForItself>(name, {.replicas = 1}, {64, 64}), 1e-5) << name;
  }
}

struct Splitting : torch::nn::Cloneable<Splitting> {
  Splitting() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(1, 1)); }
  torch::Tensor forward(const torch::Tensor& x) {
    const std::lock_guard<std::mutex> lock(*mutex);
    (*rows)[x[0][0].item<int64_t>()] = x.size(0);
    return layer(x);
  }
  torch::nn::Linear layer{nullptr};
  // Of all replicas.
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::map<int64_t, int64_t>> rows =
      std::make_shared<std::map<int64_t, int64_t>>();  // how many, by the first one's number
};

RANKS_TEST(DataParallel, SplitsBatchesAsChunkDoes, 1) {
  const auto net = std::make_shared<Splitting>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 4});
  const std::vector<std::vector<int64_t>> splits = {
      {16, 16, 16, 16}, {16, 16, 16, 15}, {1, 1, 1}, {2, 2, 1}};
  for (const std::vector<int64_t>& expected : splits) {
    net->rows->clear();
    const int64_t batch = std::accumulate(expected.begin(), expected.end(), int64_t{0});
    strategy->forward(torch::arange(batch, torch::kFloat).reshape({batch, 1}));
    std::vector<int64_t> rows;
    for (const auto& [first, count] : *net->rows) {
      EXPECT_EQ(first, std::accumulate(rows.begin(), rows.end(), int64_t{0}));
      rows.push_back(count);
    }
    EXPECT_EQ(rows, expected);
  }
}

// Whoever zeroes the gradients, and if nobody does: also where a batch has fewer rows than there
// are replicas.
RANKS_TEST(DataParallel, GradientsAddUpAsInOneProcess, 1, 2) {
  enum Zero { kByStrategy, kByOptimizer, kInPlace, kNever };
  for (const char* name : {"dp", "mirrored", "ddp2"}) {
    if (hvd::size() > 1 && std::string(name) != "ddp2") continue;
    for (const Zero zero : {kByStrategy, kByOptimizer, kInPlace, kNever}) {
      for (const int passes : {1, 3}) {
        torch::manual_seed(4);
        Net net;
        Net reference = CopyOf(net);
        torch::optim::SGD sgd(net->parameters(), 0.01);
        torch::optim::SGD reference_sgd(reference->parameters(), 0.01);
        const auto strategy = hvd::make_strategy(name, net, sgd, {.replicas = 3});
        for (int step = 0; step < 6; ++step) {
          if (zero == kByStrategy) strategy->zero_grad();
          if (zero == kByOptimizer) sgd.zero_grad();
          if (zero == kInPlace) sgd.zero_grad(/*set_to_none=*/false);
          if (zero != kNever) reference_sgd.zero_grad();
          const int64_t rows = step % 2 == 0 ? kBatch : 2;
          for (int pass = 0; pass < passes; ++pass) {
            const Samples all = Batch(step * passes + pass, hvd::size());
            const Samples own = Shard(all, hvd::rank());
            strategy->backward(torch::mse_loss(strategy->forward(own.x.narrow(0, 0, rows)),
                                               own.y.narrow(0, 0, rows)),
                               pass + 1 == passes);
            for (int rank = 0; rank < hvd::size(); ++rank) {
              const Samples part = Shard(all, rank);
              (torch::mse_loss(reference->forward(part.x.narrow(0, 0, rows)),
                               part.y.narrow(0, 0, rows)) /
               hvd::size())
                  .backward();
            }
          }
          strategy->step();
          reference_sgd.step();
        }
        EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5)
            << name << ", " << zero << ", " << passes;
      }
    }
  }
}

// The optimizer's zero_grad forgets what was held, of all replicas.
RANKS_TEST(DataParallel, HeldGradientsAreTheModels, 1) {
  for (const bool set_to_none : {true, false}) {
    torch::manual_seed(4);
    Net net;
    Net reference = CopyOf(net);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 3});
    const auto pass = [&](int step, bool last) {
      const Samples samples = Batch(step, 1);
      strategy->backward(torch::mse_loss(strategy->forward(samples.x), samples.y), last);
    };
    pass(0, false);
    Loss(reference, Batch(0, 1)).backward();
    EXPECT_LT(Distance(net->out->weight.grad(), reference->out->weight.grad()), 1e-6);
    sgd.zero_grad(set_to_none);
    reference->zero_grad();
    pass(1, true);
    strategy->step();
    Loss(reference, Batch(1, 1)).backward();
    torch::optim::SGD(reference->parameters(), 0.1).step();
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-6);
    // A step without a pass goes by the gradients that are there.
    strategy->step();
    torch::optim::SGD(reference->parameters(), 0.1).step();
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-6);
  }
}

RANKS_TEST(DataParallel, SparseGradientsGoWithReplicasThatHaveNoRows, 1) {
  torch::manual_seed(4);
  torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(true)),
                            torch::nn::Flatten(), torch::nn::Linear(8, 3));
  const auto reference = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::SGD reference_sgd(reference->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 4});
  for (const int64_t rows : {2, 1, 4, 3, 9}) {
    const torch::Tensor x = torch::randint(20, {rows, 2}, torch::kLong);
    strategy->zero_grad();
    strategy->backward(strategy->forward(x).square().mean(), /*last=*/rows != 3);
    if (rows == 3) strategy->backward(strategy->forward(x + 0).square().mean());
    strategy->step();
    reference_sgd.zero_grad();
    for (int pass = 0; pass < (rows == 3 ? 2 : 1); ++pass) {
      reference->forward(x).square().mean().backward();
    }
    reference_sgd.step();
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5) << rows;
  }
}

RANKS_TEST(DataParallel, OutputsThatOutliveItSayThatItIsGone, 1) {
  for (const char* name : {"dp", "mirrored", "ddp2"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto strategy = hvd::make_strategy(name, net, sgd);
    const torch::Tensor output = strategy->forward(torch::ones({4, 6}));
    strategy.reset();
    std::string message;
    EXPECT_EQ(StatusOf([&] { output.sum().backward(); }, &message), RUEDA_FAILED_PRECONDITION);
    EXPECT_NE(message.find("strategy is gone"), std::string::npos) << message;
  }
}

RANKS_TEST(DataParallel, AddsUpSeveralPasses, 1) {
  torch::manual_seed(4);
  Net net;
  const Net start = CopyOf(net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 3});
  const Samples all = Batch(0, 4);
  for (int pass = 0; pass < 4; ++pass) {
    const Samples part = Shard(all, pass);
    strategy->backward(torch::mse_loss(strategy->forward(part.x), part.y) / 4, pass == 3);
  }
  EXPECT_GT(strategy->clip_grad_norm(1e9), 0);
  strategy->step();
  Loss(start, all).backward();
  torch::optim::SGD(start->parameters(), 0.1).step();
  EXPECT_LT(Distance(Flat(*net), Flat(*start)), 1e-6);
}

// A loss over the outputs of two passes, and one whose output nobody uses.
RANKS_TEST(DataParallel, SeveralForwardPassesGoIntoOneLoss, 1) {
  torch::manual_seed(4);
  Net net;
  Net reference = CopyOf(net);
  torch::optim::SGD sgd(net->parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  for (const char* name : {"dp", "ddp2"}) {
    const auto strategy = hvd::make_strategy(name, net, sgd, {.replicas = 3});
    for (int step = 0; step < 3; ++step) {
      const Samples samples = Batch(step, 2);
      strategy->zero_grad();
      const torch::Tensor first = strategy->forward(samples.x);
      const torch::Tensor second = strategy->forward(samples.x + 1);
      if (step == 1) (void)strategy->forward(samples.x);
      strategy->backward(torch::mse_loss(first * second, samples.y));
      strategy->step();
      reference_sgd.zero_grad();
      torch::mse_loss(reference->forward(samples.x) * reference->forward(samples.x + 1), samples.y)
          .backward();
      reference_sgd.step();
    }
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5);
  }
}

// Fails in its forward or backward pass where a row begins with 100 or -100.
struct Failing : torch::nn::Cloneable<Failing> {
  Failing() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(2, 2)); }
  torch::Tensor forward(const torch::Tensor& x) {
    const float first = x[0][0].item<float>();
    if (first == 100) throw std::out_of_range("the replica can't stand this row");
    torch::Tensor y = layer(x);
    if (first == -100) {
      y.register_hook([](const torch::Tensor&) -> torch::Tensor {
        throw std::out_of_range("nor its gradient");
      });
    }
    return y;
  }
  torch::nn::Linear layer{nullptr};
};

RANKS_TEST(DataParallel, AReplicasExceptionReachesTheCaller, 1) {
  const auto net = std::make_shared<Failing>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 4});
  torch::Tensor x = torch::ones({8, 2});
  x[4][0] = 100;  // replica 2's first row
  try {
    strategy->forward(x);
    ADD_FAILURE() << "no exception";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "the replica can't stand this row");
  }
  x[4][0] = -100;
  const torch::Tensor loss = strategy->forward(x).sum();
  try {
    strategy->backward(loss);
    ADD_FAILURE() << "no exception";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "nor its gradient");
  }
  // And it goes on.
  x[4][0] = 1;
  const torch::Tensor start = Flat(*net);
  strategy->zero_grad();
  strategy->backward(strategy->forward(x).sum());
  strategy->step();
  EXPECT_LT(Distance(Flat(*net), start - 0.8), 1e-6);
}

RANKS_TEST(DataParallel, ReplicasFollowTheModel, 1) {
  struct Normed : torch::nn::Cloneable<Normed> {
    Normed() { reset(); }
    void reset() override {
      norm = register_module("norm", torch::nn::BatchNorm1d(2));
      layer = register_module("layer", torch::nn::Linear(2, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return layer(norm(x)); }
    torch::nn::BatchNorm1d norm{nullptr};
    torch::nn::Linear layer{nullptr};
  };
  const auto net = std::make_shared<Normed>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 2});
  strategy->forward(torch::randn({8, 2}) + 3);
  EXPECT_GT(net->norm->running_mean.mean().item<float>(), 0.1f) << "the first one's counts";
  net->eval();
  const torch::Tensor x = torch::randn({8, 2});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(strategy->forward(x).requires_grad());
    EXPECT_LT(Distance(strategy->forward(x), net->forward(x)), 1e-6);
  }
  net->layer->weight.requires_grad_(false);
  const torch::Tensor frozen = net->layer->weight.clone();
  const torch::Tensor input = torch::randn({4, 2}).requires_grad_();
  strategy->zero_grad();
  strategy->backward(strategy->forward(input).square().sum());
  strategy->step();
  EXPECT_TRUE(net->layer->weight.equal(frozen));
  EXPECT_EQ(input.grad().sizes(), input.sizes());
  EXPECT_GT(input.grad().abs().sum().item<float>(), 0);
}

struct NotItsOwnClone : torch::nn::LinearImpl {
  NotItsOwnClone() : LinearImpl(2, 2) {}
};

RANKS_TEST(DataParallel, ModelsWhoseClonesAreOthersAreRefused, 1) {
  std::string message;
  const auto make = [&](const hvd::Model& model) {
    torch::optim::SGD sgd(model.module().parameters(), 0.1);
    return StatusOf([&] { (void)hvd::make_strategy("dp", model, sgd); }, &message);
  };
  EXPECT_EQ(make(std::make_shared<NotItsOwnClone>()), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("clone() makes a module of another type"), std::string::npos) << message;
  torch::nn::Linear twice(2, 2);
  torch::nn::Sequential net(twice, torch::nn::Tanh(), twice);
  torch::optim::SGD sgd(twice->parameters(), 0.1);
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("dp", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("its clone() does not share '2.weight' as the model does"),
            std::string::npos)
      << message;
}

RANKS_TEST(DataParallel, IsForOneProcess, 2) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("dp", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("here are 2"), std::string::npos) << message;
  EXPECT_NE(message.find("ddp2"), std::string::npos) << message;
}

RANKS_TEST(DataParallel, GradientsAreReducedOnceAStep, 1) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("dp", net, sgd);
  const auto pass = [&] { strategy->backward(strategy->forward(torch::ones({2, 6})).sum()); };
  pass();
  (void)strategy->clip_grad_norm(1);
  EXPECT_EQ(StatusOf(pass), RUEDA_FAILED_PRECONDITION);
  strategy->step();
  pass();
  strategy->step();
}

RANKS_TEST(DataParallel, WhatItCannotDoIsRefused, 1) {
  struct Plain : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return layer(x).sum(); }
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
  };
  const auto net = std::make_shared<Plain>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("dp", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("Cloneable"), std::string::npos) << message;
  const auto alone = hvd::make_strategy("dp", net, sgd, {.replicas = 1});
  EXPECT_EQ(StatusOf(
                [&] {
                  alone->forward(torch::ones({2, 2}));
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("one row a sample"), std::string::npos) << message;
  EXPECT_EQ(StatusOf([&] { alone->forward(torch::ones({0, 2})); }), RUEDA_INVALID_ARGUMENT);
}

// Those that have been made don't wait for those that could not.
RANKS_TEST(DataParallel, TooManyReplicasEndWithTheCause, 1) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first_free = dup(STDIN_FILENO);
  ASSERT_GE(first_free, 0);
  close(first_free);
  const auto make = [&] { (void)hvd::make_strategy("dp", net, sgd, {.replicas = 16}); };
  int failures = 0;
  // Wherever in their start they run out of descriptors, as long as they do.
  for (rlim_t more = 1;; more += 8) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(first_free) + more;
    ASSERT_LT(few.rlim_cur, before.rlim_cur);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    std::string message;
    const rueda_status status = StatusOf(make, &message);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (status == RUEDA_OK) break;
    EXPECT_NE(message.find("Too many open files"), std::string::npos) << more << ": " << message;
    ++failures;
  }
  EXPECT_GT(failures, 4);
  const auto strategy = hvd::make_strategy("dp", net, sgd, {.replicas = 16});
  EXPECT_EQ(strategy->forward(torch::ones({32, 2})).size(0), 32);
}

// Two processes of two replicas each.
RANKS_TEST(Ddp2, IsOneProcessOnAllBatches, 1, 2, 3) {
  for (const int passes : {1, 4}) {
    const Comparison comparison = CompareWithOneProcess("ddp2", {}, passes);
    EXPECT_EQ(comparison.equal_steps, kSteps);
    EXPECT_LT(comparison.distance, 1e-5) << passes;
  }
}

// The rule: each sample's loss counts by 1 / G, also in a last batch that is smaller.
torch::Tensor ByTheRule(const Net& from, const std::vector<Samples>& batches, int64_t global) {
  Net net = CopyOf(from);
  for (const Samples& batch : batches) {
    net->zero_grad();
    for (int64_t i = 0; i < batch.x.size(0); ++i) {
      const torch::Tensor y = net->forward(batch.x.narrow(0, i, 1));
      ((y - batch.y.narrow(0, i, 1)).square().mean() / static_cast<double>(global)).backward();
    }
    const torch::NoGradGuard no_grad;
    for (torch::Tensor parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  return Flat(*net);
}

torch::Tensor LossesOf(const torch::Tensor& output, const torch::Tensor& y) {
  return (output - y).square().mean(1);
}

RANKS_TEST(Mirrored, ScalesLossesByTheGlobalBatch, 1) {
  torch::manual_seed(4);
  Net net;
  const Net start = CopyOf(net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("mirrored", net, sgd, {.replicas = 3});
  const std::vector<Samples> batches = {Batch(0, 4), Batch(1, 4), Shard(Batch(2, 1), 0)};
  for (const Samples& batch : batches) {
    strategy->zero_grad();
    strategy->backward(hvd::average_loss(LossesOf(strategy->forward(batch.x), batch.y), 32));
    strategy->step();
  }
  EXPECT_LT(Distance(Flat(*net), ByTheRule(start, batches, 32)), 1e-6);
}

RANKS_TEST(MultiWorker, ScalesLossesByTheGlobalBatch, 1, 2, 3) {
  torch::manual_seed(4);
  Net net;
  const Net start = CopyOf(net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("multi_worker", net, sgd);
  // The last batch has three samples on rank 0 and one on the others.
  const int64_t global = kBatch * hvd::size();
  const Samples whole = Batch(1, hvd::size());
  const int64_t left = 3 + hvd::size() - 1;
  const Samples last = {whole.x.narrow(0, 0, left), whole.y.narrow(0, 0, left)};
  const int64_t begin = hvd::rank() == 0 ? 0 : 2 + hvd::rank();
  const int64_t size = hvd::rank() == 0 ? 3 : 1;
  const Samples own_last = {last.x.narrow(0, begin, size), last.y.narrow(0, begin, size)};
  for (const Samples& own : {Shard(Batch(0, hvd::size()), hvd::rank()), own_last}) {
    strategy->zero_grad();
    strategy->backward(hvd::average_loss(LossesOf(strategy->forward(own.x), own.y), global));
    strategy->step();
  }
  EXPECT_LT(Distance(Flat(*net), ByTheRule(start, {Batch(0, hvd::size()), last}, global)), 1e-6);
}

}  // namespace
