// The adapter on CUDA tensors, against itself on the CPU: on one rank, and on two, which share a
// device where there is one only.
#include "test/torch/cuda.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "examples/trainer/trainer.h"
#include "rueda/precision.hpp"
#include "rueda/strategy.hpp"
#include "rueda/training.hpp"
#include "test/torch/strategies.h"
#include "test/torch/tensors.h"
#include "test/torch/training.h"

#ifdef RUEDA_TEST_FAKE_DEVICE
#include "test/torch/fake_device.h"
#endif

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
using rueda::Sum;
using Tensors = std::vector<torch::Tensor>;

torch::Device Cuda() {
  return hvd::local_device(torch::kCUDA);
}

c10::Stream NewStream() {
  return c10::impl::VirtualGuardImpl(torch::kCUDA).getStreamFromGlobalPool(Cuda());
}

// Gives the current stream work of some 20 ms, so many times.
#ifdef RUEDA_TEST_FAKE_DEVICE
void Occupy(int times) {
  rueda::fake_cuda::Sleep(c10::impl::VirtualGuardImpl(torch::kCUDA).getStream(Cuda()), 20 * times);
}
#else
void Occupy(int times) {
  static const torch::Tensor a = torch::ones({8192, 8192}, Cuda());
  torch::Tensor b = a;
  for (int i = 0; i < times; ++i) b = a.mm(b) / 8192;
}
#endif

// What fn makes of a tensor on the CPU and of the same one on CUDA is the same, and stays there.
void ExpectAlike(const char* what, const torch::Tensor& input,
                 const std::function<Tensors(const torch::Tensor&)>& fn) {
  const Tensors expected = fn(input.clone());
  const Tensors got = fn(input.to(Cuda()));
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << what;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(got[i].is_cuda()) << what;
    EXPECT_EQ(got[i].sizes(), expected[i].sizes()) << what;
    EXPECT_TRUE(torch::allclose(got[i].cpu(), expected[i])) << what << "\n" << got[i];
  }
}

// Operations -----------------------------------------------------------------------------------

CUDA_TEST(CudaOperations, AreThoseOfTheCpu, 1, 2) {
  const int rank = hvd::rank(), size = hvd::size(), last = size - 1;
  const torch::Tensor x = Six(1 + rank);
  const auto alike = [&](const char* what, const std::function<Tensors(const torch::Tensor&)>& fn) {
    ExpectAlike(what, x, fn);
  };
  for (const auto op : {rueda::Sum, rueda::Average, rueda::Min, rueda::Max, rueda::Product}) {
    alike("allreduce", [&](const torch::Tensor& t) -> Tensors {
      return {hvd::allreduce(t, {.op = op}), hvd::allreduce_(t, {.op = op})};
    });
  }
  alike("scaled", [](const torch::Tensor& t) -> Tensors {
    return {hvd::allreduce(t, {.op = Sum, .prescale_factor = 0.5, .postscale_factor = 3}),
            hvd::allreduce(t, {.name = "named", .op = rueda::Average, .prescale_factor = 2})};
  });
  alike("in place, with gaps", [](const torch::Tensor& t) -> Tensors {
    const torch::Tensor columns = t.t();
    return {hvd::allreduce_(columns, {.op = Sum}), t,
            hvd::allreduce(t.narrow(1, 1, 2), {.op = Sum})};
  });
  alike("group", [](const torch::Tensor& t) {
    Tensors results = hvd::grouped_allreduce({t, t.reshape({-1}) + 1, t[0].contiguous()},
                                             {.name = "g", .op = Sum});
    hvd::grouped_allreduce_({t, results[1]}, {.op = Sum});
    results.push_back(t);
    return results;
  });
  alike("broadcast", [&](const torch::Tensor& t) -> Tensors {
    return {hvd::broadcast(t, last), hvd::broadcast_(t, last, {.name = "b"}), t};
  });
  alike("allgather", [&](const torch::Tensor& t) {
    Tensors results =
        hvd::grouped_allgather({t, t.narrow(0, 0, rank == 0 ? 0 : 1)}, {.name = "gathered"});
    results.push_back(hvd::allgather(t.narrow(0, 0, 1 + rank % 2)));
    return results;
  });
  alike("alltoall", [&](const torch::Tensor& t) -> Tensors {
    const torch::Tensor rows = t.repeat({size, 1});
    std::vector<int64_t> splits(size, 2);
    splits[0] += last > 0 ? 1 : 0;
    splits[last] -= last > 0 ? 1 : 0;
    const auto [result, received] =
        hvd::alltoall_with_splits(rows, {.splits = splits, .name = "split"});
    EXPECT_EQ(received.sum().item<int64_t>(), result.size(0));
    return {result, hvd::alltoall(rows)};
  });
  alike("reducescatter", [&](const torch::Tensor& t) {
    const torch::Tensor rows = t.repeat({size, 1});
    Tensors results =
        hvd::grouped_reducescatter({rows, rows * 2}, {.name = "scattered", .op = Sum});
    results.push_back(hvd::reducescatter(rows.narrow(0, 0, size + 1)));  // not divisible
    return results;
  });
  alike("rooted", [&](const torch::Tensor& t) -> Tensors {
    const torch::Tensor rows = t.repeat({size, 1});
    return {hvd::reduce(t, last, {.op = Sum}), hvd::gather(t, last), hvd::scatter(rows, last)};
  });
  alike("send and recv", [&](const torch::Tensor& t) -> Tensors {
    if (size == 1) return {};
    if (rank == 0) {
      hvd::send(t, 1, {.name = "sent"});
      return {};
    }
    if (rank > 1) return {};
    return {hvd::recv_(torch::zeros_like(t), 0, {.name = "sent"})};
  });
  alike("empty", [](const torch::Tensor& t) -> Tensors {
    return {hvd::allreduce(t.narrow(0, 0, 0).contiguous()), hvd::allgather(t.narrow(0, 0, 0))};
  });
  for (const auto type :
       {torch::kHalf, torch::kBFloat16, torch::kDouble, torch::kInt, torch::kLong, torch::kByte}) {
    ExpectAlike(torch::toString(type), Six(rank, type),
                [](const torch::Tensor& t) -> Tensors { return {hvd::allreduce(t, {.op = Sum})}; });
  }
}

CUDA_TEST(CudaOperations, SparseOnesToo, 1, 2) {
  const torch::Tensor dense = torch::eye(4).mul(hvd::rank() + 1);
  for (const auto op : {rueda::Sum, rueda::Average}) {
    const torch::Tensor expected = hvd::sparse_allreduce(dense.to_sparse(), {.op = op});
    const torch::Tensor got = hvd::sparse_allreduce(dense.to(Cuda()).to_sparse(), {.op = op});
    EXPECT_TRUE(got.is_cuda() && got.is_sparse());
    EXPECT_TRUE(Same(got.to_dense().cpu(), expected.to_dense()));
  }
}

CUDA_TEST(CudaOperations, HaveTheGradientsOfTheCpu, 1, 2) {
  const auto gradient = [](torch::Device device) {
    torch::Tensor x = Six(1 + hvd::rank()).to(device).requires_grad_();
    const torch::Tensor rows = x.repeat({hvd::size(), 1});
    torch::Tensor loss = hvd::allreduce(x, {.name = "a", .op = Sum}).square().sum() +
                         hvd::broadcast(x * x, 0, {.name = "b"}).sum() +
                         hvd::allgather(x.sin(), {.name = "c"}).square().sum() +
                         hvd::alltoall(rows.cos(), {.name = "d"}).pow(3).sum() +
                         hvd::reducescatter(rows * rows, {.name = "e"}).square().sum();
    loss.backward();
    return x.grad().cpu();
  };
  EXPECT_LT(Distance(gradient(Cuda()), gradient(torch::kCPU)), 1e-3);
}

CUDA_TEST(CudaOperations, MistakesAreRefusedByName, 2) {
  std::string message;
  const torch::Tensor here = Six(0).to(Cuda());
  EXPECT_EQ(StatusOf(
                [&] {
                  hvd::grouped_allreduce({here, Six(0)}, {.name = "g"});
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("tensor 1 of the group 'g' is on the CPU, and the first one on cuda:"),
            std::string::npos)
      << message;
  // One rank's is elsewhere: all are told so, and the job goes on.
  EXPECT_EQ(
      StatusOf([&] { hvd::allreduce(hvd::rank() == 0 ? here : Six(0), {.name = "w"}); }, &message),
      RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("w"), std::string::npos) << message;
  const torch::Tensor shaped = torch::zeros({2 + hvd::rank()}, Cuda());
  EXPECT_EQ(StatusOf([&] { hvd::allreduce(shaped, {.name = "shape"}); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_TRUE(Same(hvd::allreduce(here, {.name = "after"}).cpu(), Six(0)));
}

// Streams --------------------------------------------------------------------------------------

CUDA_TEST(CudaStreams, NobodyWaitsForTheDevice, 1, 2) {
  const torch::Tensor x = torch::full({1000}, 1.0 + hvd::rank(), Cuda());
  const double expected = hvd::size() * (hvd::size() + 1) / 2.0;
  ASSERT_EQ(x[0].item<double>(), 1.0 + hvd::rank());  // it is there, for any stream
  const c10::Stream stream = NewStream();
  const c10::StreamGuard guard(stream);
  // The first time kernels are loaded and ranks connected, which may wait.
  for (const bool busy : {false, true}) {
    const torch::Tensor late = x * 1;
    stream.synchronize();
    hvd::barrier();
    Occupy(busy ? 40 : 1);
    const hvd::Handle in_flight = hvd::allreduce_async(late, {.name = "in flight", .op = Sum});
    EXPECT_TRUE(!busy || !stream.query()) << "submitting has waited for the stream";
    const torch::Tensor sum = hvd::synchronize(in_flight);
    EXPECT_TRUE(!busy || !stream.query()) << "synchronize() has waited for the device";
    const torch::Tensor rows = hvd::allgather(late, {.name = "rows"});
    EXPECT_TRUE(!busy || !stream.query()) << "an operation that allocates has waited";
    { const hvd::Handle dropped = hvd::allreduce_async(late, {.name = "dropped", .op = Sum}); }
    EXPECT_TRUE(!busy || !stream.query()) << "letting go of a handle has waited for the device";
    const torch::Tensor again = hvd::allreduce(late, {.name = "in flight", .op = Sum});
    EXPECT_TRUE(!busy || !stream.query()) << "a name's second operation has waited for its first";
    EXPECT_TRUE((sum + again).cpu().eq(2 * expected).all().item<bool>());
    EXPECT_EQ(rows.sum().item<double>(), 1000 * expected);
  }
}

// How tensors meet an operation, and what becomes of them.
enum class Use { kOneStream, kOtherStream, kDropped, kInPlaceWithGaps, kGathered };

// Memory that somebody got too early is overwritten, on the stream it belongs to, by what is made
// there right after it was freed: blocks of the same size, as the allocator gives those freed last.
void Press(Use use) {
  constexpr int kRounds = 400;
  const c10::Stream first = NewStream(), second = use == Use::kOtherStream ? NewStream() : first;
  torch::Tensor wrong = torch::zeros({1}, torch::TensorOptions(Cuda()).dtype(torch::kLong));
  torch::manual_seed(1);
  const double ranks = hvd::size();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t size = 1 + torch::randint(40'000, {1}).item<int64_t>();
    const double own = round % 97 + hvd::rank();
    const double sum = ranks * (round % 97) + ranks * (ranks - 1) / 2;
    torch::Tensor result;
    double expected = sum;
    {
      hvd::Handle handle;
      {
        const c10::StreamGuard guard(first);
        const torch::Tensor x = torch::full({size, 2}, own, Cuda());
        if (use == Use::kInPlaceWithGaps) result = torch::full({2, size}, own, Cuda());
        if (round % 20 == 0) Occupy(1);  // so that the library's stream is late
        switch (use) {
          case Use::kGathered:
            handle = hvd::allgather_async(x);
            expected = sum / ranks;  // the mean
            break;
          case Use::kInPlaceWithGaps:
            handle = hvd::allreduce_async_(result.t(), {.op = Sum});
            break;
          default:
            handle = hvd::allreduce_async(x, {.op = Sum});
        }
      }
      const c10::StreamGuard guard(second);
      if (use != Use::kDropped) {
        const torch::Tensor done = hvd::synchronize(handle);
        if (use != Use::kInPlaceWithGaps) result = done;
      }
    }
    {
      const c10::StreamGuard guard(first);
      for (int i = 0; i < 4; ++i) torch::full({size, 2}, -1000.0 - i, Cuda());
    }
    if (use == Use::kDropped) continue;
    const c10::StreamGuard guard(second);
    const torch::Tensor got = use == Use::kGathered ? result.mean(torch::kDouble) : result;
    wrong += (got - expected).abs().gt(1e-3).sum();
    c10::impl::VirtualGuardImpl(torch::kCUDA).synchronizeStream(second);
  }
  {
    const c10::StreamGuard guard(second);
    EXPECT_EQ(wrong.item<int64_t>(), 0) << "of use " << static_cast<int>(use);
  }
  // Also what nobody waited for.
  EXPECT_EQ(hvd::allreduce(torch::ones({1}, Cuda()), {.name = "after", .op = Sum}).item<double>(),
            ranks);
}

CUDA_TEST(CudaStreams, NoMemoryIsGivenToOthersTooEarly, 1, 2) {
  for (const Use use :
       {Use::kOneStream, Use::kOtherStream, Use::kDropped, Use::kInPlaceWithGaps, Use::kGathered}) {
    Press(use);
  }
}

// The memory of a gathered result must not be what the caller's stream is still using.
CUDA_TEST(CudaStreams, ResultsAreNotWrittenWhereTheStreamIsStillReading, 1, 2) {
  const c10::Stream stream = NewStream();
  const c10::StreamGuard guard(stream);
  const int64_t rows = 1 << 20;
  torch::Tensor wrong = torch::zeros({1}, torch::TensorOptions(Cuda()).dtype(torch::kLong));
  for (int round = 0; round < 20; ++round) {
    const torch::Tensor x = torch::full({rows}, 1.0, Cuda());
    const hvd::Handle handle = hvd::allgather_async(x, {.name = "rows"});
    // Of the result's size, behind the submission: freed at once, and in use for a while.
    torch::Tensor sum;
    {
      const torch::Tensor old = torch::full({rows * hvd::size()}, 3.0, Cuda());
      Occupy(5);
      sum = old.sum(torch::kDouble);
    }
    const torch::Tensor result = hvd::synchronize(handle);
    wrong += sum.ne(3.0 * rows * hvd::size()).to(torch::kLong) + result.ne(1).sum();
  }
  EXPECT_EQ(wrong.item<int64_t>(), 0);
}

// Training -------------------------------------------------------------------------------------

torch::nn::Sequential MakeNet(torch::Device device = torch::kCPU) {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
  net->to(device);
  return net;
}

struct Trained {
  torch::Tensor weights;  // on the CPU
  double loss = 0;        // the last
};

struct Setting {
  std::string name;
  hvd::StrategyOptions options = {};
  double tolerance = 1e-4;
  bool adam = false;
};

Trained Train(const Setting& setting, torch::Device device) {
  torch::nn::Sequential net = MakeNet(device);
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  torch::optim::Adam adam(net->parameters(), 0.01);
  torch::optim::Optimizer& optimizer =
      setting.adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  const auto strategy = hvd::make_strategy(setting.name, net, optimizer, setting.options);
  const bool own = hvd::has_own_batches(setting.name);
  Trained trained;
  torch::Tensor loss;
  for (int step = 0; step < kSteps; ++step) {
    const Samples all = Batch(step, own ? hvd::size() : 1);
    const Samples samples = own ? Shard(all, hvd::rank()) : all;
    strategy->zero_grad();
    loss = torch::mse_loss(strategy->forward(samples.x.to(device)), samples.y.to(device));
    strategy->backward(loss);
    if (step % 5 == 4) strategy->clip_grad_norm(0.5);
    strategy->step();
  }
  strategy->finish();
  trained.weights = Flat(*net).cpu();
  trained.loss = loss.item<double>();
  return trained;
}

// What the library has no kernel for yet is told when the strategy is made.
bool IsThere(const Setting& setting) {
  std::string message;
  const rueda_status status = StatusOf(
      [&] {
        torch::nn::Sequential net = MakeNet(Cuda());
        torch::optim::SGD sgd(net->parameters(), 0.1);
        torch::optim::Adam adam(net->parameters(), 0.1);
        torch::optim::Optimizer& optimizer =
            setting.adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
        (void)hvd::make_strategy(setting.name, net, optimizer, setting.options);
      },
      &message);
  if (status == RUEDA_UNIMPLEMENTED) {
    std::printf("left out: %s\n", message.c_str());
    return false;
  }
  EXPECT_EQ(status, RUEDA_OK) << message;
  return status == RUEDA_OK;
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings = {
      {"ddp"},
      {"multi_worker"},
      {"ddp2"},
      {"sharded", {.zero_stage = 1, .bucket_bytes = 300}},
      {"sharded", {.zero_stage = 2, .bucket_bytes = 300}},
      {"sharded", {}, 1e-4, true},
      {"fsdp", {.bucket_bytes = 300}},
      {"fsdp", {}, 1e-4, true},
      {"adasum", {}, 1e-3},
      {"local_sgd", {.local_steps = 4}},
      {"diloco", {.local_steps = 4}},
      {"decentralized"},
      {"decentralized", {.peers = "shift_one"}},
      {"pipeline", {.micro_batches = 2}, 1e-4},
      // Quantisers make more of what rounding differs by.
      {"low_precision_decentralized", {}, 5e-2},
      {"bytegrad", {}, 5e-2},
      {"qadam", {.warmup_steps = 5}, 5e-2, true},
      {"ddp", {.compression = "bf16"}, 5e-2},
      {"ddp", {.compression = "int8"}, 5e-2},
      {"sharded", {.compression = "fp16"}, 5e-2},
  };
  if (hvd::size() == 1) {
    settings.push_back({"dp"});
    settings.push_back({"mirrored", {.replicas = 3}});
  }
  return settings;
}

CUDA_TEST(CudaStrategies, TrainAsOnTheCpu, 1, 2) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name + " " + setting.options.compression);
    if (!IsThere(setting)) continue;
    const Trained cpu = Train(setting, torch::kCPU), cuda = Train(setting, Cuda());
    EXPECT_LT(Distance(cuda.weights, cpu.weights), setting.tolerance);
    EXPECT_NEAR(cuda.loss, cpu.loss, 10 * setting.tolerance);
    EXPECT_TRUE(ReplicasEqual(cuda.weights));
  }
}

// Its averages come when they come.
CUDA_TEST(CudaStrategies, AsyncEndsEqual, 1, 2) {
  const Trained cuda = Train({"async"}, Cuda());
  EXPECT_TRUE(ReplicasEqual(cuda.weights));
  EXPECT_GT(Distance(cuda.weights, Flat(*MakeNet())), 1e-2) << "it has not moved";
}

CUDA_TEST(CudaStrategies, WhatIsNotThereIsRefusedByName, 1, 2) {
  torch::nn::Sequential net = MakeNet(Cuda());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(
      StatusOf([&] { (void)hvd::make_strategy("ddp", net, sgd, {.compression = "powersgd:2"}); },
               &message),
      RUEDA_UNIMPLEMENTED);
  EXPECT_TRUE(message.starts_with("strategy ddp: ")) << message;
  EXPECT_EQ(StatusOf(
                [&] {
                  const hvd::DistributedOptimizer optimizer(sgd, net->named_parameters(),
                                                            {.op = rueda::Adasum});
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("op = Adasum is for parameters on the CPU"), std::string::npos) << message;
}

// The forward pass on a stream of its own, the steps on another one.
CUDA_TEST(CudaStrategies, OnAnyStream, 2) {
  for (const char* name : {"ddp", "sharded", "fsdp", "pipeline"}) {
    const Trained expected = Train({name}, torch::kCPU);
    const c10::StreamGuard guard(NewStream());
    EXPECT_LT(Distance(Train({name}, Cuda()).weights, expected.weights), 1e-4) << name;
  }
}

CUDA_TEST(CudaStrategies, AStrategysFileIsTheSameForAllDevices, 1, 2) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("rueda-cuda-" + std::to_string(getppid()) + ".pt");
  for (const char* name : {"ddp", "sharded", "fsdp"}) {
    torch::Tensor saved;
    const auto with = [&](torch::Device device, auto fn) {
      torch::nn::Sequential net = MakeNet(device);
      torch::optim::Adam adam(net->parameters(), 0.01);
      const auto strategy = hvd::make_strategy(name, net, adam);
      const auto step = [&] {
        const Samples own = Shard(Batch(0, hvd::size()), hvd::rank());
        strategy->zero_grad();
        strategy->backward(torch::mse_loss(strategy->forward(own.x.to(device)), own.y.to(device)));
        strategy->step();
        strategy->finish();
        return Flat(*net).cpu();
      };
      fn(*strategy, step);
    };
    torch::Tensor next;
    with(Cuda(), [&](hvd::Strategy& strategy, auto step) {
      (void)step();
      strategy.save(path);
      next = step();
    });
    for (const torch::Device device : {torch::Device(torch::kCPU), Cuda()}) {
      with(device, [&](hvd::Strategy& strategy, auto step) {
        strategy.load(path);
        EXPECT_LT(Distance(step(), next), 1e-5) << name << " on " << device;
      });
    }
  }
  hvd::barrier();
  if (hvd::rank() == 0) std::filesystem::remove(path);
}

// A layer on the CPU and one on CUDA: two buckets, and two operations a step.
CUDA_TEST(CudaStrategies, DdpTrainsAModelThatIsInTwoPlaces, 1, 2) {
  struct Both : torch::nn::Module {
    Both() {
      torch::manual_seed(5);
      first = register_module("first", torch::nn::Linear(6, 16));
      second = register_module("second", torch::nn::Linear(16, 3));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return second(torch::tanh(first(x)).to(second->weight.device()));
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  const auto train = [](torch::Device device) {
    const auto net = std::make_shared<Both>();
    net->second->to(device);
    torch::optim::SGD sgd(net->parameters(), Momentum());
    const auto strategy = hvd::make_strategy("ddp", net, sgd);
    for (int step = 0; step < kSteps; ++step) {
      const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
      strategy->zero_grad();
      strategy->backward(torch::mse_loss(strategy->forward(own.x), own.y.to(device)));
      strategy->step();
    }
    net->to(torch::kCPU);
    return Flat(*net);
  };
  EXPECT_LT(Distance(train(Cuda()), train(torch::kCPU)), 1e-4);
  torch::optim::SGD none({torch::zeros({1}, torch::requires_grad())}, 0.1);
  const auto net = std::make_shared<Both>();
  net->second->to(Cuda());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy("ddp2", net, sgd); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("is for models on one device"), std::string::npos) << message;
}

// What a rank begins with comes from rank 0, wherever it is.
CUDA_TEST(CudaTraining, ParametersAndOptimizerStateAreBroadcast, 2) {
  torch::manual_seed(hvd::rank());
  Net net;
  net->to(Cuda());
  torch::optim::Adam adam(net->parameters(), hvd::rank() == 0 ? 0.01 : 0.5);
  if (hvd::rank() == 0) {
    net->forward(torch::randn({4, 6}, Cuda())).sum().backward();
    adam.step();
  }
  hvd::broadcast_parameters(*net, 0);
  hvd::broadcast_optimizer_state(adam, 0);
  EXPECT_TRUE(ReplicasEqual(Flat(*net).cpu()));
  EXPECT_EQ(adam.state().size(), net->parameters().size());
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), 0.01);
  hvd::check_replicas(*net);
}

CUDA_TEST(CudaTraining, UnusedParametersAndHeldPasses, 1, 2) {
  const auto train = [](torch::Device device) {
    torch::nn::Sequential net = MakeNet(device);
    torch::nn::Linear unused(3, 3);
    unused->to(device);
    std::vector<torch::Tensor> parameters = net->parameters();
    hvd::NamedTensors named;
    for (const torch::Tensor& parameter : unused->parameters()) parameters.push_back(parameter);
    for (const torch::Tensor& parameter : parameters) {
      named.emplace_back("p" + std::to_string(named.size()), parameter);
    }
    torch::optim::SGD sgd(parameters, 0.1);
    hvd::DistributedOptimizer optimizer(sgd, named);
    for (int step = 0; step < 6; ++step) {
      const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
      const auto loss = [&] {
        return torch::mse_loss(net->forward(own.x.to(device)), own.y.to(device));
      };
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      {
        const auto hold = optimizer.no_sync();
        loss().backward();
      }
      loss().backward();
      optimizer.step();
      EXPECT_EQ(optimizer.unused_parameters(), (std::vector<std::string>{"p4", "p5"}));
    }
    return Flat(*net).cpu();
  };
  EXPECT_LT(Distance(train(Cuda()), train(torch::kCPU)), 1e-5);
}

CUDA_TEST(CudaTraining, MixedPrecision, 1, 2) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const char* name : {"ddp", "sharded", "fsdp"}) {
      torch::nn::Sequential net = MakeNet(Cuda());
      torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
      const auto strategy = hvd::make_strategy(name, net, sgd);
      hvd::LossScaler scaler({.initial_scale = 1024});
      double first = 0, last = 0;
      for (int step = 0; step < kSteps; ++step) {
        const Samples own = Shard(Batch(step, hvd::size()), hvd::rank());
        strategy->zero_grad();
        torch::Tensor loss;
        {
          const hvd::Autocast autocast(type);
          const torch::Tensor output = strategy->forward(own.x.to(Cuda()));
          EXPECT_EQ(output.scalar_type(), type);
          loss = torch::mse_loss(output.to(torch::kFloat), own.y.to(Cuda()));
        }
        last = loss.item<double>();
        if (step == 0) first = last;
        // One rank's infinity is a skipped step of all.
        const bool bad = step == 7 && hvd::rank() == hvd::size() - 1;
        strategy->backward(scaler.scale(bad ? loss * INFINITY : loss));
        EXPECT_EQ(scaler.step(*strategy), step != 7) << name;
      }
      EXPECT_EQ(scaler.state().skipped_steps, 1) << name;
      EXPECT_LT(last, 0.8 * first) << name;
      strategy->finish();
      EXPECT_TRUE(ReplicasEqual(Flat(*net).cpu())) << name;
    }
  }
}

// Against one process's batch norm on all ranks' batches, on the CPU.
CUDA_TEST(CudaTraining, SyncBatchNorm, 1, 2) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    hvd::SyncBatchNorm norm(torch::nn::BatchNormOptions(5), "norm");
    torch::nn::BatchNorm2d reference(5);
    norm->to(Cuda(), type);
    reference->to(type);
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(step);
      // Rank 1 has nothing in one step.
      const auto rows = [&](int rank) { return rank == 1 && step == 1 ? 0 : 3 + 2 * rank; };
      int64_t begin = 0, all = 0;
      for (int rank = 0; rank < hvd::size(); ++rank) {
        if (rank == hvd::rank()) begin = all;
        all += rows(rank);
      }
      torch::Tensor x = (torch::randn({all, 5, 4, 3}) * 2 + 7).to(type).requires_grad_();
      torch::Tensor own =
          x.detach().narrow(0, begin, rows(hvd::rank())).to(Cuda()).requires_grad_();
      const torch::Tensor expected = reference(x), got = norm(own);
      expected.pow(3).sum().backward();
      got.pow(3).sum().backward();
      const auto mine = [&](const torch::Tensor& t) {
        return t.narrow(0, begin, rows(hvd::rank()));
      };
      const auto near = [&](const torch::Tensor& a, const torch::Tensor& b) {
        EXPECT_TRUE(torch::allclose(a.detach().cpu(), b.detach(), 1e-3, 1e-3)) << type;
      };
      near(got, mine(expected));
      near(own.grad(), mine(x.grad()));
      near(norm->running_mean, reference->running_mean);
      near(norm->running_var, reference->running_var);
    }
  }
}

CUDA_TEST(CudaTraining, TheTrainerPutsModelAndBatchesThere, 1, 2) {
  const auto train = [](const std::string& device) {
    torch::nn::Sequential net = MakeNet();
    torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
    const Samples samples = Batch(0, 8);
    trainer::TensorLoader loader({samples.x, samples.y}, {.batch_size = 8, .seed = 1});
    trainer::TensorLoader validation({samples.x, samples.y}, {.batch_size = 7, .train = false});
    const trainer::Trainer trainer(
        {.device = device, .precision = "32", .max_epochs = 3, .max_norm = 0.5, .seed = 1});
    const trainer::FitResult result =
        trainer.Fit({.model = net,
                     .optimizer = sgd,
                     .train = loader,
                     .validation = &validation,
                     .loss = [](const torch::Tensor& output, const torch::Tensor& target) {
                       EXPECT_EQ(output.device(), target.device());
                       return torch::mse_loss(output, target);
                     }});
    EXPECT_EQ(net->parameters()[0].is_cuda(), device == "cuda");
    torch::Tensor numbers =
        torch::tensor({result.metrics.at("loss"), result.metrics.at("val_loss")}, torch::kFloat);
    return torch::cat({Flat(*net).cpu(), numbers});
  };
  EXPECT_LT(Distance(train("cuda"), train("cpu")), 1e-4);
}

// examples/mnist, on as many ranks.
TEST(CudaTraining, TheExampleLearnsOnTwoRanks) {
  const std::string why = WhyNoCuda();
  if (!why.empty()) GTEST_SKIP() << "no CUDA device: " << why;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/mnist";
  for (const char* strategy : {"ddp", "sharded", "fsdp", "local_sgd", "pipeline"}) {
    const std::vector<Ended> ended =
        RunProgram(2, {program, "--device", "cuda", "--strategy", strategy, "--epochs", "10"},
                   {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}}, 200);
    ASSERT_EQ(ended[0].status, 0) << strategy << ended[0].out << ended[0].err;
    EXPECT_NE(ended[0].out.find("\"replicas_equal\": true"), std::string::npos) << ended[0].out;
    const size_t at = ended[0].out.find("\"test_accuracy\": ");
    ASSERT_NE(at, std::string::npos) << ended[0].out;
    EXPECT_GT(std::stod(ended[0].out.substr(at + 17)), 0.9) << strategy << ended[0].out;
  }
}

// Here and everywhere: with no device to be seen.
TEST(WithoutCuda, TheReasonIsOneLineAndTheCpuGoesOn) {
  const auto body = [] {
    std::string message;
    EXPECT_EQ(StatusOf([] { (void)hvd::local_device(torch::kCUDA); }, &message),
              RUEDA_FAILED_PRECONDITION);
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(hvd::local_device(torch::kCPU).is_cpu());
    EXPECT_EQ(StatusOf([] { (void)hvd::local_device(torch::kMeta); }, &message),
              RUEDA_UNIMPLEMENTED);
    EXPECT_TRUE(Same(hvd::allreduce(Six(hvd::rank()), {.name = "x", .op = Sum}), Six(0) * 2 + 1));
  };
  RunRanks(2, body, {{"CUDA_VISIBLE_DEVICES", ""}});
}

RANKS_TEST(WithoutCuda, AModelThatIsElsewhereIsRefusedByName, 1, 2) {
  struct Elsewhere : torch::nn::Module {
    Elsewhere() { register_parameter("weight", torch::empty({3}, torch::kMeta)); }
  };
  const auto net = std::make_shared<Elsewhere>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::string message;
  for (const std::string& name : hvd::strategy_names()) {
    EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy(name, net, sgd); }, &message),
              RUEDA_INVALID_ARGUMENT)
        << name;
    EXPECT_NE(message.find("'weight' is on meta; a model trains on the CPU or on CUDA"),
              std::string::npos)
        << message;
  }
}

}  // namespace
