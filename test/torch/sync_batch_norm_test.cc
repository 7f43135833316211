// Batch norm over all ranks' batches against one process on all of them.
#include <torch/torch.h>

#include "rueda/strategy.hpp"
#include "rueda/training.hpp"
#include "test/torch/ranks.h"
#include "test/torch/training.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

constexpr int kChannels = 5;
constexpr double kTolerance = 1e-5;

struct Case {
  std::vector<int64_t> rest;  // of the input's shape, after N and C
  bool affine = true;
  bool track = true;
  std::optional<double> momentum = 0.3;
  torch::ScalarType type = torch::kFloat;
  bool uneven = true;
  double offset = 0;  // of the input
};

// Rank 1 has nothing in odd steps.
int64_t RowsOf(const Case& c, int rank, int step) {
  if (!c.uneven) return 4;
  return rank == 1 && step % 2 == 1 ? 0 : 3 + 2 * rank;
}

struct Inputs {
  torch::Tensor x, target;  // of all ranks
  int64_t begin = 0, rows = 0;
  torch::Tensor Own(const torch::Tensor& all) const { return all.narrow(0, begin, rows); }
};

Inputs MakeInputs(const Case& c, int step) {
  Inputs inputs;
  int64_t total = 0;
  for (int rank = 0; rank < hvd::size(); ++rank) {
    if (rank == hvd::rank()) inputs.begin = total;
    total += RowsOf(c, rank, step);
  }
  inputs.rows = RowsOf(c, hvd::rank(), step);
  std::vector<int64_t> shape = c.rest;
  shape.insert(shape.begin(), {total, kChannels});
  torch::manual_seed(100 + step);
  inputs.x = torch::randn(shape, c.type) * 2 + c.offset;
  inputs.target = torch::randn(shape, c.type);
  return inputs;
}

// Norm modules of any kind on a part of the batch, against the reference on all of it: the largest
// distance of outputs, input gradients, averaged parameter gradients and running statistics.
template <typename Norm, typename Reference>
double LargestDistance(const Case& c, Norm norm, Reference reference) {
  norm->to(c.type);
  reference->to(c.type);
  std::optional<torch::optim::SGD> sgd, reference_sgd;
  if (c.affine) {
    sgd.emplace(norm->parameters(), 0.1);
    reference_sgd.emplace(reference->parameters(), 0.1);
  }
  double distance = 0;
  const auto compare = [&](const torch::Tensor& a, const torch::Tensor& b) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    if (a.numel() > 0) distance = std::max(distance, Distance(a.detach(), b.detach()));
  };
  for (int step = 0; step < 3; ++step) {
    const Inputs inputs = MakeInputs(c, step);
    const torch::Tensor x = inputs.Own(inputs.x).clone().requires_grad_();
    const torch::Tensor all = inputs.x.clone().requires_grad_();
    const torch::Tensor y = norm(x);
    const torch::Tensor expected = reference(all);
    compare(y, inputs.Own(expected));
    if (c.affine) sgd->zero_grad(), reference_sgd->zero_grad();
    // The average of these is the reference's loss.
    const auto rows = static_cast<double>(all.size(0));
    ((y * inputs.Own(inputs.target)).sum() * (hvd::size() / rows)).backward();
    ((expected * inputs.target).sum() / rows).backward();
    compare(x.grad() / hvd::size(), inputs.Own(all.grad()));
    if (!c.affine) continue;
    for (const auto& parameter : norm->named_parameters()) {
      torch::Tensor gradient = parameter.value().grad();
      gradient.copy_(hvd::allreduce(gradient.cpu(), {.name = parameter.key()}));
      compare(gradient, reference->named_parameters()[parameter.key()].grad());
    }
    sgd->step();
    reference_sgd->step();
  }
  const auto buffers = norm->named_buffers();
  EXPECT_EQ(buffers.size(), c.track ? 3u : 0u);
  for (const auto& buffer : buffers)
    compare(buffer.value(), reference->named_buffers()[buffer.key()]);
  // And as they are used.
  norm->eval(), reference->eval();
  const Inputs inputs = MakeInputs(c, 0);
  if (c.track) compare(norm(inputs.Own(inputs.x)), inputs.Own(reference(inputs.x)));
  return distance;
}

template <typename Reference>
void CheckLikeOneProcess(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rest.size() + 2 << " dimensions, affine " << c.affine
                                  << ", track " << c.track << ", " << c.type);
  const auto options =
      torch::nn::BatchNormOptions(kChannels).affine(c.affine).track_running_stats(c.track).momentum(
          c.momentum);
  const double distance = LargestDistance(c, hvd::SyncBatchNorm(options), Reference(options));
  EXPECT_LT(distance, c.type == torch::kDouble ? 1e-12 : kTolerance);
  if (hvd::size() == 1 || !c.affine) return;
  // That this can fail: without the others.
  Case alone = c;
  alone.uneven = false;
  EXPECT_GT(LargestDistance(alone, Reference(options), Reference(options)), 1e-2);
}

RANKS_TEST(SyncBatchNorm, IsOneProcessOnAllRanksBatches, 1, 2, 3) {
  using torch::nn::BatchNorm1d, torch::nn::BatchNorm2d, torch::nn::BatchNorm3d;
  CheckLikeOneProcess<BatchNorm1d>({.rest = {}});
  CheckLikeOneProcess<BatchNorm1d>({.rest = {7}, .momentum = std::nullopt});
  CheckLikeOneProcess<BatchNorm2d>({.rest = {4, 3}});
  CheckLikeOneProcess<BatchNorm2d>({.rest = {4, 3}, .uneven = false});
  CheckLikeOneProcess<BatchNorm2d>({.rest = {4, 3}, .affine = false});
  CheckLikeOneProcess<BatchNorm2d>({.rest = {4, 3}, .track = false});
  CheckLikeOneProcess<BatchNorm2d>({.rest = {4, 3}, .type = torch::kDouble});
  CheckLikeOneProcess<BatchNorm1d>({.rest = {}, .type = torch::kDouble});
  CheckLikeOneProcess<BatchNorm3d>({.rest = {2, 3, 2}});
}

// Of values far from 0, where a sum of squares has lost the variance.
RANKS_TEST(SyncBatchNorm, KeepsTheVarianceOfValuesFarFromZero, 2) {
  const Case c = {.rest = {6}, .offset = 1000};
  const Inputs inputs = MakeInputs(c, 0);
  hvd::SyncBatchNorm norm(kChannels);
  const torch::Tensor wide = inputs.x.to(torch::kDouble);
  const torch::Tensor expected =
      (wide - wide.mean({0, 2}, true)) / (wide.var({0, 2}, /*unbiased=*/false, true) + 1e-5).sqrt();
  const torch::Tensor y = norm(inputs.Own(inputs.x));
  // What rounding the mean of about 1000 to float32 leaves.
  EXPECT_LT(Distance(y.detach().to(torch::kDouble), inputs.Own(expected)), 1e-4);
}

RANKS_TEST(SyncBatchNorm, InEvalItIsTheRanksOwnBusiness, 2) {
  hvd::SyncBatchNorm norm(kChannels);
  EXPECT_EQ(norm->operation_name(), "sync_batch_norm.0");
  EXPECT_EQ(hvd::SyncBatchNorm(kChannels)->operation_name(), "sync_batch_norm.1");
  EXPECT_EQ(hvd::SyncBatchNorm(kChannels, "mine")->operation_name(), "mine");
  norm->eval();
  // One rank alone, with and without running statistics: if it communicated, it would not return.
  if (hvd::rank() == 1) {
    const torch::Tensor x = torch::randn({4, kChannels});
    EXPECT_LT(Distance(norm(x).detach(), x), 1e-4);
    hvd::SyncBatchNorm without(torch::nn::BatchNormOptions(kChannels).track_running_stats(false));
    without->eval();
    EXPECT_LT(without(x).mean(0).abs().max().item<float>(), 1e-5);
  }
  // In a Sequential, cloned, with half precision, in a process set.
  const hvd::ProcessSet last = hvd::add_process_set({1});
  torch::nn::Sequential net(torch::nn::Linear(3, kChannels),
                            hvd::SyncBatchNorm(kChannels, "in a set", last));
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  if (hvd::rank() == 1) {
    const torch::Tensor x = torch::randn({6, 3});
    EXPECT_LT(copy->forward(x).mean(0).abs().max().item<float>(), 1e-5);
    const torch::Tensor half = torch::randn({6, kChannels}).to(torch::kBFloat16).requires_grad_();
    hvd::SyncBatchNorm wide(kChannels, "of halves", last);
    const torch::Tensor y = wide(half);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.square().sum().backward();
    EXPECT_EQ(half.grad().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(wide->weight.grad().scalar_type(), torch::kFloat);
  }
}

RANKS_TEST(SyncBatchNorm, MistakesAreRefused, 2) {
  hvd::SyncBatchNorm norm(kChannels);
  std::string message;
  const auto forward = [&](const torch::Tensor& x) {
    return StatusOf([&] { (void)norm(x); }, &message);
  };
  EXPECT_EQ(forward(torch::zeros({4})), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(forward(torch::zeros({4, 4})), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("4 channels, the module 5"), std::string::npos) << message;
  EXPECT_EQ(forward(torch::zeros({4, 5}, torch::kMeta)), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("in training CPU or CUDA"), std::string::npos) << message;
  EXPECT_EQ(forward(torch::zeros({4, 5}, torch::kLong)), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(forward(torch::zeros({hvd::rank(), 5})), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("all ranks together have 1"), std::string::npos) << message;
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  const torch::Tensor x = torch::randn({4, 5}).requires_grad_();
  const auto twice = [&] {
    (void)torch::autograd::grad({norm(x).square().sum()}, {x}, {}, std::nullopt, true);
  };
  EXPECT_EQ(StatusOf(twice, &message), RUEDA_UNIMPLEMENTED);
  hvd::SyncBatchNorm other(hvd::rank() + 2, "other");
  EXPECT_EQ(StatusOf(
                [&] {
                  (void)other(torch::randn({4, hvd::rank() + 2}));
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("'other' with " + std::to_string(hvd::rank() + 2) + " channels"),
            std::string::npos)
      << message;
}

// Where not every rank, or replica, makes every forward pass, one would wait for the others.
RANKS_TEST(SyncBatchNorm, StrategiesThatSplitTheModelRefuseIt, 1, 2) {
  torch::nn::Sequential net(torch::nn::Linear(3, kChannels), hvd::SyncBatchNorm(kChannels));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (const char* strategy : {"dp", "ddp2", "mirrored", "pipeline"}) {
    std::string message;
    const auto make = [&] { (void)hvd::make_strategy(strategy, net, sgd); };
    EXPECT_EQ(StatusOf(make, &message), RUEDA_INVALID_ARGUMENT) << strategy;
    EXPECT_NE(message.find("'1' is a SyncBatchNorm"), std::string::npos) << message;
  }
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  strategy->backward(strategy->forward(torch::randn({4, 3})).square().sum());
  strategy->step();
}

}  // namespace
