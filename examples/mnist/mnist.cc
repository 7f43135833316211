// Data-parallel training of a small convolutional net on handwritten digits, with LibTorch.
//
//     ruedarun -np 2 mnist [--strategy NAME] [--epochs N] [--batch-size N] [--lr X] [--seed N]
//                          [--data PATH]
//
// Every rank has a replica of the net and its own part of each epoch's images; the strategy keeps
// the replicas together, by default by averaging their gradients while they are being computed. At
// the end they must have the same bits. The last line of rank 0's output is JSON.
//
// Four things make a program data-parallel, marked (1) to (4) below.
#include <rueda/strategy.hpp>

#include <torch/torch.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "examples/mnist/dataset.h"
#include "examples/mnist/model.h"

namespace hvd = rueda::libtorch;

namespace mnist {
namespace {

constexpr const char* kUsage =
    "ruedarun -np N mnist [options]\n"
    "  --strategy NAME  how the ranks train together (ddp); all of them are in docs/strategies.md\n"
    "  --replicas N     of each process, for dp, ddp2 and mirrored (2)\n"
    "  --epochs N       times that the training images are seen (30)\n"
    "  --batch-size N   images of one rank in one step (32)\n"
    "  --lr X           learning rate (0.05)\n"
    "  --seed N         of the first weights and of the images' order (1)\n"
    "  --data PATH      a directory with MNIST's four unpacked IDX files, or the UCI digits as "
    "CSV\n"
    "                   (what third_party/setup.sh has installed)\n"
    "  --no-broadcast   let each rank begin with weights of its own, to see the end fail\n";

struct Options {
  std::string strategy = "ddp";
  int replicas = 2;
  int64_t epochs = 30;
  int64_t batch_size = 32;
  double lr = 0.05;
  uint64_t seed = 1;
  std::filesystem::path data = DefaultPath();
  bool broadcast = true;
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T>
T Parse(const std::string& option, const std::string& word, T least) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value >= least)) {
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
    if (i + 1 == argc) throw UsageError(option + ": unknown, or its value is missing");
    const std::string word = argv[++i];
    if (option == "--strategy") {
      options.strategy = word;
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
  return options;
}

struct Tensors {
  torch::Tensor images, labels;
};

Tensors ToTensors(const Images& images) {
  return {torch::tensor(images.pixels).reshape({images.count, 1, images.height, images.width}),
          torch::tensor(images.labels)};
}

// The order of an epoch, the same on all ranks.
torch::Tensor Permutation(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1'000'003 + epoch);
  std::shuffle(order.begin(), order.end(), random);
  return torch::tensor(order);
}

// A row of dots that grows with an epoch.
class Progress {
 public:
  explicit Progress(int64_t steps) : steps_(steps), show_(hvd::rank() == 0) {}
  void Step() {
    const int64_t dots = ++step_ * kDots / steps_;
    while (show_ && shown_ < dots) {
      std::putchar('.');
      std::fflush(stdout);
      ++shown_;
    }
  }

 private:
  static constexpr int64_t kDots = 20;
  const int64_t steps_;
  const bool show_;
  int64_t step_ = 0;
  int64_t shown_ = 0;
};

// The share of the test images that the replicas, each on its part of them, get right.
double TestAccuracy(Net& net, const Tensors& test) {
  const torch::NoGradGuard no_grad;
  const int64_t count = test.labels.size(0);
  const int64_t begin = count * hvd::rank() / hvd::size();
  const int64_t end = count * (hvd::rank() + 1) / hvd::size();
  int64_t right = 0;
  for (int64_t i = begin; i < end; i += 256) {
    const int64_t size = std::min<int64_t>(256, end - i);
    const torch::Tensor guess = net(test.images.narrow(0, i, size)).argmax(1);
    right += guess.eq(test.labels.narrow(0, i, size)).sum().item<int64_t>();
  }
  const torch::Tensor all = hvd::allreduce(torch::tensor(right), "right", hvd::Sum);
  return static_cast<double>(all.item<int64_t>()) / static_cast<double>(count);
}

// FNV-1a over the bytes of all parameters and buffers.
uint64_t Digest(const Net& net) {
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](const torch::Tensor& tensor) {
    const torch::Tensor whole = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3;
  };
  for (const torch::Tensor& parameter : net->parameters()) add(parameter);
  for (const torch::Tensor& buffer : net->buffers()) add(buffer);
  return digest;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One epoch; returns the mean loss over all ranks' steps.
double TrainEpoch(hvd::Strategy& strategy, const Tensors& train, const Options& options,
                  int64_t epoch, int64_t steps) {
  const torch::Tensor order = Permutation(train.labels.size(0), options.seed, epoch);
  Progress progress(steps);
  double loss_sum = 0;
  for (int64_t step = 0; step < steps; ++step) {
    // (3) This rank's part of the step's images; what doesn't fill a last step is left out.
    const int64_t begin = (step * hvd::size() + hvd::rank()) * options.batch_size;
    const torch::Tensor pick = order.narrow(0, begin, options.batch_size);
    strategy.zero_grad();
    const torch::Tensor loss = torch::nll_loss(strategy.forward(train.images.index_select(0, pick)),
                                               train.labels.index_select(0, pick));
    strategy.backward(loss);
    strategy.step();
    loss_sum += loss.item<double>();
    progress.Step();
  }
  // (4) What is reported is about all ranks.
  return hvd::allreduce(torch::tensor(loss_sum / static_cast<double>(steps)), "loss")
      .item<double>();
}

int Run(const Options& options) {
  // With more threads the order of additions, and so the last bits, could differ from run to run.
  torch::set_num_threads(1);
  const Dataset dataset = Load(options.data);
  if (dataset.train.height < 4 || dataset.train.width < 4) {
    throw std::runtime_error(options.data.string() + ": images of " +
                             std::to_string(dataset.train.height) + " x " +
                             std::to_string(dataset.train.width) +
                             " are too small for the net, which halves them twice");
  }
  const Tensors train = ToTensors(dataset.train);
  const Tensors test = ToTensors(dataset.test);
  const int64_t steps = dataset.train.count / (options.batch_size * hvd::size());
  if (steps == 0) {
    throw UsageError("--batch-size " + std::to_string(options.batch_size) + " on " +
                     std::to_string(hvd::size()) + " ranks is more than the " +
                     std::to_string(dataset.train.count) + " training images");
  }

  // (1) Each rank would begin with weights of its own; the strategy gives all rank 0's.
  torch::manual_seed(options.seed + hvd::rank());
  Net net(dataset.train.height, dataset.train.width);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9));
  // (2) From here on the ranks train together.
  const std::unique_ptr<hvd::Strategy> strategy = hvd::make_strategy(
      options.strategy, net, sgd, {.broadcast = options.broadcast, .replicas = options.replicas});

  if (hvd::rank() == 0) {
    std::printf(
        "%lld training and %lld test images of %lld x %lld, %d ranks, %lld steps an epoch\n",
        static_cast<long long>(dataset.train.count), static_cast<long long>(dataset.test.count),
        static_cast<long long>(dataset.train.height), static_cast<long long>(dataset.train.width),
        hvd::size(), static_cast<long long>(steps));
  }
  const auto start = std::chrono::steady_clock::now();
  double accuracy = TestAccuracy(net, test);
  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    if (hvd::rank() == 0) std::printf("epoch %2lld ", static_cast<long long>(epoch));
    const double loss = TrainEpoch(*strategy, train, options, epoch, steps);
    strategy->finish();  // for those who let the ranks differ
    accuracy = TestAccuracy(net, test);
    if (hvd::rank() == 0) {
      std::printf(" loss %.4f, test accuracy %.2f %%, %.1f s\n", loss, 100 * accuracy,
                  SecondsSince(start));
      std::fflush(stdout);
    }
  }
  const double seconds = SecondsSince(start);

  const uint64_t digest = Digest(net);
  const torch::Tensor digests =
      hvd::allgather(torch::tensor({static_cast<int64_t>(digest)}), "digests");
  const bool equal = digests.eq(digests[0]).all().item<bool>();  // the same answer on all ranks
  if (hvd::rank() == 0) {
    std::printf(
        "{\"ranks\": %d, \"epochs\": %lld, \"test_accuracy\": %.4f, \"replicas_equal\": %s, "
        "\"train_seconds\": %.2f, \"parameters_digest\": \"%016llx\"}\n",
        hvd::size(), static_cast<long long>(options.epochs), accuracy, equal ? "true" : "false",
        seconds, static_cast<unsigned long long>(digest));
    std::fflush(stdout);
  }
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  try {
    hvd::init();
    int status = 0;
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
      if (hvd::rank() == 0) std::fputs(mnist::kUsage, stdout);
    } else {
      status = mnist::Run(mnist::ParseOptions(argc, argv));
    }
    hvd::shutdown();
    return status;
  } catch (const mnist::UsageError& error) {
    std::fprintf(stderr, "mnist: %s; --help lists the options\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
}
