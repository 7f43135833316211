// examples/trainer: the loop, and what hooks into it.
#include "examples/trainer/trainer.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>

#include "examples/trainer/callbacks/csv_log.h"
#include "examples/trainer/callbacks/early_stopping.h"
#include "examples/trainer/callbacks/learning_rate_monitor.h"
#include "examples/trainer/callbacks/model_checkpoint.h"
#include "examples/trainer/callbacks/progress_bar.h"
#include "examples/trainer/callbacks/records.h"
#include "examples/trainer/callbacks/tensorboard.h"
#include "examples/trainer/checkpoint.h"
#include "examples/trainer/transfer.h"
#include "test/torch/ranks.h"
#include "test/torch/training.h"

namespace hvd = rueda::libtorch;
namespace fs = std::filesystem;

namespace {

using namespace rueda::test;
using trainer::Metrics;

constexpr int64_t kSamples = 60;

// A directory of this job's, gone with it.
class JobDirectory {
 public:
  JobDirectory()
      : path_(fs::temp_directory_path() /
              ("rueda-trainer-" + std::string(std::getenv("RUEDA_JOB_ID")))) {
    fs::create_directories(path_);
    hvd::barrier();
  }
  ~JobDirectory() {
    try {
      hvd::barrier();  // the others may be at it still
    } catch (const std::exception&) {
    }
    std::error_code error;
    fs::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  const fs::path path_;
};

std::string Text(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// With dropout, so that a wrong random state shows.
struct DropNetImpl : torch::nn::Cloneable<DropNetImpl> {
  explicit DropNetImpl(double drop_in = 0) : drop(drop_in) { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::dropout(torch::tanh(hidden(x)), drop, is_training()));
  }
  double drop;
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(DropNet);

trainer::Batch Data(int64_t samples = kSamples) {
  torch::manual_seed(99);
  const torch::Tensor x = torch::randn({samples, 6});
  return {x, x.narrow(1, 0, 3).sin()};
}

torch::Tensor Mse(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

// What a test changes of a training.
struct Plan {
  trainer::TrainerOptions options = {};
  std::vector<std::shared_ptr<trainer::Callback>> callbacks = {};
  double drop = 0;
  bool adam = false;
  std::function<double(int64_t)> learning_rate = {};
};

struct Outcome {
  trainer::FitResult result;
  torch::Tensor weights;
};

Outcome Fit(const Plan& plan) {
  const trainer::Trainer trainer(plan.options);
  torch::manual_seed(5);
  DropNet net(plan.drop);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (plan.adam) {
    optimizer = std::make_unique<torch::optim::Adam>(net->parameters(), 0.01);
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), Momentum(0.05));
  }
  trainer::TensorLoader train(Data(), {.batch_size = 5, .seed = plan.options.seed});
  trainer::TensorLoader validation(Data(7), {.batch_size = 2, .train = false});
  Outcome outcome;
  outcome.result = trainer.Fit({.model = net,
                                .optimizer = *optimizer,
                                .train = train,
                                .validation = &validation,
                                .loss = Mse,
                                .callbacks = plan.callbacks,
                                .learning_rate = plan.learning_rate});
  outcome.weights = Flat(*net);
  EXPECT_TRUE(ReplicasEqual(outcome.weights));
  return outcome;
}

// The same in one process without the trainer, with so many samples in a batch.
torch::Tensor Reference(int64_t epochs, double max_norm, int64_t samples) {
  torch::manual_seed(5);
  DropNet net;
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  const trainer::Batch data = Data();
  hvd::DistributedSampler sampler(kSamples, {.seed = 0}, hvd::Part(0, 1));
  const auto batch = static_cast<size_t>(samples);
  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    sampler.set_epoch(static_cast<size_t>(epoch));
    sampler.reset();
    while (const auto indices = sampler.next(batch)) {
      if (indices->size() < batch) break;
      const torch::Tensor pick =
          torch::tensor(std::vector<int64_t>(indices->begin(), indices->end()));
      sgd.zero_grad();
      Mse(net(data.input.index_select(0, pick)), data.target.index_select(0, pick)).backward();
      if (max_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
      sgd.step();
    }
  }
  return Flat(*net);
}

RANKS_TEST(Trainer, TrainsLikeOneProcessOnAllBatches, 1, 2, 3) {
  for (const double max_norm : {0.0, 0.1}) {
    const torch::Tensor reference = Reference(4, max_norm, 5 * hvd::size());
    for (const char* strategy : {"ddp", "sharded", "fsdp"}) {
      for (const auto& [precision, error] :
           {std::pair("32", 1e-5), std::pair("16", 5e-3), std::pair("bf16", 5e-2)}) {
        Plan plan;
        plan.options.strategy = strategy;
        plan.options.precision = precision;
        plan.options.max_epochs = 4;
        plan.options.max_norm = max_norm;
        const Outcome outcome = Fit(plan);
        const double distance = Distance(outcome.weights, reference);
        EXPECT_LT(distance, error) << strategy << " " << precision;
        EXPECT_EQ(distance > 1e-5, precision != std::string("32")) << distance;
        EXPECT_EQ(outcome.result.epochs, 4);
        EXPECT_EQ(outcome.result.steps, 4 * (kSamples / (5 * hvd::size())));
        EXPECT_EQ(outcome.result.metrics.contains("loss_scale"), precision == std::string("16"));
      }
    }
  }
}

// Its stages take turns with one batch: if each rank had its own, the last one's targets would be
// those of other samples than the first one's inputs.
RANKS_TEST(Trainer, GivesThePipelinesStagesTheSameBatches, 1, 2, 3) {
  const trainer::Trainer trainer({.strategy = "pipeline", .max_epochs = 4});
  torch::manual_seed(5);
  torch::nn::Sequential net;  // of the same first weights: one layer after the other
  net->push_back(torch::nn::Linear(6, 16));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(16, 3));
  torch::optim::SGD sgd(net->parameters(), Momentum(0.05));
  trainer::TensorLoader train(Data(), {.batch_size = 5});
  trainer::TensorLoader validation(Data(7), {.batch_size = 2, .train = false});
  const trainer::FitResult result = trainer.Fit(
      {.model = net, .optimizer = sgd, .train = train, .validation = &validation, .loss = Mse});
  EXPECT_EQ(result.steps, 4 * kSamples / 5);
  EXPECT_LT(Distance(Flat(*net), Reference(4, 0, 5)), 1e-5);
  EXPECT_TRUE(ReplicasEqual(Flat(*net)));
}

Plan LongPlan(const std::string& strategy, const std::string& precision, const std::string& files) {
  Plan plan;
  plan.options.strategy = strategy;
  plan.options.precision = precision;
  plan.options.loss_scaler = {.initial_scale = 1 << 20, .growth_interval = 3};
  plan.options.max_epochs = 6;
  plan.options.seed = 3;
  plan.callbacks = {std::make_shared<trainer::LearningRateMonitor>(),
                    std::make_shared<trainer::CsvLog>(files + ".csv"),
                    std::make_shared<trainer::EarlyStopping>(
                        trainer::EarlyStoppingOptions{.patience = 4, .min_delta = 0.05}),
                    std::make_shared<trainer::ModelCheckpoint>(
                        trainer::ModelCheckpointOptions{.directory = files, .best = 9})};
  // Replicas draw random numbers from one generator, in any order.
  const bool has_replicas = strategy == "dp" || strategy == "ddp2" || strategy == "mirrored";
  plan.drop = has_replicas ? 0 : 0.3;
  plan.adam = true;
  plan.learning_rate = [](int64_t step) { return std::min(1.0, 0.1 * static_cast<double>(step)); };
  return plan;
}

RANKS_TEST(Trainer, GoesOnFromACheckpointAsIfNothingHadHappened, 1, 2, 3) {
  const JobDirectory directory;
  std::vector<std::string> strategies = {"ddp", "sharded", "fsdp", "multi_worker", "ddp2"};
  if (hvd::size() == 1) strategies.insert(strategies.end(), {"dp", "mirrored"});
  for (const std::string& strategy : strategies) {
    for (const std::string precision : {"32", "16"}) {
      if (precision == "16" && (strategy == "mirrored" || strategy == "multi_worker")) continue;
      const std::string whole = directory / (strategy + precision);
      const std::string parts = directory / (strategy + precision + " in parts");
      const Outcome uninterrupted = Fit(LongPlan(strategy, precision, whole));
      Plan first = LongPlan(strategy, precision, parts);
      first.options.max_epochs = 4;
      Fit(first);
      // Interrupted after the fourth epoch's line, before its checkpoint.
      hvd::barrier();
      if (hvd::rank() == 0) trainer::RemoveCheckpoint(trainer::CheckpointPath(parts, 4));
      hvd::barrier();
      Plan second = LongPlan(strategy, precision, parts);
      second.options.resume = parts;
      EXPECT_EQ(trainer::NewestCheckpoint(parts), trainer::CheckpointPath(parts, 3));
      const Outcome resumed = Fit(second);
      EXPECT_TRUE(resumed.weights.equal(uninterrupted.weights)) << strategy << " " << precision;
      EXPECT_EQ(resumed.result.metrics, uninterrupted.result.metrics);
      EXPECT_EQ(resumed.result.steps, uninterrupted.result.steps);
      hvd::barrier();
      EXPECT_EQ(Text(parts + ".csv"), Text(whole + ".csv"));
      EXPECT_EQ(trainer::NewestCheckpoint(parts), trainer::CheckpointPath(parts, 6));
      // That it can fail: without the checkpoint the same epochs give other weights.
      Plan shorter = LongPlan(strategy, precision, whole + " shorter");
      shorter.options.max_epochs = 3;
      EXPECT_FALSE(Fit(shorter).weights.equal(uninterrupted.weights));
    }
  }
}

// Even if it was on one rank alone that somebody wanted that.
RANKS_TEST(Trainer, AllRanksStopAfterTheSameEpoch, 2, 3) {
  struct Impatient : trainer::Callback {
    std::string name() const override { return "impatient"; }
    void OnEpoch(trainer::Training& training) override {
      if (training.rank == 1 && training.epoch == 2) training.Stop();
    }
  };
  Plan plan;
  plan.callbacks = {std::make_shared<Impatient>()};
  const trainer::FitResult result = Fit(plan).result;
  EXPECT_EQ(result.epochs, 2);
  EXPECT_TRUE(result.stopped);
}

// Says what the metric is.
struct Script : trainer::Callback {
  explicit Script(std::vector<double> values_in) : values(std::move(values_in)) {}
  std::string name() const override { return "script"; }
  void OnMetrics(trainer::Training& training) override {
    training.metrics["score"] = values.at(static_cast<size_t>(training.epoch - 1));
  }
  const std::vector<double> values;
};

int64_t EpochsUntilItStops(const std::vector<double>& values,
                           const trainer::EarlyStoppingOptions& options) {
  Plan plan;
  plan.options.max_epochs = static_cast<int64_t>(values.size());
  plan.callbacks = {std::make_shared<Script>(values),
                    std::make_shared<trainer::EarlyStopping>(options)};
  return Fit(plan).result.epochs;
}

RANKS_TEST(Trainer, StopsWhenItGetsNoBetter, 1, 2) {
  using trainer::Mode;
  EXPECT_EQ(EpochsUntilItStops({3, 2, 2, 1, 1, 1, 1}, {.monitor = "score", .patience = 2}), 6);
  EXPECT_EQ(EpochsUntilItStops({3, 2, 1, 0}, {.monitor = "score", .patience = 1}), 4);
  EXPECT_EQ(EpochsUntilItStops({3, 2.9, 2.8, 2.7, 2.6},
                               {.monitor = "score", .patience = 2, .min_delta = 0.15}),
            5)
      << "2.8 is better than 3 by enough";
  EXPECT_EQ(EpochsUntilItStops({3, 2.9, 2.8, 2.7, 2.6},
                               {.monitor = "score", .patience = 2, .min_delta = 0.5}),
            3);
  EXPECT_EQ(
      EpochsUntilItStops({1, 2, 3, 2, 1}, {.monitor = "score", .patience = 1, .mode = Mode::kMax}),
      4);
  EXPECT_EQ(EpochsUntilItStops({NAN, NAN, 1, 1}, {.monitor = "score", .patience = 2}), 2);
  std::string message;
  EXPECT_EQ(StatusOf([] { EpochsUntilItStops({1}, {.monitor = "scor"}); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("no metric 'scor'; there are loss, score, val_loss"), std::string::npos)
      << message;
}

// fsdp: its parameters can be read all the same.
RANKS_TEST(Trainer, WhatHasEndedEarlyDoesNotGoOn, 2) {
  const JobDirectory directory;
  std::string strategy;
  const auto fit = [&](const std::string& resume) {
    Plan plan;
    plan.options.strategy = strategy;
    plan.options.resume = resume;
    plan.callbacks = {std::make_shared<Script>(std::vector<double>(10, 1.0)),
                      std::make_shared<trainer::EarlyStopping>(
                          trainer::EarlyStoppingOptions{.monitor = "score", .patience = 2}),
                      std::make_shared<trainer::ModelCheckpoint>(
                          trainer::ModelCheckpointOptions{.directory = directory / strategy})};
    return Fit(plan);
  };
  for (const char* each : {"ddp", "fsdp"}) {
    strategy = each;
    const Outcome first = fit("");
    EXPECT_EQ(first.result.epochs, 3);
    const Outcome second = fit(directory / strategy);
    EXPECT_EQ(second.result.epochs, 3);
    EXPECT_TRUE(second.result.stopped);
    EXPECT_TRUE(second.weights.equal(first.weights));
  }
}

std::set<std::string> FilesIn(const std::string& path) {
  hvd::barrier();  // rank 0 is done
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
  hvd::barrier();
  return names;
}

RANKS_TEST(Trainer, KeepsTheBestEpochsAndTheNewest, 2) {
  const JobDirectory directory;
  const std::string path = directory / "best";
  const auto checkpoint = std::make_shared<trainer::ModelCheckpoint>(
      trainer::ModelCheckpointOptions{.directory = path, .monitor = "score", .best = 2});
  Plan plan;
  plan.options.max_epochs = 6;
  plan.callbacks = {std::make_shared<Script>(std::vector<double>{5, 1, NAN, 3, 1, 9}), checkpoint};
  Fit(plan);
  EXPECT_EQ(FilesIn(path), (std::set<std::string>{"epoch-2.pt", "epoch-2.json", "epoch-5.pt",
                                                  "epoch-5.json", "epoch-6.pt", "epoch-6.json"}));
  EXPECT_EQ(checkpoint->best_path(), trainer::CheckpointPath(path, 2));
}

RANKS_TEST(Trainer, ADirectoryHasOneTrainingsCheckpoints, 2) {
  const JobDirectory directory;
  const auto fit = [](const std::string& path, const std::string& resume, int64_t epochs,
                      std::string* best = nullptr) {
    const auto checkpoint = std::make_shared<trainer::ModelCheckpoint>(
        trainer::ModelCheckpointOptions{.directory = path, .monitor = "score", .best = 9});
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.options.resume = resume;
    plan.callbacks = {std::make_shared<Script>(std::vector<double>{1, 2, 3, 4, 5, 6}), checkpoint};
    Fit(plan);
    if (best != nullptr) *best = checkpoint->best_path();
  };
  const std::string path = directory / "one", other = directory / "other";
  fit(path, "", 5);
  // Those of a training that begins anew would be taken for the newest, or overwritten.
  std::string message;
  EXPECT_EQ(StatusOf([&] { fit(path, "", 2); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("has another training's checkpoints, up to epoch 5: resume"),
            std::string::npos)
      << message;
  EXPECT_EQ(FilesIn(path).size(), 10u);
  // From an earlier one on it is another training that comes after.
  fit(path, trainer::CheckpointPath(path, 2), 3);
  EXPECT_EQ(FilesIn(path), (std::set<std::string>{"epoch-1.pt", "epoch-1.json", "epoch-2.pt",
                                                  "epoch-2.json", "epoch-3.pt", "epoch-3.json"}));
  // And elsewhere what is kept is what is there.
  std::string best;
  fit(other, path, 4, &best);
  EXPECT_EQ(FilesIn(other), (std::set<std::string>{"epoch-4.pt", "epoch-4.json"}));
  EXPECT_EQ(best, trainer::CheckpointPath(other, 4));
}

// One that is refused "so that nothing is overwritten", by the last callback.
// Before anything has begun: a rank that just ended would be a lost one to the others.
RANKS_TEST(Trainer, WhatRefusesToRunHasLeftTheJob, 1, 2) {
  trainer::TrainerOptions options;
  options.devices = hvd::size() + 1;
  std::string message;
  EXPECT_EQ(StatusOf([&] { (void)trainer::Trainer(options).Run([] { return 0; }); }, &message),
            RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("and the job has"), std::string::npos) << message;
  EXPECT_FALSE(hvd::is_initialized());
}

RANKS_TEST(Trainer, ARefusedStartChangesNothing, 1, 2) {
  const JobDirectory directory;
  const auto fit = [&](int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.callbacks = {std::make_shared<trainer::CsvLog>(directory / "log.csv"),
                      std::make_shared<trainer::TensorBoard>(directory / "events"),
                      std::make_shared<trainer::ModelCheckpoint>(
                          trainer::ModelCheckpointOptions{.directory = directory / "files"})};
    Fit(plan);
  };
  fit(2);
  hvd::barrier();
  const std::string log = Text(directory / "log.csv");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;
  EXPECT_EQ(StatusOf([&] { fit(3); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(Text(directory / "log.csv"), log);
  EXPECT_EQ(FilesIn(directory / "events").size(), 1u);
  if (hvd::rank() == 0) fs::remove_all(directory / "files");
  hvd::barrier();
  fit(1);  // and one that is not refused writes
  hvd::barrier();
  EXPECT_NE(Text(directory / "log.csv"), log);
  EXPECT_EQ(FilesIn(directory / "events").size(), 2u);
}

// As on hosts that share no directory: the path is the same, and what is there may differ.
RANKS_TEST(Trainer, AllRanksResumeFromOneCheckpoint, 2, 3) {
  const JobDirectory directory;
  const std::string own = directory / std::to_string(hvd::rank());
  const auto fit = [](const std::string& files, const std::string& resume, uint64_t seed,
                      int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.options.resume = resume;
    plan.options.seed = seed;
    if (!files.empty()) {
      plan.callbacks = {std::make_shared<trainer::ModelCheckpoint>(
          trainer::ModelCheckpointOptions{.directory = files, .best = 9})};
    }
    return Fit(plan);
  };
  const Outcome whole = fit(directory / "all", "", 1, 4);
  fit(directory / "other", "", 2, 3);
  hvd::barrier();
  fs::create_directories(own);
  fs::copy(directory / "all", own + "/files");
  const fs::path before = fs::current_path();
  fs::current_path(own);
  // Rank 0's newest one is older than the others'.
  for (const int64_t epoch : {3, 4}) {
    if (hvd::rank() == 0) trainer::RemoveCheckpoint(trainer::CheckpointPath("files", epoch));
  }
  const Outcome resumed = fit("", "files", 1, 4);
  EXPECT_TRUE(resumed.weights.equal(whole.weights));
  EXPECT_EQ(resumed.result.steps, whole.result.steps);
  // Another rank has it not.
  std::string message;
  if (hvd::rank() == 1) fs::remove("files/epoch-2.pt");
  EXPECT_EQ(StatusOf([&] { fit("", "files", 1, 4); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("files/epoch-2.pt can't be read: No such file or directory (rank 1)"),
            std::string::npos)
      << message;
  // Or another training's, in one of the two files.
  for (const std::string name : {"epoch-2.pt", "epoch-2.json"}) {
    fs::copy_file((directory / "all/") + "epoch-2.pt", "files/epoch-2.pt",
                  fs::copy_options::overwrite_existing);
    if (hvd::rank() == 1) {
      fs::copy_file((directory / "other/") + name, "files/" + name,
                    fs::copy_options::overwrite_existing);
    }
    EXPECT_EQ(StatusOf([&] { fit("", "files", 1, 4); }, &message), RUEDA_INVALID_ARGUMENT);
    EXPECT_TRUE(std::regex_search(
        message, std::regex("the ranks differ: rank 0 has files/epoch-2.pt of epoch 2 and step "
                            "[0-9]+ with the digests .*; rank 1 has ")))
        << message;
  }
  // Or another epoch under the name.
  if (hvd::rank() == 1) {
    for (const std::string kind : {".pt", ".json"}) {
      fs::copy_file("files/epoch-3" + kind, "files/epoch-2" + kind,
                    fs::copy_options::overwrite_existing);
    }
  }
  EXPECT_EQ(StatusOf([&] { fit("", "files", 1, 4); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 1 has files/epoch-2.pt of epoch 3"), std::string::npos) << message;
  fs::current_path(before);
}

RANKS_TEST(Trainer, GoingOnRemovesNoOtherTrainingsCheckpoints, 2) {
  const JobDirectory directory;
  const auto fit = [&](const std::string& files, const std::string& resume, int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.options.resume = resume;
    plan.callbacks = {std::make_shared<trainer::ModelCheckpoint>(
        trainer::ModelCheckpointOptions{.directory = files, .best = 9})};
    Fit(plan);
  };
  const std::string one = directory / "one", other = directory / "other";
  fit(one, "", 2);
  fit(other, "", 4);
  for (const std::string& resume : {one, trainer::CheckpointPath(one, 1)}) {
    std::string message;
    EXPECT_EQ(StatusOf([&] { fit(other, resume, 3); }, &message), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("other has another training's checkpoints, up to epoch 4"),
              std::string::npos)
        << message;
    EXPECT_EQ(FilesIn(other).size(), 8u);
  }
  // A copy of its own earlier checkpoint is no other training's.
  if (hvd::rank() == 0) {
    fs::create_directory(directory / "copy");
    for (const std::string name : {"epoch-3.pt", "epoch-3.json"}) {
      fs::copy_file((directory / "other/") + name, (directory / "copy/") + name);
    }
  }
  hvd::barrier();
  fit(other, directory / "copy", 5);
  EXPECT_EQ(FilesIn(other).size(), 10u);
}

RANKS_TEST(Trainer, TwoCheckpointsKnowOfEachOthersNewest, 2) {
  const JobDirectory directory;
  const auto fit = [&](const std::string& resume, int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.options.resume = resume;
    plan.callbacks = {std::make_shared<Script>(std::vector<double>{2, 1, 3, 4}),
                      std::make_shared<trainer::ModelCheckpoint>(trainer::ModelCheckpointOptions{
                          .directory = directory / "a", .monitor = "loss"}),
                      std::make_shared<trainer::ModelCheckpoint>(trainer::ModelCheckpointOptions{
                          .directory = directory / "b", .monitor = "score"})};
    Fit(plan);
  };
  fit("", 2);
  fit(directory / "a", 4);
  EXPECT_EQ(FilesIn(directory / "b"),
            (std::set<std::string>{"epoch-2.pt", "epoch-2.json", "epoch-4.pt", "epoch-4.json"}));
}

// A training that is killed after it has written one has not removed the one before.
RANKS_TEST(Trainer, GoingOnRemovesWhatAnInterruptedTrainingHasLeft, 2) {
  const JobDirectory directory;
  const std::string files = directory / "files";
  const auto fit = [&](const std::string& resume, int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    plan.options.resume = resume;
    plan.callbacks = {std::make_shared<Script>(std::vector<double>{4, 3, 2, 1}),
                      std::make_shared<trainer::ModelCheckpoint>(
                          trainer::ModelCheckpointOptions{.directory = files, .monitor = "score"})};
    Fit(plan);
  };
  fit("", 2);
  if (hvd::rank() == 0) fs::copy(files, directory / "before");
  fit(files, 3);
  if (hvd::rank() == 0) fs::copy(directory / "before", files);
  hvd::barrier();
  EXPECT_EQ(FilesIn(files).size(), 4u);
  fit(files, 4);
  EXPECT_EQ(FilesIn(files), (std::set<std::string>{"epoch-4.pt", "epoch-4.json"}));
}

RANKS_TEST(Trainer, ALogIsWrittenIntoPipesAndThroughLinks, 1) {
  const JobDirectory directory;
  const auto fit = [](const std::string& log, const std::string& files, bool resume) {
    Plan plan;
    plan.options.max_epochs = resume ? 2 : 1;
    if (resume) plan.options.resume = files;
    plan.callbacks = {std::make_shared<trainer::CsvLog>(log),
                      std::make_shared<trainer::ModelCheckpoint>(
                          trainer::ModelCheckpointOptions{.directory = files})};
    Fit(plan);
  };
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  for (const bool resume : {false, true}) {
    fit(pipe, directory / "piped", resume);
    EXPECT_TRUE(fs::is_fifo(pipe));
    std::string text(4096, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(read(reader, text.data(), text.size()), 0)));
    EXPECT_TRUE(text.starts_with("epoch,step,loss,val_loss\n" + std::to_string(resume ? 2 : 1)))
        << text;
  }
  close(reader);
  // An open file, as /dev/stdout is one, between what others write there.
  const int fd = open((directory / "open").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(write(fd, "before\n", 7), 7);
  const std::string name = directory / "name";
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd), name);
  fit(name, directory / "opened", false);
  ASSERT_EQ(write(fd, "after\n", 6), 6);
  close(fd);
  const std::string opened = Text(directory / "open");
  EXPECT_TRUE(opened.starts_with("before\nepoch,step,loss,val_loss\n1,")) << opened;
  EXPECT_TRUE(opened.ends_with("\nafter\n")) << opened;
  // To a file that is not there yet, by way of another link.
  const std::string link = directory / "link";
  fs::create_directory(directory / "folder");
  fs::create_symlink("folder/second", link);
  fs::create_symlink("log.csv", directory / "folder/second");
  for (const bool resume : {false, true}) {
    fit(link, directory / "linked", resume);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_TRUE(fs::is_symlink(directory / "folder/second"));
    const std::string text = Text(directory / "folder/log.csv");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), resume ? 3 : 2) << text;
  }
}

RANKS_TEST(Trainer, ALogGetsColumnsLater, 2) {
  const JobDirectory directory;
  const auto fit = [&](bool rates, int64_t epochs) {
    Plan plan;
    plan.options.max_epochs = epochs;
    if (epochs > 2) plan.options.resume = directory / "files";
    if (rates) plan.callbacks = {std::make_shared<trainer::LearningRateMonitor>()};
    plan.callbacks.push_back(std::make_shared<trainer::CsvLog>(directory / "log.csv"));
    plan.callbacks.push_back(std::make_shared<trainer::ModelCheckpoint>(
        trainer::ModelCheckpointOptions{.directory = directory / "files"}));
    Fit(plan);
    hvd::barrier();
    return Text(directory / "log.csv");
  };
  const std::string number = "[-+.e0-9]+", two = "\\d+," + number + "," + number;
  EXPECT_TRUE(std::regex_match(
      fit(false, 2), std::regex("epoch,step,loss,val_loss\n1," + two + "\n2," + two + "\n")));
  const std::string text = fit(true, 4);
  const std::string after = "epoch,step,loss,val_loss,lr\n1," + two + ",\n2," + two + ",\n3," +
                            two + "," + number + "\n4," + two + "," + number + "\n";
  EXPECT_TRUE(std::regex_match(text, std::regex(after))) << text;
  const std::string last = fit(false, 5);
  EXPECT_TRUE(std::regex_match(last, std::regex(after + "5," + two + ",\n"))) << last;
}

// As somebody writes them: in any of the functions, on one rank. The one behind it is collective.
RANKS_TEST(Trainer, WhatACallbackThrowsAllRanksThrow, 2, 3) {
  struct Unlucky : trainer::Callback {
    explicit Unlucky(std::string where_in) : where(std::move(where_in)) {}
    std::string name() const override { return "unlucky"; }
    void Throw(const std::string& here, const trainer::Training& training) const {
      if (here == where && training.rank == 1) throw std::runtime_error("no luck in " + here);
    }
    void OnCheck(trainer::Training& training) override { Throw("OnCheck", training); }
    void OnBegin(trainer::Training& training) override { Throw("OnBegin", training); }
    void OnMetrics(trainer::Training& training) override { Throw("OnMetrics", training); }
    void OnEpoch(trainer::Training& training) override { Throw("OnEpoch", training); }
    void OnCheckpoint(trainer::Training& training) override { Throw("OnCheckpoint", training); }
    void OnEnd(trainer::Training& training) override { Throw("OnEnd", training); }
    const std::string where;
  };
  struct Collective : trainer::Callback {
    std::string name() const override { return "collective"; }
    void OnCheck(trainer::Training&) override { hvd::barrier(); }
    void OnBegin(trainer::Training&) override { hvd::barrier(); }
    void OnMetrics(trainer::Training&) override { hvd::barrier(); }
    void OnEpoch(trainer::Training&) override { hvd::barrier(); }
    void OnCheckpoint(trainer::Training&) override { hvd::barrier(); }
    void OnEnd(trainer::Training&) override { hvd::barrier(); }
  };
  for (const std::string where :
       {"OnCheck", "OnBegin", "OnMetrics", "OnEpoch", "OnCheckpoint", "OnEnd"}) {
    Plan plan;
    plan.options.max_epochs = 1;
    plan.callbacks = {std::make_shared<Unlucky>(where), std::make_shared<Collective>()};
    std::string message;
    EXPECT_EQ(StatusOf([&] { Fit(plan); }, &message), RUEDA_INVALID_ARGUMENT) << where;
    EXPECT_EQ(message, "no luck in " + where + " (rank 1)");
  }
}

// Counts the steps.
struct Steps : trainer::Callback {
  std::string name() const override { return "steps"; }
  void OnStep(trainer::Training&) override { ++count; }
  int count = 0;
};

RANKS_TEST(Trainer, WhatValidationLacksIsSaidBeforeTheFirstStep, 1, 2) {
  DropNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  trainer::TensorLoader train(Data(), {.batch_size = 5});
  const auto steps = std::make_shared<Steps>();
  std::string message;
  const auto fit = [&](trainer::Loader* validation,
                       const std::shared_ptr<trainer::Callback>& callback) {
    trainer::TrainerOptions options;
    options.max_epochs = 1;
    return StatusOf(
        [&] {
          trainer::Trainer(options).Fit({.model = net,
                                         .optimizer = sgd,
                                         .train = train,
                                         .validation = validation,
                                         .loss = Mse,
                                         .callbacks = {steps, callback}});
        },
        &message);
  };
  trainer::TensorLoader none(Data(0), {.batch_size = 2, .train = false});
  EXPECT_EQ(fit(&none, std::make_shared<trainer::EarlyStopping>()), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("the validation loader has no batch on any rank"), std::string::npos)
      << message;
  const JobDirectory directory;
  const std::vector<std::shared_ptr<trainer::Callback>> callbacks = {
      std::make_shared<trainer::EarlyStopping>(),
      std::make_shared<trainer::ModelCheckpoint>(
          trainer::ModelCheckpointOptions{.directory = directory / "files"})};
  for (const auto& callback : callbacks) {
    EXPECT_EQ(fit(nullptr, callback), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("there isn't going to be a metric 'val_loss'"), std::string::npos)
        << message;
  }
  EXPECT_FALSE(fs::exists(directory / "files"));
  EXPECT_EQ(steps->count, 0);
  trainer::TensorLoader one(Data(1), {.batch_size = 2, .train = false});  // some rank's
  EXPECT_EQ(fit(&one, std::make_shared<trainer::EarlyStopping>()), RUEDA_OK) << message;
  EXPECT_GT(steps->count, 0);
}

struct TwoPartsImpl : torch::nn::Cloneable<TwoPartsImpl> {
  TwoPartsImpl() { reset(); }
  void reset() override {
    body = register_module("body",
                           torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6),
                                                 torch::nn::Dropout(0.5)));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    head = register_module("head", torch::nn::Linear(6, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(body->forward(x))); }
  torch::nn::Sequential body{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(TwoParts);

// A part that was put in eval() stays in it, whatever the others are in; also after an error.
RANKS_TEST(Trainer, ModulesKeepTheirModes, 1, 2) {
  for (const std::string strategy : {"ddp", "fsdp", "ddp2"}) {
    torch::manual_seed(5);
    TwoParts net;
    torch::nn::Sequential body = net->body;
    trainer::Freeze(*body);
    body->eval();
    body->children()[2]->train();  // one of its parts is not as it is
    std::vector<bool> modes;
    for (const auto& module : net->modules()) modes.push_back(module->is_training());
    EXPECT_EQ(modes, (std::vector<bool>{true, false, false, false, true, true, true}));
    const auto modes_are_kept = [&] {
      std::vector<bool> now;
      for (const auto& module : net->modules()) now.push_back(module->is_training());
      return now == modes;
    };
    const auto mean = [](const torch::nn::Module& module) {
      return module.named_buffers()["running_mean"].clone();
    };
    const torch::Tensor frozen = mean(*body->children()[1]), free = mean(*net->norm);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    trainer::TensorLoader train(Data(), {.batch_size = 5});
    trainer::TensorLoader validation(Data(7), {.batch_size = 2, .train = false});
    trainer::TrainerOptions options;
    options.strategy = strategy;
    options.max_epochs = 2;
    const trainer::Trainer trainer(options);
    trainer.Fit(
        {.model = net, .optimizer = sgd, .train = train, .validation = &validation, .loss = Mse});
    EXPECT_TRUE(modes_are_kept()) << strategy;
    EXPECT_TRUE(mean(*body->children()[1]).equal(frozen)) << strategy;
    EXPECT_FALSE(mean(*net->norm).equal(free)) << strategy;
    const auto fails = [&](auto&, auto&) -> torch::Tensor {
      EXPECT_FALSE(body->children()[2]->is_training());
      throw std::runtime_error("no loss");
    };
    EXPECT_THROW(trainer.Evaluate(net, validation, fails, {}), std::runtime_error);
    EXPECT_TRUE(modes_are_kept()) << strategy;
  }
}

RANKS_TEST(Trainer, RanksAgreeOnAllOptions, 2) {
  const bool one = hvd::rank() == 1;
  const double more = one ? 1e-12 : 0;
  const std::vector<std::function<void(trainer::TrainerOptions*, trainer::FitArguments*)>> changes =
      {[&](auto* options, auto*) { options->max_norm = 0.5 + more; },
       [&](auto* options, auto*) { options->loss_scaler.initial_scale = 1024 + more; },
       [&](auto* options, auto*) { options->loss_scaler.growth_factor = 2 + more; },
       [&](auto* options, auto*) { options->loss_scaler.backoff_factor = 0.5 + more; },
       [&](auto* options, auto*) { options->loss_scaler.growth_interval = one ? 5 : 6; },
       [&](auto* options, auto*) { options->max_epochs = one ? 5 : 6; },
       [&](auto*, auto* arguments) {
         if (one) arguments->learning_rate = [](int64_t) { return 1.0; };
       },
       [&](auto*, auto* arguments) {
         arguments->metrics = {{one ? "a" : "b", Mse}};
       },
       [&](auto*, auto* arguments) {
         if (one) arguments->validation = nullptr;
       }};
  size_t number = 0;
  for (const auto& change : changes) {
    DropNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    trainer::TensorLoader train(Data(), {.batch_size = 5});
    trainer::TensorLoader validation(Data(7), {.batch_size = 2, .train = false});
    const auto steps = std::make_shared<Steps>();
    trainer::TrainerOptions options;
    options.precision = "16";
    options.max_epochs = 1;
    trainer::FitArguments arguments{.model = net,
                                    .optimizer = sgd,
                                    .train = train,
                                    .validation = &validation,
                                    .loss = Mse,
                                    .callbacks = {steps}};
    change(&options, &arguments);
    std::string message;
    EXPECT_EQ(StatusOf([&] { trainer::Trainer(options).Fit(arguments); }, &message),
              RUEDA_INVALID_ARGUMENT)
        << number;
    EXPECT_NE(message.find("the ranks differ: rank 0 has"), std::string::npos)
        << number << " " << message;
    EXPECT_EQ(steps->count, 0) << number;
    ++number;
  }
}

RANKS_TEST(Trainer, TheScheduleEndsWithTheTraining, 2) {
  torch::manual_seed(5);
  DropNet net;
  torch::optim::SGD sgd(net->parameters(), 0.5);
  trainer::TensorLoader train(Data(), {.batch_size = 5});
  for (int i = 0; i < 2; ++i) {
    const auto monitor = std::make_shared<trainer::LearningRateMonitor>();
    trainer::TrainerOptions options;
    options.max_epochs = 2;
    const trainer::FitResult result =
        trainer::Trainer(options).Fit({.model = net,
                                       .optimizer = sgd,
                                       .train = train,
                                       .loss = Mse,
                                       .callbacks = {monitor},
                                       .learning_rate = [](int64_t) { return 0.1; }});
    EXPECT_EQ(result.metrics.at("lr"), 0.05);
    EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
  }
}

std::shared_ptr<torch::nn::SequentialImpl> Body(int64_t classes) {
  return torch::nn::Sequential(torch::nn::Linear(6, 200), torch::nn::Linear(200, 200),
                               torch::nn::Linear(200, classes))
      .ptr();
}

// What operations this rank took part in while it trained, in bytes.
class Traffic : public trainer::Callback {
 public:
  explicit Traffic(std::string path) : path_(std::move(path)) {}
  std::string name() const override { return "traffic"; }
  void OnBegin(trainer::Training& training) override {
    if (training.rank == 0) rueda::start_timeline(path_);
  }
  void OnEnd(trainer::Training& training) override {
    if (training.rank == 0) rueda::stop_timeline();
  }
  // By the lane's row, in which each bucket is once.
  int64_t bytes() const {
    const std::string text = Text(path_);
    std::smatch lane;
    EXPECT_TRUE(std::regex_search(
        text, lane,
        std::regex("\"tid\":([0-9]+),\"name\":\"thread_name\",\"args\":.\"name\":\"lane ")));
    const std::regex bucket("\"tid\":" + lane[1].str() + ",.*\"bytes\":([0-9]+)");
    int64_t sum = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), bucket), end; it != end; ++it) {
      sum += std::stoll((*it)[1]);
    }
    return sum;
  }

 private:
  const std::string path_;
};

RANKS_TEST(Trainer, FrozenParametersAreNeverSent, 2) {
  const JobDirectory directory;
  constexpr int64_t kFrozenBytes = 4 * (6 * 200 + 200 + 200 * 200 + 200);
  constexpr int64_t kSteps3 = 3 * (kSamples / 10);
  for (const std::string strategy :
       {"ddp", "sharded", "fsdp", "local_sgd", "decentralized", "adasum"}) {
    for (const bool frozen : {true, false}) {
      torch::manual_seed(1);
      const auto model = Body(3);
      const std::vector<torch::Tensor> children = {model->parameters()[0], model->parameters()[2]};
      if (frozen) {
        trainer::Freeze(*model->children()[0]);
        trainer::Freeze(*model->children()[1]);
      }
      const torch::Tensor before = children[1].detach().clone();
      torch::optim::SGD sgd(model->parameters(), 0.01);
      trainer::TensorLoader train(Data(), {.batch_size = 5});
      const auto traffic = std::make_shared<Traffic>(directory / strategy);
      trainer::TrainerOptions options;
      options.strategy = strategy;
      options.strategy_options.local_steps = 4;
      options.max_epochs = 3;
      trainer::Trainer(options).Fit(
          {.model = model, .optimizer = sgd, .train = train, .loss = Mse, .callbacks = {traffic}});
      EXPECT_EQ(before.equal(children[1]), frozen);
      if (hvd::rank() != 0) continue;
      const int64_t head = 4 * (200 * 3 + 3);
      if (frozen) {
        EXPECT_GT(traffic->bytes(), head) << strategy;
        EXPECT_LT(traffic->bytes(), 4 * head * (kSteps3 + 3)) << strategy;
        EXPECT_LT(traffic->bytes(), 2 * kFrozenBytes) << strategy;
      } else {
        EXPECT_GT(traffic->bytes(), 4 * kFrozenBytes) << strategy;
      }
    }
  }
}

RANKS_TEST(Trainer, BeginsWithAnothersParameters, 2) {
  const JobDirectory directory;
  const std::string path = directory / "body.pt";
  const auto from = Body(3);
  {
    torch::optim::SGD sgd(from->parameters(), 0.1);
    hvd::make_strategy("sharded", from, sgd)->save(path);
  }
  const auto to = Body(5);
  const std::vector<std::string> taken = trainer::LoadParameters(*to, path);
  EXPECT_EQ(taken, (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
  EXPECT_TRUE(to->parameters()[2].equal(from->parameters()[2]));
  torch::nn::Linear other(2, 2);
  EXPECT_THROW(trainer::LoadParameters(*other, path), std::runtime_error);
  EXPECT_THROW(trainer::LoadParameters(*to, path + "t"), std::runtime_error);
  hvd::barrier();
  if (hvd::rank() == 0) fs::resize_file(path, fs::file_size(path) / 2);
  hvd::barrier();
  EXPECT_THROW(trainer::LoadParameters(*to, path), std::runtime_error);
}

RANKS_TEST(Trainer, TheSeedChoosesTheBits, 1, 2) {
  std::vector<torch::Tensor> weights;
  for (const uint64_t seed : {7, 7, 8}) {
    Plan plan;
    plan.options.seed = seed;
    plan.options.max_epochs = 3;
    plan.drop = 0.5;
    weights.push_back(Fit(plan).weights);
    torch::manual_seed(1234);  // is not to matter
    torch::randn({3});
  }
  EXPECT_TRUE(weights[0].equal(weights[1]));
  EXPECT_FALSE(weights[0].equal(weights[2]));
}

// Of seven samples on three ranks, and of two, so that one has none.
RANKS_TEST(Trainer, EvaluatesEachSampleOnce, 1, 2, 3) {
  torch::manual_seed(5);
  DropNet net(0.5);
  const trainer::Trainer trainer({});
  for (const int64_t samples : {7, 2}) {
    const trainer::Batch data = Data(samples);
    trainer::TensorLoader loader(data, {.batch_size = 2, .train = false});
    const Metrics metrics = trainer.Evaluate(
        net, loader, Mse, {{"twice", [](auto& a, auto& b) { return 2 * Mse(a, b); }}});
    net->eval();
    const auto expected = Mse(net(data.input), data.target).item<double>();
    net->train();
    EXPECT_NEAR(metrics.at("loss"), expected, 1e-6) << samples;
    EXPECT_NEAR(metrics.at("twice"), 2 * expected, 1e-6) << samples;
  }
}

RANKS_TEST(Trainer, MistakesAreErrorsOnAllRanks, 2) {
  const JobDirectory directory;
  std::string message;
  const auto fit = [&](const std::function<void(Plan&)>& change) {
    Plan plan;
    plan.options.max_epochs = 1;
    change(plan);
    return StatusOf([&] { Fit(plan); }, &message);
  };
  EXPECT_EQ(fit([](Plan& plan) { plan.options.devices = 4; }), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("devices is 4, and the job has 2 ranks: start it with ruedarun -np 4"),
            std::string::npos)
      << message;
  EXPECT_EQ(fit([](Plan& plan) { plan.options.precision = "8"; }), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("there are 32, bf16, 16"), std::string::npos) << message;
  EXPECT_EQ(fit([](Plan& plan) { plan.options.device = "tpu"; }), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("tpu"), std::string::npos) << message;
  EXPECT_EQ(fit([](Plan& plan) { plan.options.strategy = "dpp"; }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(fit([](Plan& plan) { plan.options.seed = static_cast<uint64_t>(hvd::rank()); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("the ranks differ: rank 0 has"), std::string::npos) << message;
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = directory / ""; }), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("has no checkpoint to resume from"), std::string::npos) << message;
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = directory / "epoch-1.pt"; }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("epoch-1.pt: there is no such checkpoint"), std::string::npos) << message;
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = directory / "epoch-1.json"; }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("give the file beside it"), std::string::npos) << message;
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = "/proc/self/maps"; }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("maps.json: can't be read"), std::string::npos) << message;
  if (hvd::rank() == 0) trainer::WriteProgress(directory / "epoch-1.pt", {1, 2, 5, {}, {}});
  hvd::barrier();
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = directory / "epoch-1.pt"; }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("of a training on 5 ranks"), std::string::npos) << message;
  EXPECT_EQ(fit([&](Plan& plan) { plan.options.resume = directory / "epoch-2.pt"; }),
            RUEDA_INVALID_ARGUMENT);
  // On rank 0 alone, which alone writes it.
  EXPECT_EQ(fit([](Plan& plan) {
              plan.callbacks = {std::make_shared<trainer::CsvLog>("/nowhere/log.csv")};
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("/nowhere/log.csv can't be written: No such file"), std::string::npos)
      << message;
  const std::string file = directory / "epoch-1.json";
  const std::vector<std::shared_ptr<trainer::Callback>> ill = {
      std::make_shared<trainer::CsvLog>(file + "/log.csv"),
      std::make_shared<trainer::TensorBoard>(file + "/events/of/this"),
      std::make_shared<trainer::ModelCheckpoint>(
          trainer::ModelCheckpointOptions{.directory = file})};
  for (const auto& callback : ill) {
    EXPECT_EQ(fit([&](Plan& plan) { plan.callbacks = {callback}; }), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("can't be written: Not a directory"), std::string::npos) << message;
  }
  EXPECT_EQ(fit([&](Plan& plan) {
              plan.callbacks = {std::make_shared<trainer::CsvLog>(directory / ".")};
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("can't be written: Is a directory"), std::string::npos) << message;
  EXPECT_EQ(fit([](Plan& plan) {
              plan.callbacks = {std::make_shared<trainer::ProgressBar>(),
                                std::make_shared<trainer::ProgressBar>()};
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("two callbacks are called 'progress_bar'"), std::string::npos) << message;
  hvd::barrier();
}

// A run that a test makes up.
struct MadeUp : trainer::Training {
  hvd::Strategy& strategy() override { throw std::logic_error("not there"); }
  void Save(const std::string&) override {}
};

void ShowTwoEpochs(std::FILE* stream) {
  trainer::ProgressBar bar(stream);
  MadeUp training;
  training.steps_in_epoch = 3;
  training.max_epochs = 2;
  bar.OnBegin(training);
  for (training.epoch = 1; training.epoch <= 2; ++training.epoch) {
    for (int i = 0; i < 3; ++i) {
      ++training.step;
      bar.OnStep(training);
    }
    training.metrics = {{"loss", 0.5}, {"val_loss", 0.25}};
    bar.OnEpoch(training);
  }
  std::fclose(stream);
}

TEST(ProgressBar, IsOneOnATerminalAndLinesElsewhere) {
  const std::regex line(
      "epoch  1 loss 0\\.5000, val_loss 0\\.2500, \\d+\\.\\d s\n"
      "epoch  2 loss 0\\.5000, val_loss 0\\.2500, \\d+\\.\\d s\n");
  for (const std::string terminal : {"xterm", "dumb", "none"}) {
    setenv("TERM", terminal.c_str(), 1);
    int reader = -1, writer = -1;
    if (terminal == "none") {
      int ends[2];
      ASSERT_EQ(pipe(ends), 0);
      reader = ends[0];
      writer = ends[1];
    } else {
      ASSERT_EQ(openpty(&reader, &writer, nullptr, nullptr, nullptr), 0);
    }
    ShowTwoEpochs(fdopen(writer, "w"));
    std::string text;
    char block[4096];
    for (ssize_t got; (got = read(reader, block, sizeof block)) > 0;) {  // a terminal ends with EIO
      text.append(block, static_cast<size_t>(got));
    }
    close(reader);
    text = std::regex_replace(text, std::regex("\r\n"), "\n");
    if (terminal == "xterm") {
      EXPECT_NE(text.find("\repoch  1 [##########                    ] 1/3"), std::string::npos)
          << text;
      EXPECT_NE(text.find("\repoch  2 [##############################] 3/3\r\x1b[Kepoch  2 loss"),
                std::string::npos)
          << text;
    } else {
      EXPECT_TRUE(std::regex_match(text, line)) << text;
    }
  }
}

TEST(ProgressBar, NumbersAreShortAndNotZero) {
  std::FILE* const stream = std::tmpfile();
  trainer::ProgressBar bar(stream);
  MadeUp training;
  training.epoch = 1;
  training.metrics = {{"a", 0},     {"b", 0.001},     {"c", -0.00012345}, {"d", 65536}, {"e", 2e12},
                      {"f", 1e300}, {"g", -INFINITY}, {"h", NAN},         {"i", -1.5}};
  bar.OnBegin(training);
  bar.OnEpoch(training);
  std::rewind(stream);
  char line[512] = "";
  EXPECT_NE(std::fgets(line, sizeof line, stream), nullptr);
  std::fclose(stream);
  EXPECT_TRUE(std::string(line).starts_with(
      "epoch  1 a 0.0000, b 0.0010, c -1.234e-04, d 65536.0000, e 2.000e+12, f 1.000e+300, g -inf, "
      "h nan, i -1.5000, "))
      << line;
}

// The earlier steps were of other epochs' sizes.
TEST(ProgressBar, CountsTheEpochsOwnSteps) {
  setenv("TERM", "xterm", 1);
  int reader = -1, writer = -1;
  ASSERT_EQ(openpty(&reader, &writer, nullptr, nullptr, nullptr), 0);
  std::FILE* const stream = fdopen(writer, "w");
  trainer::ProgressBar bar(stream);
  MadeUp training;
  training.steps_in_epoch = 3;
  training.epoch = training.first_epoch = 5;
  training.step = 2;
  bar.OnBegin(training);
  bar.OnStep(training);
  std::fclose(stream);
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(read(reader, text.data(), text.size()), 0)));
  close(reader);
  EXPECT_EQ(text,
            "goes on in epoch 5 on 1 rank\r\n"
            "\repoch  5 [##########                    ] 1/3");
}

TEST(Checkpoint, AnEarlierOneOfTheNameIsGoneBeforeItsProgress) {
  const std::string path =
      fs::temp_directory_path() / ("rueda-" + std::to_string(getpid()) + ".pt");
  std::ofstream(path) << "an earlier training's";
  trainer::WriteProgress(path, {7, 70, 2, {}, {}});
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(trainer::ReadProgress(path).epoch, 7);
  trainer::RemoveCheckpoint(path);
}

// RFC 3720, B.4.
TEST(Records, HaveTheChecksumsOfTheRfc) {
  EXPECT_EQ(trainer::Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(trainer::Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(trainer::Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(trainer::Record("abc").size(), 8u + 4 + 3 + 4);
}

}  // namespace
