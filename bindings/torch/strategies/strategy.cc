#include "rueda/strategy.hpp"

#include <array>

#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

struct Entry {
  const char* name;
  MakeStrategy* make;
};

constexpr std::array<Entry, 6> kEntries = {{
    {"ddp", MakeDdp},
    {"horovod", MakeDdp},
    {"sharded", MakeSharded},
    {"adasum", MakeLocalSteps},
    {"local_sgd", MakeLocalSteps},
    {"diloco", MakeLocalSteps},
}};

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, const Model& model,
                                        torch::optim::Optimizer& optimizer,
                                        const StrategyOptions& options) {
  std::string known;
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.make(name, model, optimizer, options);
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  throw Error(RUEDA_INVALID_ARGUMENT, "there is no strategy '" + name + "'; there are " + known);
}

}  // namespace rueda::libtorch
