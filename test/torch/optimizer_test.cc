// DistributedOptimizer and broadcast_optimizer_state.
#include <torch/torch.h>

#include <thread>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"

namespace hvd = rueda::libtorch;

namespace {

constexpr int kBatch = 8;  // samples of a rank in a step
constexpr int kSteps = 20;

struct Net : torch::nn::Module {
  Net()
      : hidden(register_module("hidden", torch::nn::Linear(6, 16))),
        out(register_module("out", torch::nn::Linear(16, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden, out;
};

struct Samples {
  torch::Tensor x, y;
};

// What `ranks` ranks see in a step, one after the other.
Samples Batch(int step, int ranks) {
  torch::manual_seed(1000 + step);
  const torch::Tensor x = torch::randn({ranks * kBatch, 6});
  return {x, x.narrow(1, 0, 3).sin()};
}

Samples Shard(const Samples& all, int rank) {
  return {all.x.narrow(0, rank * kBatch, kBatch), all.y.narrow(0, rank * kBatch, kBatch)};
}

torch::Tensor Loss(Net& net, const Samples& samples) {
  return torch::mse_loss(net.forward(samples.x), samples.y);
}

torch::Tensor Flat(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : module.parameters()) {
    parts.push_back(parameter.detach().reshape({-1}));
  }
  return torch::cat(parts);
}

// Whether all ranks have the same bits.
bool ReplicasEqual(const torch::Tensor& flat) {
  const torch::Tensor all = hvd::allgather(flat.reshape({1, -1}).contiguous(), "replicas");
  for (int rank = 1; rank < hvd::size(); ++rank) {
    if (std::memcmp(all[rank].data_ptr(), all[0].data_ptr(), flat.nbytes()) != 0) return false;
  }
  return true;
}

torch::optim::SGDOptions Momentum(double lr = 0.1) {
  return torch::optim::SGDOptions(lr).momentum(0.9);
}

double Distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// The status and message of the error that fn throws; RUEDA_OK when it throws none.
template <typename Fn>
rueda_status StatusOf(Fn fn, std::string* message = nullptr) {
  try {
    fn();
  } catch (const hvd::Error& error) {
    if (message != nullptr) *message = error.what();
    return error.status();
  }
  return RUEDA_OK;
}

// How far a net that was trained on this rank's shards is from one that was trained on all ranks'
// batches together.
struct Comparison {
  int equal_steps = 0;  // after which the replicas had the same bits
  double distance = 0;
};

// Both nets begin with rank 0's weights; every rank had its own. Without `synchronised` the ranks
// step by themselves.
Comparison CompareWithOneProcess(bool synchronised) {
  torch::manual_seed(hvd::rank());
  Net net;
  Net reference;
  hvd::broadcast_parameters(net, 0);
  hvd::broadcast_parameters(reference, 0);
  EXPECT_GT(Distance(Flat(net), Flat(reference)), 0.01);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net.parameters().size(); ++i) {
      reference.parameters()[i].copy_(net.parameters()[i]);
    }
  }
  torch::optim::SGD sgd(net.parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference.parameters(), Momentum());
  std::unique_ptr<hvd::DistributedOptimizer> distributed;
  if (synchronised) {
    distributed = std::make_unique<hvd::DistributedOptimizer>(sgd, net.named_parameters());
  }
  Comparison comparison;
  for (int step = 0; step < kSteps; ++step) {
    const Samples all = Batch(step, hvd::size());
    reference_sgd.zero_grad();
    Loss(reference, all).backward();
    reference_sgd.step();

    sgd.zero_grad();
    Loss(net, Shard(all, hvd::rank())).backward();
    if (synchronised) {
      distributed->step();
    } else {
      sgd.step();
    }
    comparison.equal_steps += ReplicasEqual(Flat(net));
  }
  comparison.distance = Distance(Flat(net), Flat(reference));
  return comparison;
}

RANKS_TEST(DistributedOptimizer, TrainsLikeOneProcessOnAllBatches, 1, 2, 3) {
  const Comparison comparison = CompareWithOneProcess(/*synchronised=*/true);
  EXPECT_EQ(comparison.equal_steps, kSteps);
  EXPECT_LT(comparison.distance, 1e-5);
}

// That the test above can fail.
RANKS_TEST(DistributedOptimizer, WithoutItReplicasDrift, 2, 3) {
  const Comparison comparison = CompareWithOneProcess(/*synchronised=*/false);
  EXPECT_EQ(comparison.equal_steps, 0);
  EXPECT_GT(comparison.distance, 1e-3);
}

// Parameters w0, w1, ... of these sizes, all zeros.
struct Weights {
  explicit Weights(std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) {
      named.emplace_back("w" + std::to_string(named.size()),
                         torch::zeros(size, torch::requires_grad()));
    }
  }
  std::vector<torch::Tensor> all() const {
    std::vector<torch::Tensor> tensors;
    for (const auto& [name, tensor] : named) tensors.push_back(tensor);
    return tensors;
  }
  torch::Tensor& operator[](size_t i) { return named[i].second; }
  hvd::NamedTensors named;
};

float First(const torch::Tensor& tensor) {
  return tensor.reshape({-1})[0].item<float>();
}

RANKS_TEST(DistributedOptimizer, GradientsThatARankDidNotComputeCountAsZeros, 2, 3) {
  Weights w{2, 2, 2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    // w0: all ranks. w1: rank 0 alone. w2: nobody.
    torch::Tensor loss = w[0].sum();
    if (hvd::rank() == 0) loss = loss + w[1].sum() * hvd::size();
    loss.backward();
    optimizer.step();
  }
  EXPECT_FLOAT_EQ(First(w[0].detach()), -3);
  EXPECT_FLOAT_EQ(First(w[1].detach()), -3);
  EXPECT_FLOAT_EQ(First(w[2].detach()), 0);
  // A rank that runs no backward pass at all does not hold the others up.
  optimizer.zero_grad();
  if (hvd::rank() == 1) (w[0].sum() * hvd::size()).backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -4);
}

RANKS_TEST(DistributedOptimizer, SeveralBackwardPassesAreAddedUp, 1, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.backward_passes_per_step = 3});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < 3; ++pass) (w[0].sum() * (hvd::rank() + 1.0)).backward();
    optimizer.step();
  }
  EXPECT_FLOAT_EQ(First(w[0].detach()), -2 * 3 * (hvd::size() + 1) / 2.0f);
  // A step before they are all there takes what there is.
  optimizer.zero_grad();
  w[0].sum().backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -2 * 3 * (hvd::size() + 1) / 2.0f - 1);
}

RANKS_TEST(DistributedOptimizer, AnotherBackwardPassThanExpectedIsAnErrorOfTheStep, 1, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  w[0].sum().backward();
  w[0].sum().backward();
  std::string message;
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("'gradient.w0' was computed 2 times"), std::string::npos) << message;
  EXPECT_FLOAT_EQ(First(w[0].detach()), 0) << "no step was made";
  optimizer.zero_grad();
  w[0].sum().backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -1);
}

RANKS_TEST(DistributedOptimizer, ShapesThatDifferAreAnErrorOfTheStepOnAllRanks, 2) {
  Weights w{2, 2 + hvd::rank()};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  (w[0].sum() + w[1].sum()).backward();
  std::string message;
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("gradient.w1"), std::string::npos) << message;
  EXPECT_FLOAT_EQ(First(w[0].detach()), 0) << "no step was made";
  EXPECT_FLOAT_EQ(First(w[0].grad()), 1) << "the other gradient has arrived";
}

RANKS_TEST(DistributedOptimizer, SynchronizeLetsGradientsBeChangedBeforeTheStep, 1, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    (w[0].sum() * (hvd::rank() + 1.0)).backward();
    EXPECT_EQ(StatusOf([&] { optimizer.zero_grad(); }), RUEDA_FAILED_PRECONDITION);
    optimizer.synchronize();
    EXPECT_FLOAT_EQ(First(w[0].grad()), (hvd::size() + 1) / 2.0f);
    // Would be averaged away by another reduction.
    w[0].mutable_grad().fill_(hvd::rank() + 1.0);
    optimizer.step();
    EXPECT_FLOAT_EQ(First(w[0].detach()), -step * (hvd::rank() + 1.0f));
  }
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }), RUEDA_OK) << "which reduces again";
}

RANKS_TEST(DistributedOptimizer, OptionsChooseTheReduction, 2) {
  const auto reduced = [](hvd::DistributedOptimizerOptions options) {
    Weights w{2};
    torch::optim::SGD sgd(w.all(), 1.0);
    hvd::DistributedOptimizer optimizer(sgd, w.named, options);
    (w[0].sum() * (hvd::rank() + 1.0)).backward();
    optimizer.step();
    return -First(w[0].detach());
  };
  EXPECT_FLOAT_EQ(reduced({}), 1.5);
  EXPECT_FLOAT_EQ(reduced({.op = hvd::Sum}), 3);
  EXPECT_FLOAT_EQ(reduced({.op = hvd::Max}), 2);
  EXPECT_FLOAT_EQ(reduced({.gradient_predivide_factor = 4}), 1.5);
  EXPECT_EQ(StatusOf([&] { reduced({.op = hvd::Sum, .gradient_predivide_factor = 4}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { reduced({.gradient_predivide_factor = 0}); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { reduced({.backward_passes_per_step = 0}); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { reduced({.process_set = {7}}); }), RUEDA_INVALID_ARGUMENT);
}

// float16 overflows at 65504: the sum of two 40000s does, that of two quarters of them does not.
RANKS_TEST(DistributedOptimizer, DividingBeforeAddingAvoidsOverflow, 2) {
  Weights w{};
  w.named.emplace_back("half", torch::zeros({4}, torch::dtype(torch::kHalf).requires_grad(true)));
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.gradient_predivide_factor = 4});
  (w[0] * 40000.0).sum().backward();
  optimizer.synchronize();
  EXPECT_FLOAT_EQ(First(w[0].grad().to(torch::kFloat)), 40000);
}

RANKS_TEST(DistributedOptimizer, ReducesWithinItsProcessSet, 3) {
  const hvd::ProcessSet ends = hvd::add_process_set({0, 2});
  if (ends.included()) {
    Weights w{2};
    torch::optim::SGD sgd(w.all(), 1.0);
    hvd::DistributedOptimizer optimizer(sgd, w.named, {.process_set = ends});
    (w[0].sum() * hvd::rank()).backward();
    optimizer.step();
    EXPECT_FLOAT_EQ(First(w[0].detach()), -1);
  }
  hvd::barrier();
}

RANKS_TEST(DistributedOptimizer, ParametersAreCheckedAndNamed, 2) {
  Weights w{2, 3};
  torch::optim::SGD sgd(w.all(), 1.0);
  const auto make = [&](const hvd::NamedTensors& named) {
    return StatusOf([&] { hvd::DistributedOptimizer optimizer(sgd, named); });
  };
  EXPECT_EQ(make(w.named), RUEDA_OK);
  EXPECT_EQ(make({{"w0", w[0]}}), RUEDA_INVALID_ARGUMENT) << "w1 has no name";
  EXPECT_EQ(make({{"w", w[0]}, {"w", w[1]}}), RUEDA_INVALID_ARGUMENT) << "one name, twice";
  EXPECT_EQ(make({{"w0", w[0]}, {"w1", w[1]}, {"tied", w[0]}}), RUEDA_OK);
  {
    const hvd::DistributedOptimizer first(sgd, w.named);
    EXPECT_EQ(make(w.named), RUEDA_INVALID_ARGUMENT) << "hooked already";
  }
  EXPECT_EQ(make(w.named), RUEDA_OK) << "hooks go with their optimizer";

  hvd::DistributedOptimizer by_place(sgd);
  (w[0].sum() + w[1].sum() * hvd::rank()).backward();
  by_place.step();
  EXPECT_FLOAT_EQ(First(w[1].detach()), -0.5);
}

RANKS_TEST(DistributedOptimizer, GoesAwayWithGradientsInFlight, 2) {
  Weights w{1000};
  torch::optim::SGD sgd(w.all(), 1.0);
  {
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    (w[0].sum() * hvd::rank()).backward();
  }
  EXPECT_FLOAT_EQ(First(w[0].grad()), 0.5) << "was waited for";
  sgd.zero_grad();
  (w[0].sum() * hvd::rank()).backward();
  EXPECT_FLOAT_EQ(First(w[0].grad()), hvd::rank()) << "no hook is left";
}

RANKS_TEST(DistributedOptimizer, ParametersOfAnyLayoutAndFrozenOnesAreFine, 2) {
  Weights w{};
  w.named.emplace_back("t", torch::zeros({3, 2}).t().requires_grad_());
  w.named.emplace_back("frozen", torch::zeros({2}));
  w.named.emplace_back(
      "channels",
      torch::zeros({2, 3, 2, 2}).to(torch::MemoryFormat::ChannelsLast).requires_grad_());
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  const torch::Tensor scale = torch::arange(6.f).reshape({2, 3});
  ((w[0] * scale).sum() + w[2].sum()).mul(hvd::rank() * 2.0).backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(w[0].detach(), -scale)) << w[0];
  EXPECT_TRUE(torch::equal(w[2].detach(), -torch::ones({2, 3, 2, 2})));
  EXPECT_FALSE(w[1].grad().defined());
}

RANKS_TEST(DistributedOptimizer, ALostRankIsAnErrorOfTheStep, 2, 3) {
  Weights w{1000, 10};
  torch::optim::SGD sgd(w.all(), 1.0);
  {
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    (w[0].sum() + w[1].sum()).backward();
    optimizer.step();
    optimizer.zero_grad();
    if (hvd::rank() == 1) rueda::test::LeaveWithoutShutdown();
    (w[0].sum() + w[1].sum()).backward();
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }), RUEDA_ABORTED);
    EXPECT_FLOAT_EQ(First(w[0].detach()), -1);
    // From now on at once; what is pending does not keep the optimizer from going away.
    w[0].sum().backward();
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }), RUEDA_ABORTED);
    w[0].sum().backward();
  }
  rueda::test::LeaveWithoutShutdown();
}

// Ranks that are threads of one process, each with a context of its own; backward runs on yet
// another thread, which has none.
TEST(DistributedOptimizerOnThreads, KeepsTheContextItWasMadeWith) {
  rueda_group* group = nullptr;
  ASSERT_EQ(rueda_group_create(2, &group), RUEDA_OK);
  const auto run = [group](int rank) {
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.group = group;
    options.group_rank = rank;
    rueda_context* context = nullptr;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
    rueda_set_thread_context(context);
    {
      Weights w{2, 3};
      torch::optim::SGD sgd(w.all(), 1.0);
      hvd::DistributedOptimizer optimizer(sgd, w.named);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        std::thread([&] {
          EXPECT_EQ(rueda_current_context(), nullptr);
          ((w[0].sum() + w[1].sum()) * (2.0 * rank)).backward();
        }).join();
        std::thread([&] { optimizer.step(); }).join();
      }
      EXPECT_FLOAT_EQ(First(w[0].detach()), -5);
      EXPECT_FLOAT_EQ(First(w[1].detach()), -5);
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  rueda_group_destroy(group);
}

// Broadcasts rank 0's state, then lets all ranks step with equal gradients: replicas and
// optimizers must stay equal, and be what one process would have. `Make` makes an optimizer.
template <typename Make>
void BroadcastsState(Make make, int steps_before) {
  torch::manual_seed(7);  // the same net on all ranks
  Net net;
  Net reference;
  hvd::broadcast_parameters(net, 0);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net.parameters().size(); ++i) {
      reference.parameters()[i].copy_(net.parameters()[i]);
    }
  }
  auto optimizer = make(net.parameters(), hvd::rank() == 0 ? 0.1 : 0.7);
  auto expected = make(reference.parameters(), 0.1);
  const auto step = [](Net& on, torch::optim::Optimizer& with, int i) {
    with.zero_grad();
    Loss(on, Batch(i, 1)).backward();
    with.step();
  };
  for (int i = 0; i < steps_before; ++i) {
    if (hvd::rank() == 0) step(net, *optimizer, i);
    step(reference, *expected, i);
  }
  hvd::broadcast_parameters(net, 0);
  hvd::broadcast_optimizer_state(*optimizer, 0);
  EXPECT_EQ(optimizer->state().size(), expected->state().size());
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 0.1);
  for (int i = 0; i < 5; ++i) {
    step(net, *optimizer, 100 + i);
    step(reference, *expected, 100 + i);
    EXPECT_TRUE(ReplicasEqual(Flat(net))) << "step " << i;
  }
  EXPECT_TRUE(torch::equal(Flat(net), Flat(reference)));
}

RANKS_TEST(BroadcastOptimizerState, GivesSgdItsMomentum, 1, 2, 3) {
  BroadcastsState(
      [](const std::vector<torch::Tensor>& parameters, double lr) {
        return std::make_unique<torch::optim::SGD>(parameters, Momentum(lr));
      },
      4);
}

RANKS_TEST(BroadcastOptimizerState, GivesAdamItsMoments, 1, 2, 3) {
  BroadcastsState(
      [](const std::vector<torch::Tensor>& parameters, double lr) {
        return std::make_unique<torch::optim::Adam>(
            parameters, torch::optim::AdamOptions(lr).amsgrad(true).weight_decay(0.01));
      },
      4);
}

RANKS_TEST(BroadcastOptimizerState, OfAnOptimizerThatHasNotStepped, 1, 2) {
  BroadcastsState(
      [](const std::vector<torch::Tensor>& parameters, double lr) {
        return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(lr));
      },
      0);
}

RANKS_TEST(BroadcastOptimizerState, TakesAwayWhatTheRootDoesNotHave, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), Momentum());
  if (hvd::rank() == 1) {
    w[0].sum().backward();
    sgd.step();
    EXPECT_EQ(sgd.state().size(), 1u);
  }
  hvd::broadcast_optimizer_state(sgd, 0);
  EXPECT_EQ(sgd.state().size(), 0u);
}

// An optimizer that can't be saved.
struct Unsaveable : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  void save(torch::serialize::OutputArchive&) const override {
    throw std::runtime_error("can't be saved");
  }
};

RANKS_TEST(BroadcastOptimizerState, ThatCantBeSavedIsAnErrorOnAllRanks, 2) {
  Weights w{2};
  Unsaveable sgd(w.all(), 1.0);
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::broadcast_optimizer_state(sgd, 1); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
  EXPECT_EQ(message.find("can't be saved") != std::string::npos, hvd::rank() == 1) << message;
}

}  // namespace
