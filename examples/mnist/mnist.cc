// Data-parallel training of a small convolutional net on handwritten digits, with LibTorch.
//
//     ruedarun -np 2 mnist [--device cpu|cuda] [--strategy NAME] [--precision 32|bf16|16]
//                          [--epochs N] [--patience N] [--batch-size N] [--lr X] [--seed N]
//                          [--data PATH] [--elastic]
//
// Every rank has a replica of the net and its own part of each epoch's images; the strategy keeps
// the replicas together, by default by averaging their gradients while they are being computed. At
// the end they must have the same bits. The last line of rank 0's output is JSON.
//
// The loop is examples/trainer's; examples/torch_loop has one by itself.
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "examples/mnist/dataset.h"
#include "examples/mnist/model.h"
#include "examples/trainer/callbacks/csv_log.h"
#include "examples/trainer/callbacks/early_stopping.h"
#include "examples/trainer/callbacks/learning_rate_monitor.h"
#include "examples/trainer/callbacks/model_checkpoint.h"
#include "examples/trainer/callbacks/progress_bar.h"
#include "examples/trainer/callbacks/tensorboard.h"
#include "examples/trainer/trainer.h"

namespace hvd = rueda::libtorch;

namespace mnist {
namespace {

constexpr const char* kUsage =
    "ruedarun -np N mnist [options], or mnist --devices N [options]\n"
    "  --devices N      ranks that it starts itself when no launcher has\n"
    "  --device X       where they train: cpu, or cuda, each on the device of its local rank "
    "(cpu)\n"
    "  --strategy NAME  how the ranks train together (ddp); all of them are in "
    "docs/guides/strategies.md\n"
    "  --compression X  what makes gradients smaller on their way: fp16, int8, topk:0.01, ...\n"
    "  --optimizer X    sgd, with momentum, or adam, which wants smaller learning rates (sgd)\n"
    "  --replicas N     of each process, for dp, ddp2 and mirrored (2)\n"
    "  --precision X    of the forward pass: 32, bf16, or 16 with scaled losses (32)\n"
    "  --epochs N       times that the training images are seen (30)\n"
    "  --batch-size N   images of one rank in one step; with pipeline, of all ranks (32)\n"
    "  --lr X           learning rate (0.05)\n"
    "  --seed N         of the first weights and of the images' order (1)\n"
    "  --data PATH      a directory with MNIST's four unpacked IDX files, or the UCI digits as "
    "CSV\n"
    "                   (what third_party/setup.sh has installed)\n"
    "  --patience N     end after so many epochs in a row without a smaller loss on the test "
    "images\n"
    "  --checkpoint DIR keep the best epoch and the newest in DIR\n"
    "  --elastic        go on when ranks are lost or come, in a job of ruedarun --min-np\n"
    "  --commit-steps N steps after which --elastic keeps what was learned (100)\n"
    "  --resume PATH    go on from a checkpoint, or from the newest in a directory\n"
    "  --csv FILE       write the metrics as comma-separated values\n"
    "  --tensorboard DIR  and for TensorBoard\n"
    "  --no-broadcast   let each rank begin with weights of its own, to see ddp's end fail\n";

struct Options {
  int devices = 0;
  std::string device = "cpu";
  std::string strategy = "ddp";
  std::string precision = "32";
  std::string compression;
  bool adam = false;
  int replicas = 2;
  int64_t epochs = 30;
  int64_t batch_size = 32;
  double lr = 0.05;
  uint64_t seed = 1;
  std::filesystem::path data = DefaultPath();
  bool broadcast = true;
  bool elastic = false;
  std::optional<int64_t> commit_steps;
  int patience = 0;
  std::string checkpoint, resume, csv, tensorboard;
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Says so, and returns the exit status.
int Misused(const std::string& what) {
  std::fprintf(stderr, "mnist: %s; --help lists the options\n", what.c_str());
  return 2;
}

bool AsksForHelp(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc,
                     [](const char* word) { return std::strcmp(word, "--help") == 0; });
}

template <typename T>
T Parse(const std::string& option, const std::string& word, T least) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value >= least) ||
      !std::isfinite(static_cast<double>(value))) {
    throw UsageError(option + " " + word + ": expected a number of at least " +
                     std::to_string(least));
  }
  return value;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--no-broadcast") {
      options.broadcast = false;
      continue;
    }
    if (option == "--elastic") {
      options.elastic = true;
      continue;
    }
    if (i + 1 == argc) throw UsageError(option + ": unknown, or its value is missing");
    const std::string word = argv[++i];
    if (word.empty() || word.starts_with("--")) {
      throw UsageError(option + " '" + word + "': that is no value for it");
    }
    if (option == "--strategy") {
      options.strategy = word;
    } else if (option == "--devices") {
      options.devices = Parse<int>(option, word, 1);
    } else if (option == "--device") {
      if (word != "cpu" && word != "cuda") throw UsageError("--device " + word + ": cpu or cuda");
      options.device = word;
    } else if (option == "--precision") {
      options.precision = word;
    } else if (option == "--compression") {
      options.compression = word;
    } else if (option == "--optimizer") {
      if (word != "sgd" && word != "adam")
        throw UsageError("--optimizer " + word + ": sgd or adam");
      options.adam = word == "adam";
    } else if (option == "--commit-steps") {
      options.commit_steps = Parse<int64_t>(option, word, 1);
    } else if (option == "--patience") {
      options.patience = Parse<int>(option, word, 1);
    } else if (option == "--checkpoint") {
      options.checkpoint = word;
    } else if (option == "--resume") {
      options.resume = word;
    } else if (option == "--csv") {
      options.csv = word;
    } else if (option == "--tensorboard") {
      options.tensorboard = word;
    } else if (option == "--replicas") {
      options.replicas = Parse<int>(option, word, 1);
    } else if (option == "--epochs") {
      options.epochs = Parse<int64_t>(option, word, 0);
    } else if (option == "--batch-size") {
      options.batch_size = Parse<int64_t>(option, word, 1);
    } else if (option == "--lr") {
      options.lr = Parse<double>(option, word, 0);
    } else if (option == "--seed") {
      options.seed = Parse<uint64_t>(option, word, 0);
    } else if (option == "--data") {
      options.data = word;
    } else {
      throw UsageError(option + ": unknown");
    }
  }
  if (options.commit_steps.has_value() && !options.elastic) {
    throw UsageError("--commit-steps: nothing is committed without --elastic");
  }
  return options;
}

trainer::Batch ToTensors(const Images& images) {
  return {torch::tensor(images.pixels).reshape({images.count, 1, images.height, images.width}),
          torch::tensor(images.labels)};
}

torch::Tensor Loss(const torch::Tensor& output, const torch::Tensor& labels) {
  return torch::nll_loss(output, labels);
}

// The share of the images that are recognized.
torch::Tensor Accuracy(const torch::Tensor& output, const torch::Tensor& labels) {
  return output.argmax(1).eq(labels).to(torch::kFloat).mean();
}

// FNV-1a over the bytes of all parameters and buffers.
uint64_t Digest(const torch::nn::Sequential& net) {
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](const torch::Tensor& tensor) {
    const torch::Tensor whole = tensor.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3;
  };
  for (const torch::Tensor& parameter : net->parameters()) add(parameter);
  for (const torch::Tensor& buffer : net->buffers()) add(buffer);
  return digest;
}

// Says what is going to be trained with.
class Opening : public trainer::Callback {
 public:
  explicit Opening(const Dataset& dataset) : dataset_(dataset) {}
  std::string name() const override { return "opening"; }
  void OnBegin(trainer::Training& training) override {
    if (training.rank != 0) return;
    std::printf(
        "%lld training and %lld test images of %lld x %lld, %d ranks, %lld steps an epoch\n",
        static_cast<long long>(dataset_.train.count), static_cast<long long>(dataset_.test.count),
        static_cast<long long>(dataset_.train.height), static_cast<long long>(dataset_.train.width),
        training.ranks, static_cast<long long>(training.steps_in_epoch));
  }

 private:
  const Dataset& dataset_;
};

std::vector<std::shared_ptr<trainer::Callback>> CallbacksFor(const Options& options,
                                                             const Dataset& dataset) {
  std::vector<std::shared_ptr<trainer::Callback>> callbacks = {
      std::make_shared<Opening>(dataset), std::make_shared<trainer::ProgressBar>()};
  if (options.patience > 0) {
    callbacks.push_back(std::make_shared<trainer::EarlyStopping>(
        trainer::EarlyStoppingOptions{.patience = options.patience}));
  }
  if (!options.csv.empty()) callbacks.push_back(std::make_shared<trainer::CsvLog>(options.csv));
  if (!options.tensorboard.empty()) {
    callbacks.push_back(std::make_shared<trainer::LearningRateMonitor>());
    callbacks.push_back(std::make_shared<trainer::TensorBoard>(options.tensorboard));
  }
  if (!options.checkpoint.empty()) {
    callbacks.push_back(std::make_shared<trainer::ModelCheckpoint>(
        trainer::ModelCheckpointOptions{.directory = options.checkpoint}));
  }
  return callbacks;
}

// What a rank does.
int TrainOnRank(const trainer::Trainer& trainer, const Options& options, const Dataset& dataset) {
  // With more threads the order of additions, and so the last bits, could differ from run to run.
  torch::set_num_threads(1);
  const int batches = hvd::has_own_batches(options.strategy) ? hvd::size() : 1;  // a step
  if (dataset.train.count / batches < options.batch_size) {
    // Not thrown: rueda::run would make another error of it.
    return Misused("--batch-size " + std::to_string(options.batch_size) + " on " +
                   std::to_string(hvd::size()) + " ranks is more than the " +
                   std::to_string(dataset.train.count) + " training images");
  }
  trainer::TensorLoader train(ToTensors(dataset.train),
                              {.batch_size = options.batch_size, .seed = options.seed});
  trainer::TensorLoader test(ToTensors(dataset.test), {.batch_size = 256, .train = false});
  // Each rank would begin with weights of its own; the strategy gives all rank 0's.
  torch::manual_seed(options.seed + hvd::rank());
  const torch::nn::Sequential net = MakeNet(dataset.train.height, dataset.train.width);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9));
  torch::optim::Adam adam(net->parameters(), options.lr);
  const trainer::FitResult result =
      trainer.Fit({.model = net,
                   .optimizer = options.adam ? static_cast<torch::optim::Optimizer&>(adam) : sgd,
                   .train = train,
                   .validation = &test,
                   .loss = Loss,
                   .metrics = {{"accuracy", Accuracy}},
                   .callbacks = CallbacksFor(options, dataset)});

  const double accuracy =
      trainer.Evaluate(net, test, Loss, {{"accuracy", Accuracy}}).at("accuracy");
  const uint64_t digest = Digest(net);
  const torch::Tensor digests =
      hvd::allgather(torch::tensor({static_cast<int64_t>(digest)}), {.name = "digests"});
  const bool equal = digests.eq(digests[0]).all().item<bool>();  // the same answer on all ranks
  if (hvd::rank() == 0) {
    std::printf(
        "{\"ranks\": %d, \"epochs\": %lld, \"test_accuracy\": %.4f, \"replicas_equal\": %s, "
        "\"train_seconds\": %.2f, \"parameters_digest\": \"%016llx\"}\n",
        hvd::size(), static_cast<long long>(result.epochs), accuracy, equal ? "true" : "false",
        result.seconds, static_cast<unsigned long long>(digest));
    std::fflush(stdout);
  }
  return equal ? 0 : 1;
}

int Run(const Options& options) {
  const Dataset dataset = Load(options.data);
  if (dataset.train.height < 4 || dataset.train.width < 4) {
    throw std::runtime_error(options.data.string() + ": images of " +
                             std::to_string(dataset.train.height) + " x " +
                             std::to_string(dataset.train.width) +
                             " are too small for the net, which halves them twice");
  }
  trainer::TrainerOptions how;
  how.devices = options.devices;
  how.device = options.device;
  how.strategy = options.strategy;
  how.strategy_options.broadcast = options.broadcast;
  how.strategy_options.replicas = options.replicas;
  how.strategy_options.compression = options.compression;
  how.precision = options.precision;
  how.max_epochs = options.epochs;
  how.seed = options.seed;
  how.resume = options.resume;
  how.elastic = options.elastic;
  how.commit_steps = options.commit_steps.value_or(how.commit_steps);
  const trainer::Trainer trainer(how);
  return trainer.Run([&] { return TrainOnRank(trainer, options, dataset); });
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  try {
    if (mnist::AsksForHelp(argc, argv)) {
      hvd::init();
      if (hvd::rank() == 0) std::fputs(mnist::kUsage, stdout);
      hvd::shutdown();
      return 0;
    }
    return mnist::Run(mnist::ParseOptions(argc, argv));
  } catch (const mnist::UsageError& error) {
    return mnist::Misused(error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
}
