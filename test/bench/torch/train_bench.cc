// rueda_train_bench: what the exchange of gradients adds to a training step, with LibTorch. Run it
// under ruedarun.
//
// Each model is trained in three ways, which alternate in one process, so that all see the same
// machine: without any communication; with a barrier after each step, which shows what waiting for
// each other costs; with DistributedOptimizer. One computing thread per rank.
#include <rueda/torch.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hvd = rueda::libtorch;

namespace {

constexpr char kUsage[] =
    "usage: ruedarun -np N rueda_train_bench [options]\n"
    "\n"
    "  --model NAME    cnn (22 thousand parameters), deep_mlp (202 tensors, most of 64 x 64) or\n"
    "                  mlp25m (24 million parameters); default: one after the other\n"
    "  --rounds N      rounds of the three alternating ways (default 10)\n"
    "  --steps N       of each way in a round, instead of a number that suits the model\n"
    "  --memory        instead: the memory of all ranks when the gradients are there, without\n"
    "                  communication, with it, and with it but gradients where torch puts them\n"
    "  --json          one JSON line per measurement instead of a table\n";

using torch::nn::Sequential;

// The usual small network for images of 28 x 28.
struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(1, 10, 5))),
        conv2(register_module("conv2", torch::nn::Conv2d(10, 20, 5))),
        fc1(register_module("fc1", torch::nn::Linear(320, 50))),
        fc2(register_module("fc2", torch::nn::Linear(50, 10))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Cnn);

Sequential DeepMlp() {
  Sequential model(torch::nn::Flatten(), torch::nn::Linear(784, 64));
  for (int i = 0; i < 99; ++i) {
    model->push_back(torch::nn::ReLU());
    model->push_back(torch::nn::Linear(64, 64));
  }
  model->push_back(torch::nn::Linear(64, 10));
  return model;
}

Sequential Mlp25m() {
  return Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 4096), torch::nn::ReLU(),
                    torch::nn::Linear(4096, 4096), torch::nn::ReLU(), torch::nn::Linear(4096, 1024),
                    torch::nn::ReLU(), torch::nn::Linear(1024, 10));
}

struct Trainee {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(torch::Tensor)> forward;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

Trainee Make(const std::string& name) {
  torch::manual_seed(0);
  Trainee trainee;
  if (name == "cnn") {
    Cnn model;
    trainee.module = model.ptr();
    trainee.forward = [model](torch::Tensor x) mutable { return model(x); };
  } else {
    Sequential model = name == "deep_mlp" ? DeepMlp() : Mlp25m();
    trainee.module = model.ptr();
    trainee.forward = [model](torch::Tensor x) mutable { return model->forward(x); };
  }
  trainee.optimizer = std::make_unique<torch::optim::SGD>(trainee.module->parameters(),
                                                          torch::optim::SGDOptions(0.01));
  return trainee;
}

enum Way { kAlone, kBarrier, kRueda, kWays };
constexpr const char* kWayNames[kWays] = {"no communication", "barrier", "rueda"};

double Median(std::vector<double>* times) {
  std::sort(times->begin(), times->end());
  return (*times)[times->size() / 2];
}

struct Plan {
  const char* name;
  int64_t batch;
  int steps;  // of each way in a round
  int warmups;
};

constexpr Plan kPlans[] = {{"cnn", 64, 20, 3}, {"deep_mlp", 32, 10, 3}, {"mlp25m", 32, 4, 2}};

struct Options {
  std::vector<std::string> models;
  int rounds = 10;
  int steps = 0;
  bool memory = false;
  bool json = false;
};

// `steps` steps, and a few before them whose times don't count.
void Turn(Way way, Trainee& trainee, const Plan& plan, int steps, std::vector<double>* times) {
  const torch::Tensor x = torch::randn({plan.batch, 1, 28, 28});
  const torch::Tensor y = torch::randint(0, 10, {plan.batch});
  std::unique_ptr<hvd::DistributedOptimizer> distributed;
  if (way == kRueda) {
    distributed = std::make_unique<hvd::DistributedOptimizer>(*trainee.optimizer,
                                                              trainee.module->named_parameters());
  }
  hvd::barrier();
  for (int step = -plan.warmups; step < steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    distributed != nullptr ? distributed->zero_grad() : trainee.optimizer->zero_grad();
    torch::nn::functional::cross_entropy(trainee.forward(x), y).backward();
    distributed != nullptr ? distributed->step() : static_cast<void>(trainee.optimizer->step());
    if (way == kBarrier) hvd::barrier();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (step >= 0) times->push_back(time.count());
  }
  trainee.optimizer->zero_grad();
}

void Run(const Plan& plan, const Options& options) {
  Trainee trainee = Make(plan.name);
  std::vector<double> times[kWays];
  const int steps = options.steps > 0 ? options.steps : plan.steps;
  for (int round = 0; round < options.rounds; ++round) {
    for (int way = 0; way < kWays; ++way) {
      Turn(static_cast<Way>(way), trainee, plan, steps, &times[way]);
    }
  }
  if (hvd::rank() != 0) return;
  size_t tensors = 0;
  int64_t bytes = 0;
  for (const torch::Tensor& parameter : trainee.module->parameters()) {
    ++tensors;
    bytes += parameter.numel() * 4;
  }
  double medians[kWays];
  for (int way = 0; way < kWays; ++way) medians[way] = Median(&times[way]);
  if (options.json) {
    for (int way = 0; way < kWays; ++way) {
      std::printf(
          "{\"peer\": \"%s\", \"op\": \"train_%s\", \"np\": %d, \"bytes\": %lld, "
          "\"p50_us\": %.2f}\n",
          kWayNames[way], plan.name, hvd::size(), static_cast<long long>(bytes), medians[way]);
    }
  } else {
    std::printf("%-9s %4zu tensors %8.2f MiB", plan.name, tensors,
                static_cast<double>(bytes) / (1 << 20));
    for (int way = 0; way < kWays; ++way) {
      std::printf("   %s %.0f us", kWayNames[way], medians[way]);
      if (way > 0) std::printf(" (%+.1f %%)", (medians[way] / medians[0] - 1) * 100);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

// Of all ranks; pages that several share count once.
double MegabytesInUse() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  std::string word;
  float kilobytes = 0;
  while (smaps >> word && word != "Pss:") {
  }
  smaps >> kilobytes;
  return hvd::allreduce(torch::full({1}, kilobytes), {.name = "memory", .op = hvd::Sum})
             .item<float>() /
         1024;
}

void Memory(const Plan& plan) {
  Trainee trainee = Make(plan.name);
  const torch::Tensor x = torch::randn({plan.batch, 1, 28, 28});
  const torch::Tensor y = torch::randint(0, 10, {plan.batch});
  double megabytes[3];
  for (const int way : {0, 1, 2}) {
    std::unique_ptr<hvd::DistributedOptimizer> distributed;
    if (way > 0) {
      hvd::DistributedOptimizerOptions options;
      options.gradients_in_arena = way == 1;
      distributed = std::make_unique<hvd::DistributedOptimizer>(
          *trainee.optimizer, trainee.module->named_parameters(), options);
    }
    for (int step = 0; step < 3; ++step) {
      trainee.optimizer->zero_grad();
      torch::nn::functional::cross_entropy(trainee.forward(x), y).backward();
      if (distributed != nullptr) distributed->synchronize();
    }
    megabytes[way] = MegabytesInUse();
    trainee.optimizer->zero_grad();
  }
  if (hvd::rank() != 0) return;
  std::printf(
      "%-9s all ranks' memory in MiB: no communication %.0f   rueda %.0f   rueda, gradients not in "
      "the "
      "arena %.0f\n",
      plan.name, megabytes[0], megabytes[1], megabytes[2]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--json") {
      options.json = true;
    } else if (option == "--memory") {
      options.memory = true;
    } else if (option == "--model" && i + 1 < argc) {
      options.models.push_back(argv[++i]);
    } else if ((option == "--rounds" || option == "--steps") && i + 1 < argc &&
               std::atoi(argv[i + 1]) > 0) {
      (option == "--rounds" ? options.rounds : options.steps) = std::atoi(argv[++i]);
    } else {
      std::fputs(kUsage, option == "--help" ? stdout : stderr);
      return option == "--help" ? 0 : 2;
    }
  }
  for (const std::string& model : options.models) {
    if (std::none_of(std::begin(kPlans), std::end(kPlans),
                     [&](const Plan& plan) { return plan.name == model; })) {
      std::fprintf(stderr, "rueda_train_bench: no model '%s'\n%s", model.c_str(), kUsage);
      return 2;
    }
  }
  try {
    torch::set_num_threads(1);
    hvd::init();
    for (const Plan& plan : kPlans) {
      if (options.models.empty() || std::find(options.models.begin(), options.models.end(),
                                              plan.name) != options.models.end()) {
        options.memory ? Memory(plan) : Run(plan, options);
      }
    }
    hvd::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rueda_train_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
