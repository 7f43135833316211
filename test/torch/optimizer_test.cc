// DistributedOptimizer and broadcast_optimizer_state.
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <thread>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"
#include "test/torch/training.h"
#include "test/torch/weights.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

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
  const torch::Tensor own = Flat(*net);
  hvd::broadcast_parameters(*net, 0);
  Net reference = CopyOf(net);
  EXPECT_EQ(Distance(Flat(*net), own) > 0.01, hvd::rank() > 0);
  torch::optim::SGD sgd(net->parameters(), Momentum());
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  std::unique_ptr<hvd::DistributedOptimizer> distributed;
  if (synchronised) {
    distributed = std::make_unique<hvd::DistributedOptimizer>(sgd, net->named_parameters());
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
    comparison.equal_steps += ReplicasEqual(Flat(*net));
  }
  comparison.distance = Distance(Flat(*net), Flat(*reference));
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

RANKS_TEST(DistributedOptimizer, AForkedChildComputesGradientsOfItsOwn, 2) {
  torch::set_num_threads(1);
  Weights w{40'000, 10'000};  // by itself, and in a bucket
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  const auto backward = [&] { (w[0].sum() + w[1].sum()).backward(); };
  backward();
  optimizer.step();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::string message;
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_FAILED_PRECONDITION);
    EXPECT_NE(message.find("forked"), std::string::npos) << message;
    optimizer.zero_grad();
    for (int pass = 0; pass < 2; ++pass) backward();  // more often than the parent's takes
    EXPECT_FLOAT_EQ(First(w[0].grad()), 2);
    EXPECT_FLOAT_EQ(First(w[1].grad()), 2);
    sgd.step();
    EXPECT_FLOAT_EQ(First(w[0].detach()), -3);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  optimizer.zero_grad();
  backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -2);
  EXPECT_FLOAT_EQ(First(w[1].detach()), -2);
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

RANKS_TEST(DistributedOptimizer, ZeroGradForgetsThePassesBeforeIt, 1, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.backward_passes_per_step = 3});
  for (int pass = 0; pass < 2; ++pass) w[0].sum().backward();
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_FLOAT_EQ(First(w[0].grad()), 0);
  for (int pass = 0; pass < 3; ++pass) (w[0].sum() * (hvd::rank() + 1.0)).backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -3 * (hvd::size() + 1) / 2.0f);
}

RANKS_TEST(DistributedOptimizer, AMistakeOfOneRankIsThatRanksError, 2, 3) {
  Weights w{2, 3};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  (w[0].sum() + w[1].sum()).backward();
  if (hvd::rank() == 1) w[1].sum().backward();
  std::string message;
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message),
            hvd::rank() == 1 ? RUEDA_FAILED_PRECONDITION : RUEDA_OK);
  EXPECT_EQ(message.find("gradient.w1") != std::string::npos, hvd::rank() == 1) << message;
}

RANKS_TEST(DistributedOptimizer, GradientsMayComeInADifferentOrderOnEveryRank, 2, 3) {
  Weights w{5, 70000, 1, 300};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 1; step <= 5; ++step) {
    optimizer.zero_grad();
    for (size_t i = 0; i < 4; ++i) {
      auto& parameter = w[(i * (1 + 2 * (hvd::rank() % 2)) + hvd::rank()) % 4];
      (parameter.sum() * (hvd::rank() * 2.0)).backward();
    }
    optimizer.step();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE((w[i] == -step * (hvd::size() - 1.0)).all().item<bool>()) << i;
    }
  }
}

RANKS_TEST(DistributedOptimizer, ALearningRateCountsFromTheNextStepOn, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (const double lr : {1.0, 0.5, 0.25}) {
    sgd.param_groups()[0].options().set_lr(lr);
    optimizer.zero_grad();
    w[0].sum().backward();
    optimizer.step();
  }
  EXPECT_FLOAT_EQ(First(w[0].detach()), -1.75);
}

// As for a generator and its adversary.
RANKS_TEST(DistributedOptimizer, TwoOfThemHaveNamesOfTheirOwn, 2) {
  Weights a{2}, b{2};
  torch::optim::SGD sgd_a(a.all(), 1.0), sgd_b(b.all(), 1.0);
  {
    hvd::DistributedOptimizer first(sgd_a, a.named, {.name = "a"});
    hvd::DistributedOptimizer second(sgd_b, b.named, {.name = "b"});
    (a[0].sum() + b[0].sum() * (hvd::rank() * 2.0)).backward();
    if (hvd::rank() == 0) first.step();
    second.step();
    if (hvd::rank() == 1) first.step();
    EXPECT_FLOAT_EQ(First(a[0].detach()), -1);
    EXPECT_FLOAT_EQ(First(b[0].detach()), -1);
  }
  hvd::DistributedOptimizer first(sgd_a, a.named);
  hvd::DistributedOptimizer second(sgd_b, b.named);
  // One after the other they may share their names.
  first.zero_grad();
  a[0].sum().backward();
  first.step();
  second.zero_grad();
  b[0].sum().backward();
  second.step();
  EXPECT_FLOAT_EQ(First(b[0].detach()), -2);
}

RANKS_TEST(DistributedOptimizer, ThatSharesItsNamesIsToldSo, 2) {
  Weights a{2}, b{2};
  torch::optim::SGD sgd_a(a.all(), 1.0), sgd_b(b.all(), 1.0);
  hvd::DistributedOptimizer first(sgd_a, a.named);
  hvd::DistributedOptimizer second(sgd_b, b.named);
  // Rank 1 has not begun, so the first one's gradient is in flight when the second one's comes.
  if (hvd::rank() == 0) (a[0].sum() + b[0].sum()).backward();
  hvd::barrier();
  std::string message;
  EXPECT_EQ(StatusOf([&] { first.step(); }), RUEDA_OK);
  EXPECT_EQ(StatusOf([&] { second.step(); }, &message),
            hvd::rank() == 0 ? RUEDA_INVALID_ARGUMENT : RUEDA_OK);
  if (hvd::rank() == 1) return;
  EXPECT_NE(message.find("gradient.small gradients 1"), std::string::npos) << message;
  EXPECT_NE(message.find("another name"), std::string::npos) << message;
}

RANKS_TEST(DistributedOptimizer, ParametersThatComeLaterAreAnErrorOfTheStep, 2) {
  Weights w{2, 2, 2};
  w[1].requires_grad_(false);
  torch::optim::SGD sgd(std::vector<torch::Tensor>{w[0], w[1]}, 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  std::string message;
  w[1].requires_grad_(true);
  (w[0].sum() + w[1].sum()).backward();
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("parameter 1 of group 0"), std::string::npos) << message;
  w[1].requires_grad_(false);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({w[2]}));
  optimizer.zero_grad();
  (w[0].sum() + w[2].sum()).backward();
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("parameter 0 of group 1"), std::string::npos) << message;
  EXPECT_FLOAT_EQ(First(w[0].detach()), 0) << "no step was made";
}

RANKS_TEST(DistributedOptimizer, ParametersThatAreFrozenLaterStayAsTheyAre, 2) {
  Weights w{2, 2};
  torch::optim::SGD sgd(w.all(), Momentum(1.0).weight_decay(0.5));
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  (w[0].sum() + w[1].sum()).backward();
  optimizer.step();
  const float before = First(w[1].detach());
  EXPECT_FLOAT_EQ(before, -1);
  w[1].requires_grad_(false);
  optimizer.zero_grad();
  w[0].sum().backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[1]), before) << "neither momentum nor weight decay moves it";
  EXPECT_LT(First(w[0].detach()), -1);
}

// A sparse 5 x 2 matrix with a row of `value` at each of `rows`.
torch::Tensor SparseRows(const std::vector<int64_t>& rows, float value) {
  const auto count = static_cast<int64_t>(rows.size());
  return torch::sparse_coo_tensor(torch::tensor(rows, torch::kLong).unsqueeze(0),
                                  torch::full({count, 2}, value), {5, 2});
}

RANKS_TEST(SparseAllreduce, IsTheAllreduceOfTheDenseTensors, 1, 2, 3) {
  // Rank 0 has nothing; the others share a row, have one of their own, and one twice.
  std::vector<int64_t> rows;
  if (hvd::rank() > 0) rows = {4, hvd::rank(), 0, 4};
  const torch::Tensor x = SparseRows(rows, hvd::rank() + 1.f);
  for (const hvd::reduce_op op : {hvd::Sum, hvd::Average}) {
    const torch::Tensor expected = hvd::allreduce(x.to_dense(), {.name = "dense", .op = op});
    const torch::Tensor got = hvd::sparse_allreduce(x, {.name = "sparse", .op = op});
    EXPECT_TRUE(got.is_sparse());
    EXPECT_TRUE(got.is_coalesced());
    EXPECT_TRUE(torch::allclose(got.to_dense(), expected)) << got << expected;
    const hvd::SparseHandle handle = hvd::sparse_allreduce_async(x, {.op = op});
    while (!hvd::poll(handle)) std::this_thread::yield();
    EXPECT_TRUE(torch::equal(hvd::synchronize(handle).to_dense(), got.to_dense()));
    EXPECT_TRUE(torch::equal(hvd::synchronize(handle).to_dense(), got.to_dense())) << "again";
  }
  // Without dense dimensions.
  const torch::Tensor flat = x.to_dense().to_sparse();
  EXPECT_TRUE(
      torch::allclose(hvd::sparse_allreduce(flat, {.name = "flat", .op = hvd::Sum}).to_dense(),
                      hvd::allreduce(x.to_dense(), {.name = "dense", .op = hvd::Sum})));
}

RANKS_TEST(SparseAllreduce, AveragesIntegersAsThoseOfDenseTensors, 1, 2, 3) {
  const std::pair<torch::ScalarType, int64_t> kMost[] = {{torch::kChar, INT8_MAX},
                                                         {torch::kByte, UINT8_MAX},
                                                         {torch::kShort, INT16_MAX},
                                                         {torch::kInt, INT32_MAX},
                                                         {torch::kLong, INT64_MAX / 3}};
  for (const auto& [type, most] : kMost) {
    // Sums that leave the type, and one that is truncated.
    const torch::Tensor rows = torch::tensor({4, 0, hvd::rank() > 0 ? 1 : 2}, torch::kLong);
    const torch::Tensor values = torch::tensor({most, most, int64_t{5}}, torch::kLong).to(type);
    const torch::Tensor x = torch::sparse_coo_tensor(rows.unsqueeze(0), values, {5});
    const torch::Tensor expected = hvd::allreduce(x.to_dense(), {.name = "dense"});
    const torch::Tensor got = hvd::sparse_allreduce(x, {.name = "sparse"});
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_TRUE(got.is_coalesced());
    EXPECT_TRUE(torch::equal(got.to_dense(), expected)) << got << expected;
    EXPECT_EQ(got.to_dense()[4].item<int64_t>(), most);
  }
  // Elements with the same indices are divided and truncated together.
  const torch::Tensor twice =
      torch::sparse_coo_tensor(torch::tensor({1, 1}, torch::kLong).unsqueeze(0),
                               torch::full({2}, hvd::rank() == 0 ? 60 : 61, torch::kChar), {3});
  const int sum = 122 * hvd::size() - 2;
  EXPECT_EQ(hvd::sparse_allreduce(twice).to_dense()[1].item<int>(), sum / hvd::size());
}

RANKS_TEST(SparseAllreduce, WhatDoesNotFitIsAnErrorOnAllRanks, 2, 3) {
  const torch::Tensor x = SparseRows({1}, 1);
  std::string message;
  const torch::Tensor wide = torch::sparse_coo_tensor(
      torch::zeros({1, 1}, torch::kLong), torch::ones({1, 2}), {hvd::rank() == 1 ? 9 : 5, 2});
  EXPECT_EQ(StatusOf([&] { hvd::sparse_allreduce(wide, {.name = "wide"}); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("'wide' has shape [5, 2]"), std::string::npos) << message;
  EXPECT_NE(message.find("[9, 2] on the one with index 1"), std::string::npos) << message;
  EXPECT_EQ(StatusOf([&] {
              if (hvd::rank() == 0) {
                hvd::allreduce(x.to_dense(), {.name = "mixed"});
              } else {
                hvd::sparse_allreduce(x, {.name = "mixed"});
              }
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::sparse_allreduce(x, {.name = "x", .op = hvd::Max}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::sparse_allreduce(x.to_dense(), {.name = "x"}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::sparse_allreduce(x.to(torch::kBool), {.name = "x"}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::sparse_allreduce(torch::Tensor(), {.name = "x"}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(hvd::SparseHandle()); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_TRUE(torch::equal(hvd::sparse_allreduce(x, {.name = "x"}).to_dense(), x.to_dense()));
}

// What an embedding that begins the same on all ranks is after some steps; each rank looks up words
// of its own, and not all ranks in every step.
torch::Tensor TrainEmbedding(bool sparse, const hvd::DistributedOptimizerOptions& options) {
  torch::manual_seed(3);
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse));
  torch::optim::SGD sgd(embedding->parameters(), 0.5);
  hvd::DistributedOptimizer optimizer(sgd, embedding->named_parameters(), options);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const int64_t word = (3 * hvd::rank() + step) % 10;
    if (step != 2 || hvd::rank() == 0) {
      embedding(torch::tensor({word, int64_t{5}, word})).pow(2).sum().backward();
    }
    optimizer.step();
    EXPECT_EQ(embedding->weight.grad().is_sparse(), sparse && !options.sparse_as_dense);
  }
  EXPECT_TRUE(ReplicasEqual(embedding->weight.detach()));
  return embedding->weight.detach();
}

RANKS_TEST(DistributedOptimizer, SparseGradientsTrainLikeDenseOnes, 1, 2, 3) {
  const torch::Tensor dense = TrainEmbedding(false, {});
  EXPECT_LT(Distance(TrainEmbedding(true, {}), dense), 1e-6);
  EXPECT_LT(Distance(TrainEmbedding(true, {.sparse_as_dense = true}), dense), 1e-6);
  EXPECT_LT(Distance(TrainEmbedding(true, {.gradient_predivide_factor = 2}), dense), 1e-6);
  EXPECT_LT(
      Distance(TrainEmbedding(true, {.op = hvd::Sum}), TrainEmbedding(false, {.op = hvd::Sum})),
      1e-6);
  EXPECT_LT(Distance(TrainEmbedding(true, {.op = hvd::Max, .sparse_as_dense = true}),
                     TrainEmbedding(false, {.op = hvd::Max})),
            1e-6);
}

RANKS_TEST(DistributedOptimizer, AGradientThatIsSparseOnSomeRanksOnlyIsAnErrorOfTheStep, 2, 3) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, embedding->named_parameters());
  if (hvd::rank() == 0) embedding(torch::tensor({1, 2})).sum().backward();
  std::string message;
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("gradient.weight"), std::string::npos) << message;
  optimizer.zero_grad();
  embedding(torch::tensor({1, 2})).sum().backward();
  optimizer.step();
}

// Small gradients share an operation; a sparse one among them has one of its own.
RANKS_TEST(DistributedOptimizer, SparseAndDenseGradientsMayShareABucket, 1, 2, 3) {
  const auto train = [](bool sparse) {
    torch::manual_seed(5);
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(10, 4).sparse(sparse));
    torch::nn::Linear out(4, 3);
    hvd::NamedTensors named = {{"a", out->weight}, {"words", words->weight}, {"b", out->bias}};
    torch::optim::SGD sgd({out->weight, words->weight, out->bias}, 0.02);
    hvd::DistributedOptimizer optimizer(sgd, named);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      out(words(torch::tensor({int64_t{hvd::rank()}, int64_t{5}}))).pow(2).sum().backward();
      optimizer.step();
      EXPECT_EQ(words->weight.grad().is_sparse(), sparse);
    }
    return torch::cat({out->weight.detach().flatten(), words->weight.detach().flatten()});
  };
  const torch::Tensor sparse = train(true);
  EXPECT_LT(Distance(sparse, train(false)), 1e-5);
  EXPECT_TRUE(ReplicasEqual(sparse));
}

RANKS_TEST(DistributedOptimizer, OneThatIsSparseOnSomeRanksOnlyDoesNotLeaveTheRestOfItsBucketBehind,
           2, 3) {
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  torch::nn::Linear out(4, 3);
  // The sparse one is the last and the first of the two buckets' parameters by turns.
  for (const bool last : {true, false}) {
    std::vector<torch::Tensor> parameters = {words->weight, out->weight, out->bias};
    hvd::NamedTensors named = {{"words", words->weight}, {"a", out->weight}, {"b", out->bias}};
    if (last) std::swap(parameters[0], parameters[2]), std::swap(named[0], named[2]);
    torch::optim::SGD sgd(parameters, 1.0);
    hvd::DistributedOptimizer optimizer(sgd, named);
    optimizer.zero_grad();
    if (hvd::rank() == 0) out(words(torch::tensor({1, 2}))).sum().backward();
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }), RUEDA_INVALID_ARGUMENT);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      out(words(torch::tensor({1, 2}))).sum().backward();
      optimizer.step();
    }
  }
}

RANKS_TEST(DistributedOptimizer, RefusesOptimizersThatNeedAClosure, 1) {
  Weights w{2};
  torch::optim::LBFGS lbfgs(w.all());
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::DistributedOptimizer optimizer(lbfgs, w.named); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("LBFGS"), std::string::npos) << message;
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

RANKS_TEST(DistributedOptimizer, SynchronizeReducesOnce, 2) {
  Weights w{2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.op = hvd::Sum});
  w[0].sum().backward();
  optimizer.synchronize();
  optimizer.synchronize();
  EXPECT_FLOAT_EQ(First(w[0].grad()), 2);
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -2);
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

// No step: the hooks alone submit.
RANKS_TEST(DistributedOptimizer, GoesAwayWithGradientsInFlight, 2) {
  Weights w{1000, 3, 200000};
  torch::optim::SGD sgd(w.all(), 1.0);
  {
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    ((w[0].sum() + w[1].sum() + w[2].sum()) * hvd::rank()).backward();
  }
  for (const torch::Tensor& parameter : w.all()) {
    EXPECT_TRUE((parameter.grad() == hvd::rank()).all().item<bool>()) << "this rank's own";
  }
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
  hvd::broadcast_parameters(*net, 0);
  const Net reference = CopyOf(net);
  auto optimizer = make(net->parameters(), hvd::rank() == 0 ? 0.1 : 0.7);
  auto expected = make(reference->parameters(), 0.1);
  const auto step = [](const Net& on, torch::optim::Optimizer& with, int i) {
    with.zero_grad();
    Loss(on, Batch(i, 1)).backward();
    with.step();
  };
  for (int i = 0; i < steps_before; ++i) {
    if (hvd::rank() == 0) step(net, *optimizer, i);
    step(reference, *expected, i);
  }
  hvd::broadcast_parameters(*net, 0);
  hvd::broadcast_optimizer_state(*optimizer, 0);
  EXPECT_EQ(optimizer->state().size(), expected->state().size());
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 0.1);
  for (int i = 0; i < 5; ++i) {
    step(net, *optimizer, 100 + i);
    step(reference, *expected, 100 + i);
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << "step " << i;
  }
  EXPECT_TRUE(torch::equal(Flat(*net), Flat(*reference)));
}

// Makes an optimizer of the parameters in two groups. The first one's options are `with`, at the
// learning rate `lr`; the second one learns at half of it.
template <typename Optimizer, typename Options>
auto InTwoGroups(Options with) {
  return [with](const std::vector<torch::Tensor>& parameters, double lr) {
    auto options = std::make_unique<Options>(with);
    options->lr(lr);
    auto half = std::make_unique<Options>(*options);
    half->lr(lr / 2);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{parameters[0]}, std::move(options));
    groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 1, parameters.end()),
                        std::move(half));
    return std::make_unique<Optimizer>(groups, with);
  };
}

RANKS_TEST(BroadcastOptimizerState, GivesSgdItsMomentum, 1, 2, 3) {
  BroadcastsState(InTwoGroups<torch::optim::SGD>(Momentum().weight_decay(0.01).nesterov(true)), 4);
}

RANKS_TEST(BroadcastOptimizerState, GivesAdamItsMomentsAndSteps, 1, 2, 3) {
  BroadcastsState(
      InTwoGroups<torch::optim::Adam>(torch::optim::AdamOptions().amsgrad(true).weight_decay(0.01)),
      4);
}

RANKS_TEST(BroadcastOptimizerState, GivesAdamWItsMomentsAndSteps, 2) {
  BroadcastsState(InTwoGroups<torch::optim::AdamW>(torch::optim::AdamWOptions().eps(1e-6)), 4);
}

RANKS_TEST(BroadcastOptimizerState, GivesRmspropItsAverages, 2) {
  BroadcastsState(InTwoGroups<torch::optim::RMSprop>(
                      torch::optim::RMSpropOptions().momentum(0.5).centered(true)),
                  4);
  BroadcastsState(InTwoGroups<torch::optim::RMSprop>(torch::optim::RMSpropOptions()), 2);
}

RANKS_TEST(BroadcastOptimizerState, GivesAdagradItsSums, 2) {
  BroadcastsState(InTwoGroups<torch::optim::Adagrad>(torch::optim::AdagradOptions().lr_decay(0.1)),
                  4);
}

RANKS_TEST(BroadcastOptimizerState, OfAnOptimizerThatHasNotStepped, 1, 2) {
  BroadcastsState(InTwoGroups<torch::optim::AdamW>(torch::optim::AdamWOptions()), 0);
}

// Rank 0's options differ from the others' in every field.
template <typename Optimizer, typename Options>
void BroadcastsOptions(const Options& roots, const Options& others) {
  Weights w{2};
  Optimizer optimizer(w.all(), hvd::rank() == 0 ? roots : others);
  auto& options = static_cast<Options&>(optimizer.param_groups()[0].options());
  hvd::broadcast_optimizer_state(optimizer, 0);
  EXPECT_TRUE(options == roots) << "by reference: " << typeid(Options).name();
}

RANKS_TEST(BroadcastOptimizerState, GivesEveryOption, 2) {
  using namespace torch::optim;
  BroadcastsOptions<SGD>(
      SGDOptions(0.3).momentum(0.4).dampening(0).weight_decay(0.6).nesterov(true),
      SGDOptions(0.1).momentum(0.2).dampening(0.3));
  const auto betas = std::make_tuple(0.1, 0.2);
  BroadcastsOptions<Adam>(AdamOptions(0.3).betas(betas).eps(0.4).weight_decay(0.5).amsgrad(true),
                          AdamOptions());
  BroadcastsOptions<AdamW>(AdamWOptions(0.3).betas(betas).eps(0.4).weight_decay(0.5).amsgrad(true),
                           AdamWOptions());
  BroadcastsOptions<RMSprop>(
      RMSpropOptions(0.3).alpha(0.4).eps(0.5).weight_decay(0.6).momentum(0.7).centered(true),
      RMSpropOptions());
  BroadcastsOptions<Adagrad>(
      AdagradOptions(0.3).lr_decay(0.4).weight_decay(0.5).initial_accumulator_value(0.6).eps(0.7),
      AdagradOptions());
}

// The state of a model that was converted after its first steps keeps the type it had.
RANKS_TEST(BroadcastOptimizerState, KeepsTheTypeOfTheRootsState, 2) {
  torch::manual_seed(7);
  Net net;
  torch::optim::Adam adam(net->parameters());
  const bool root = hvd::rank() == 1;
  if (root) {
    Loss(net, Batch(0, 1)).backward();
    adam.step();
  }
  net->to(torch::kBFloat16);
  hvd::broadcast_optimizer_state(adam, 1);
  for (const torch::Tensor& parameter : net->parameters()) {
    ASSERT_EQ(parameter.scalar_type(), torch::kBFloat16);
    auto& state = static_cast<torch::optim::AdamParamState&>(
        *adam.state().at(parameter.unsafeGetTensorImpl()));
    ASSERT_EQ(state.exp_avg_sq().scalar_type(), torch::kFloat);
    EXPECT_TRUE(ReplicasEqual(state.exp_avg_sq().flatten()));
  }
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

RANKS_TEST(BroadcastOptimizerState, OptimizersThatDifferAreAnErrorOnAllRanks, 2, 3) {
  Weights w{2, 3, 4};
  const std::vector<torch::Tensor> all = w.all();
  std::string message;
  const auto status_of = [&](torch::optim::Optimizer& optimizer) {
    return StatusOf([&] { hvd::broadcast_optimizer_state(optimizer, hvd::size() - 1); }, &message);
  };
  torch::optim::SGD sgd(all, 1.0);
  torch::optim::Adam adam(all);
  EXPECT_EQ(hvd::rank() == 1 ? status_of(adam) : status_of(sgd), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1 has Adam"), std::string::npos) << message;

  torch::optim::SGD fewer({all[0], all[1]}, 1.0);
  EXPECT_EQ(hvd::rank() == 1 ? status_of(fewer) : status_of(sgd), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("of 3 parameters, rank 1 has SGD with groups of 2 parameters"),
            std::string::npos)
      << message;

  torch::optim::LBFGS lbfgs(all);
  EXPECT_EQ(hvd::rank() == 1 ? status_of(lbfgs) : status_of(sgd), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1 has none of SGD, Adam"), std::string::npos) << message;
  EXPECT_EQ(status_of(sgd), RUEDA_OK);
}

RANKS_TEST(BroadcastOptimizerState, AStateThatDoesNotFitChangesNothing, 2) {
  Weights w{2 + hvd::rank(), 4};
  torch::optim::SGD sgd(w.all(), Momentum(hvd::rank() == 0 ? 0.1 : 0.7));
  if (hvd::rank() == 0) {
    (w[0].sum() + w[1].sum()).backward();
    sgd.step();
  }
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::broadcast_optimizer_state(sgd, 0); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("group0.0.momentum_buffer"), std::string::npos) << message;
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), hvd::rank() == 0 ? 0.1 : 0.7);
  EXPECT_EQ(sgd.state().size(), hvd::rank() == 0 ? 2u : 0u);
}

}  // namespace
