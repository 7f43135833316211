// Strategies, and what a program or one of its ranks does wrong: it is said where it was done, and
// nobody is left waiting.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace hvd = rueda::libtorch;
namespace fs = std::filesystem;

namespace {

using namespace rueda::test;
using torch::Tensor;

Samples Own(int step = 0) {
  return Shard(Batch(step, hvd::size()), hvd::rank());
}

std::string Scratch(const std::string& name) {
  return (fs::temp_directory_path() /
          ("rueda-mistakes-" + std::string(std::getenv("RUEDA_JOB_ID")) + name))
      .string();
}

RANKS_TEST(Mistakes, OneRankFreezesAParameter, 2, 3) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored" || name == "pipeline") continue;
    torch::manual_seed(1);
    Net net;
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy =
        hvd::make_strategy(name, net, adam, {.name = name, .bucket_bytes = 1, .local_steps = 1});
    TrainStep(*strategy, Own());
    if (hvd::rank() == 1) net->hidden->weight.requires_grad_(false);  // the first of all
    std::string message;
    rueda_status status = StatusOf([&] { TrainStep(*strategy, Own(1)); }, &message);
    // What was trained until now is combined once more.
    const bool local = name == "adasum" || name == "local_sgd" || name == "diloco";
    if (local) status = StatusOf([&] { TrainStep(*strategy, Own(2)); }, &message);
    const bool all = name != "sharded" && name != "fsdp" && name != "decentralized" &&
                     name != "low_precision_decentralized" && name != "async";
    if (all || hvd::rank() == 1) {
      EXPECT_NE(status, RUEDA_OK) << name;
      EXPECT_NE(message.find("hidden.weight"), std::string::npos) << name << ": " << message;
    } else {
      EXPECT_EQ(status, RUEDA_OK) << name << ": " << message;
    }
    if (name == "async") strategy->finish();
    hvd::barrier();
  }
}

RANKS_TEST(Mistakes, OneRanksParametersAreNotTheModels, 2, 3) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored") continue;
    torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6),
                              torch::nn::Linear(6, 3));
    Net other;
    torch::optim::Adam adam(hvd::rank() == 1 ? other->parameters() : net->parameters(), 0.01);
    std::string message;
    const rueda_status status =
        StatusOf([&] { (void)hvd::make_strategy(name, net, adam); }, &message);
    EXPECT_EQ(status, RUEDA_INVALID_ARGUMENT) << name;
    EXPECT_NE(message.find("rank 1 has refused it"), std::string::npos) << message;
    EXPECT_NE(message.find("none of the model's"), std::string::npos) << message;
  }
}

RANKS_TEST(Mistakes, OptimizersThatEvaluateTheLossAreRefused, 1, 2) {
  for (const std::string& name : hvd::strategy_names()) {
    if (hvd::size() > 1 && (name == "dp" || name == "mirrored")) continue;
    torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::Linear(6, 3));
    torch::optim::LBFGS lbfgs(net->parameters());
    std::string message;
    EXPECT_EQ(StatusOf([&] { (void)hvd::make_strategy(name, net, lbfgs); }, &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("LBFGS"), std::string::npos) << name << ": " << message;
  }
}

// The strategy would go on with what was there before.
RANKS_TEST(Mistakes, ParametersGetOtherMemoryOrAnotherType, 2) {
  const auto other_memory = [](const Net& net) {
    net->out->bias.set_data(net->out->bias.detach().clone());
  };
  const auto loaded = [](const Net& net) {
    const std::string path = Scratch(std::to_string(hvd::rank()));
    torch::save(Net(), path);
    Net loading = net;
    torch::load(loading, path);
    fs::remove(path);
  };
  for (const std::string name : {"sharded", "fsdp"}) {
    for (const bool loads : {false, true}) {
      Net net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const auto strategy =
          hvd::make_strategy(name, net, sgd, {.name = name + std::to_string(loads)});
      loads ? loaded(net) : other_memory(net);
      std::string message;
      EXPECT_EQ(StatusOf([&] { TrainStep(*strategy, Own()); }, &message),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_NE(message.find(loads ? "hidden.weight" : "out.bias"), std::string::npos) << message;
    }
  }
  for (const std::string name : {"ddp", "ddp2", "qadam", "sharded", "fsdp", "adasum", "local_sgd",
                                 "diloco", "decentralized", "async"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::Adam adam(net->parameters(), 0.1);
    const auto strategy = hvd::make_strategy(
        name, net, name == "qadam" ? static_cast<torch::optim::Optimizer&>(adam) : sgd,
        {.name = name});
    net->to(torch::kDouble);
    const Samples own = Own();
    std::string message;
    EXPECT_EQ(StatusOf(
                  [&] {
                    TrainStep(*strategy, {own.x.to(torch::kDouble), own.y.to(torch::kDouble)});
                  },
                  &message),
              RUEDA_FAILED_PRECONDITION)
        << name;
    EXPECT_NE(message.find("make it again"), std::string::npos) << name << ": " << message;
  }
}

// A rank may look at the gradients, and not step, whichever strategy it is.
RANKS_TEST(Mistakes, AStepIsSkippedWhileGradientsAreOnTheirWay, 2) {
  for (const std::string& name : hvd::strategy_names()) {
    if (name == "dp" || name == "mirrored" || name == "pipeline") continue;
    torch::manual_seed(1);
    Net net;
    torch::optim::Adam adam(net->parameters(), 0.01);
    const auto strategy = hvd::make_strategy(name, net, adam, {.name = name, .bucket_bytes = 1});
    for (int step = 0; step < 20; ++step) {
      const Samples own = Own(step);
      strategy->backward(torch::mse_loss(strategy->forward(own.x), own.y));
      strategy->skip_step();
    }
    TrainStep(*strategy, Own());
    strategy->finish();
    EXPECT_TRUE(ReplicasEqual(Flat(*net))) << name;
  }
}

RANKS_TEST(Mistakes, ZeroGradIsRefusedAsLongAsNobodyHasWaitedForTheGradients, 2) {
  for (const std::string name : {"ddp", "sharded", "fsdp"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto strategy = hvd::make_strategy(name, net, sgd, {.name = name, .bucket_bytes = 1});
    for (int step = 0; step < 20; ++step) {
      strategy->backward(torch::mse_loss(strategy->forward(Own().x), Own().y));
      hvd::barrier();  // by now they may have arrived
      EXPECT_EQ(StatusOf([&] { strategy->zero_grad(); }), RUEDA_FAILED_PRECONDITION) << name;
      strategy->step();
      strategy->zero_grad();
    }
  }
}

RANKS_TEST(Mistakes, ClippingNeedsANorm, 2) {
  for (const std::string name : {"ddp", "sharded", "local_sgd"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto strategy = hvd::make_strategy(name, net, sgd, {.name = name});
    for (const double norm : {-1.0, std::nan("")}) {
      strategy->zero_grad();
      strategy->backward(torch::mse_loss(strategy->forward(Own().x), Own().y));
      EXPECT_EQ(StatusOf([&] { (void)strategy->clip_grad_norm(norm); }), RUEDA_INVALID_ARGUMENT);
      strategy->step();
    }
    EXPECT_TRUE(Flat(*net).isfinite().all().item<bool>()) << name;
  }
}

RANKS_TEST(Mistakes, RanksReadDifferentFiles, 2, 3) {
  for (const std::string name : {"ddp", "sharded", "fsdp", "local_sgd"}) {
    const std::string path = Scratch(name);
    std::vector<std::string> files;
    Net net;
    torch::optim::SGD sgd(net->parameters(), Momentum());
    const auto strategy = hvd::make_strategy(name, net, sgd, {.name = name});
    for (int step = 0; step < 2; ++step) {
      TrainStep(*strategy, Own(step));
      files.push_back(path + std::to_string(step));
      strategy->save(files.back());
    }
    strategy->load(files[0]);
    strategy->finish();
    const Tensor before = Flat(*net).clone();
    std::string message;
    EXPECT_EQ(StatusOf([&] { strategy->load(files[hvd::rank() == 1 ? 1 : 0]); }, &message),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("another file on rank 1 than on rank 0"), std::string::npos) << message;
    strategy->finish();
    EXPECT_TRUE(Flat(*net).equal(before)) << name;
    hvd::barrier();
    if (hvd::rank() == 0) {
      for (const std::string& file : files) fs::remove(file);
    }
  }
}

// torch's own reader looks at no checksums.
RANKS_TEST(Mistakes, AFilesNumbersAreDamaged, 2) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  TrainStep(*strategy, Own());
  const std::string path = Scratch("damaged");
  strategy->save(path);
  const Tensor first = net->hidden->weight.detach().contiguous();
  if (hvd::rank() == 0) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const size_t place =
        bytes.find(std::string(static_cast<const char*>(first.const_data_ptr()), first.nbytes()));
    ASSERT_NE(place, std::string::npos);
    bytes[place + 40] ^= 1;
    std::ofstream(path, std::ios::binary) << bytes;
  }
  hvd::barrier();
  std::string message;
  EXPECT_EQ(StatusOf([&] { strategy->load(path); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("is damaged"), std::string::npos) << message;
  hvd::barrier();
  fs::remove(path);
}

// By whichever way: each has forms of its own in which a gradient may come.
RANKS_TEST(Mistakes, SparseGradientsAreClippedToo, 1, 2) {
  for (const std::string name : {"ddp", "multi_worker", "bytegrad", "sharded", "fsdp", "ddp2",
                                 "local_sgd", "decentralized", "async"}) {
    torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(true)),
                              torch::nn::Flatten(), torch::nn::Linear(8, 3));
    torch::optim::SGD sgd(net->parameters(), 1.0);
    const auto strategy = hvd::make_strategy(name, net, sgd, {.name = name, .local_steps = 1});
    strategy->finish();
    const Tensor before = Flat(*net).clone();
    const Tensor ids = torch::arange(8).reshape({4, 2});
    strategy->zero_grad();
    strategy->backward(strategy->forward(ids).square().sum() * 100);
    EXPECT_GT(strategy->clip_grad_norm(0.01), 1) << name;
    strategy->step();
    strategy->finish();
    const double moved = (Flat(*net) - before).norm().item<double>();
    EXPECT_NEAR(moved, 0.01, 1e-4) << name;
  }
}

struct PartlyUsedImpl : torch::nn::Cloneable<PartlyUsedImpl> {
  PartlyUsedImpl() { reset(); }
  void reset() override {
    used = register_module("used", torch::nn::Linear(6, 3));
    unused = register_module("unused", torch::nn::Linear(6, 3));
  }
  Tensor forward(const Tensor& x) { return used(x); }
  torch::nn::Linear used{nullptr}, unused{nullptr};
};
TORCH_MODULE(PartlyUsed);

// As in one process, where it has no gradient: weight decay and momentum leave it alone.
RANKS_TEST(Mistakes, WhatNoRankHasUsedStaysAsItIs, 1, 2) {
  for (const std::string name : {"ddp", "multi_worker", "bytegrad", "ddp2", "qadam", "local_sgd"}) {
    PartlyUsed net;
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.1));
    const auto strategy = hvd::make_strategy(name, net, adam, {.name = name, .local_steps = 1});
    const Tensor before = net->unused->weight.detach().clone();
    const Tensor before_used = net->used->weight.detach().clone();
    for (int step = 0; step < 5; ++step) TrainStep(*strategy, Own(step));
    strategy->finish();
    EXPECT_EQ(Distance(net->unused->weight.detach(), before), 0) << name;
    EXPECT_GT(Distance(net->used->weight.detach(), before_used), 0) << name;
  }
}

// Names of the library's own operations are no parameter's.
RANKS_TEST(Mistakes, AParameterMayBeCalledNotes, 2) {
  struct NotesImpl : torch::nn::Module {
    NotesImpl() { notes = register_parameter("notes", torch::ones({64 << 10})); }
    Tensor forward(const Tensor& x) { return (x.sum() * notes).mean(); }
    Tensor notes;
  };
  const auto net = std::make_shared<NotesImpl>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto strategy = hvd::make_strategy("ddp", net, sgd);
  for (int step = 0; step < 3; ++step) {
    strategy->zero_grad();
    strategy->backward(strategy->forward(Own(step).x));
    strategy->step();
  }
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
}

// Initializing once more, by tensors that autograd knows nothing of.
RANKS_TEST(Fsdp, WhatIsWrittenThroughDataCounts, 2, 3) {
  for (const std::string name : {"ddp", "sharded", "fsdp"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.0);
    const auto strategy = hvd::make_strategy(name, net, sgd, {.name = name, .bucket_bytes = 1});
    for (const Tensor& parameter : net->parameters()) parameter.data().fill_(3);
    TrainStep(*strategy, Own());
    strategy->finish();
    EXPECT_TRUE(Flat(*net).eq(3).all().item<bool>()) << name;
  }
}

// One rank has evaluated once more, with gradients, and so given back what was whole.
RANKS_TEST(Fsdp, FinishesThoughOneRankHasGoneOn, 2, 3) {
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), Momentum());
  const auto strategy = hvd::make_strategy("fsdp", net, sgd, {.bucket_bytes = 1});
  Net reference = CopyOf(net);
  torch::optim::SGD reference_sgd(reference->parameters(), Momentum());
  const std::string path = Scratch("fsdp");
  for (int step = 0; step < 6; ++step) {
    TrainStep(*strategy, Batch(step, 1));
    reference_sgd.zero_grad();
    Loss(reference, Batch(step, 1)).backward();
    reference_sgd.step();
    strategy->finish();
    if (hvd::rank() == step % hvd::size()) (void)strategy->forward(Batch(9, 1).x);
    if (step % 2 == 0) {
      strategy->save(path);
    } else {
      strategy->finish();
      strategy->finish();
    }
    EXPECT_LT(Distance(Flat(*net), Flat(*reference)), 1e-5) << step;
  }
  hvd::barrier();
  fs::remove(path);
}

}  // namespace
