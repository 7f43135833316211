#include "rueda/strategy.hpp"

#include <array>

#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

struct Entry {
  const char* name;
  MakeStrategy* make;
};

constexpr std::array<Entry, 17> kEntries = {{
    {"ddp", MakeDdp},
    {"horovod", MakeDdp},
    {"dp", MakeDataParallel},
    {"ddp2", MakeDataParallel},
    {"mirrored", MakeDataParallel},
    {"multi_worker", MakeDdp},
    {"bytegrad", MakeDdp},
    {"qadam", MakeQAdam},
    {"sharded", MakeSharded},
    {"fsdp", MakeSharded},
    {"adasum", MakeLocalSteps},
    {"local_sgd", MakeLocalSteps},
    {"diloco", MakeLocalSteps},
    {"decentralized", MakeDecentralized},
    {"low_precision_decentralized", MakeLowPrecision},
    {"async", MakeAsync},
    {"pipeline", MakePipeline},
}};

const Entry& Find(const std::string& name) {
  std::string known;
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry;
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  std::string message = "there is no strategy '" + name + "'; there are " + known;
  if (name == "spawn" || name == "ddp_spawn") {
    message += "; to start ranks from a function call there is rueda::run, with any of them";
  }
  throw Error(RUEDA_INVALID_ARGUMENT, message);
}

}  // namespace

at::Tensor average_loss(const at::Tensor& losses, int64_t global_batch_size) {
  if (global_batch_size < 1) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "average_loss: the global batch size is " + std::to_string(global_batch_size));
  }
  return losses.sum() / static_cast<double>(global_batch_size);
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

bool HasPieces(const std::string& name) {
  return Find(name).make == MakeSharded || Find(name).make == MakePipeline;
}

bool has_own_batches(const std::string& name) {
  return Find(name).make != MakePipeline;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, const Model& model,
                                        torch::optim::Optimizer& optimizer,
                                        const StrategyOptions& options) {
  return Find(name).make(name, model, optimizer, options);
}

}  // namespace rueda::libtorch
