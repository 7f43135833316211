// Strategies' save and load.
#include <signal.h>
#include <sys/resource.h>
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

const char* Directory() {
  return std::getenv("CHECKPOINT_TEST_DIRECTORY");
}

// All batches on each rank, so that the result does not depend on how many there are.
void Train(hvd::Strategy& strategy, int from, int to) {
  for (int step = from; step < to; ++step) TrainStep(strategy, Batch(step, 4));
  strategy.finish();
}

struct Setting {
  const char* name;
  hvd::StrategyOptions options = {};
};

const std::vector<Setting>& Settings() {
  static const std::vector<Setting> settings = {{"ddp"},
                                                {"sharded", {.zero_stage = 1, .bucket_bytes = 256}},
                                                {"sharded"},
                                                {"fsdp", {.bucket_bytes = 256}}};
  return settings;
}

struct Trainee {
  explicit Trainee(const Setting& setting, int seed)
      : net((torch::manual_seed(seed), Net())),
        adam(net->parameters(), 0.01),
        strategy(hvd::make_strategy(setting.name, net, adam, setting.options)) {}
  Net net;
  torch::optim::Adam adam;
  std::unique_ptr<hvd::Strategy> strategy;
};

std::string FileOf(size_t setting) {
  return std::string(Directory()) + "/" + std::to_string(setting) + ".pt";
}

// Two ranks save, three load, each strategy the files of all.
TEST(Checkpoint, GoesFromAnyStrategyToAnyOnAnyNumberOfRanks) {
  std::string directory = "/tmp/rueda-checkpoint-XXXXXX";
  if (Directory() == nullptr) {
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
  }
  const Variables environment = {{"CHECKPOINT_TEST_DIRECTORY", directory}};
  RunRanks(
      2,
      [] {
        for (size_t i = 0; i < Settings().size(); ++i) {
          Trainee trainee(Settings()[i], 5);
          trainee.adam.param_groups()[0].options().set_lr(0.02);
          Train(*trainee.strategy, 0, 10);
          trainee.strategy->save(FileOf(i));
        }
      },
      environment);
  RunRanks(
      3,
      [] {
        Trainee alone(Settings()[0], 5);
        alone.adam.param_groups()[0].options().set_lr(0.02);
        Train(*alone.strategy, 0, 20);
        for (size_t i = 0; i < Settings().size(); ++i) {
          for (const Setting& setting : Settings()) {
            Trainee trainee(setting, 6);
            trainee.strategy->load(FileOf(i));
            Train(*trainee.strategy, 10, 20);
            EXPECT_LT(Distance(Flat(*trainee.net), Flat(*alone.net)), 1e-5)
                << FileOf(i) << " into " << setting.name;
          }
        }
      },
      environment);
  if (Directory() == nullptr) fs::remove_all(directory);
}

RANKS_TEST(Checkpoint, IsReadByPython, 2) {
  const std::string python = RUEDA_TORCH_PYTHON;
  if (python.empty()) GTEST_SKIP() << "this torch comes without a Python";
  const std::string path = "/tmp/rueda-python-" + std::string(std::getenv("RUEDA_JOB_ID")) + ".pt";
  Trainee trainee(Settings()[1], 5);
  Train(*trainee.strategy, 0, 3);
  trainee.strategy->save(path);
  if (hvd::rank() != 0) return;
  const auto weight = trainee.net->hidden->weight.detach();
  const std::string script =
      "import sys, torch; file = torch.load('" + path +
      "', weights_only=True);"
      "state = file['state']['hidden.weight'];"
      "assert list(file['model']['hidden.weight'].shape) == [16, 6];"
      "assert abs(file['model']['hidden.weight'].sum().item() - float(sys.argv[1])) < 1e-5;"
      "assert file['optimizer'] == 'Adam' and file['groups'][0]['lr'] == 0.01;"
      "assert state['step'] == 3 and state['exp_avg'].shape == (16, 6)";
  const auto ended =
      RunProgram(1, {python, "-c", script, std::to_string(weight.sum().item<float>())});
  EXPECT_EQ(ended[0].status, 0) << ended[0].err;
  fs::remove(path);
}

RANKS_TEST(Checkpoint, GoesOnWithTheOuterMomentum, 2) {
  const std::string path = "/tmp/rueda-diloco-" + std::string(std::getenv("RUEDA_JOB_ID")) + ".pt";
  const Setting setting = {"diloco", {.local_steps = 2}};
  Trainee first(setting, 5);
  Train(*first.strategy, 0, 4);
  first.strategy->save(path);
  Train(*first.strategy, 4, 8);
  Trainee second(setting, 6);
  second.strategy->load(path);
  Train(*second.strategy, 4, 8);
  EXPECT_LT(Distance(Flat(*first.net), Flat(*second.net)), 1e-6);
  if (hvd::rank() == 0) fs::remove(path);
}

RANKS_TEST(Checkpoint, WhatIsWrongWithAFileIsSaidOnAllRanksAndChangesNothing, 2) {
  const std::string path = "/tmp/rueda-bad-" + std::string(std::getenv("RUEDA_JOB_ID")) + ".pt";
  Trainee trainee(Settings()[0], 5);
  const torch::Tensor before = Flat(*trainee.net);
  std::string message;
  const auto load = [&] {
    hvd::barrier();
    const rueda_status status = StatusOf([&] { trainee.strategy->load(path); }, &message);
    EXPECT_TRUE(Flat(*trainee.net).equal(before));
    hvd::barrier();
    return status;
  };
  EXPECT_EQ(load(), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find(path + " can't be read: No such file"), std::string::npos) << message;
  trainee.strategy->save(path);
  EXPECT_EQ(load(), RUEDA_OK);
  if (hvd::rank() == 0) fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_EQ(load(), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("cut short"), std::string::npos) << message;
  if (hvd::rank() == 0) std::ofstream(path) << "no archive";
  EXPECT_EQ(load(), RUEDA_INVALID_ARGUMENT);
  {
    torch::nn::Linear other(2, 2);
    torch::optim::Adam adam(other->parameters(), 0.01);
    hvd::make_strategy("ddp", other, adam, {.name = "other"})->save(path);
  }
  EXPECT_EQ(load(), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("has no 'hidden.weight'"), std::string::npos) << message;
  {
    torch::optim::SGD sgd(trainee.net->parameters(), 0.01);
    hvd::make_strategy("local_sgd", trainee.net, sgd, {.name = "other"})->save(path);
  }
  EXPECT_EQ(load(), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("is of the optimizer SGD; this one is Adam"), std::string::npos)
      << message;
  EXPECT_EQ(StatusOf([&] { trainee.strategy->save("/nowhere/x.pt"); }, &message), RUEDA_INTERNAL);
  EXPECT_NE(message.find("/nowhere/x.pt.part: No such file"), std::string::npos) << message;
  if (hvd::rank() == 0) fs::remove(path);
}

// As on a disk that is full.
RANKS_TEST(Checkpoint, AFileThatCannotBeWrittenIsAnErrorOnAllRanks, 2) {
  const std::string path = "/tmp/rueda-full-" + std::string(std::getenv("RUEDA_JOB_ID")) + ".pt";
  Trainee trainee(Settings()[0], 5);
  Train(*trainee.strategy, 0, 1);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  const rueda_status status = StatusOf([&] { trainee.strategy->save(path); }, &message);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status, RUEDA_INTERNAL);
  EXPECT_NE(message.find(".part: File too large"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path + ".part"));
  hvd::barrier();  // the other has looked
  trainee.strategy->save(path);
  trainee.strategy->load(path);
  hvd::barrier();
  if (hvd::rank() == 0) fs::remove(path);
}

}  // namespace
