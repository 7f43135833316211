#include "bindings/torch/optimizer_fields.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>

namespace rueda::libtorch {
namespace {

namespace optim = torch::optim;

void Show(optim::SGDOptions& options, FieldVisitor& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
void Show(optim::SGDParamState& state, FieldVisitor& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

// Of Adam and AdamW.
template <typename Options>
void ShowAdamOptions(Options& options, FieldVisitor& visit) {
  visit("lr", options.lr());
  visit("beta1", "beta2", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <typename State>
void ShowAdamState(State& state, FieldVisitor& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}
void Show(optim::AdamOptions& options, FieldVisitor& visit) {
  ShowAdamOptions(options, visit);
}
void Show(optim::AdamParamState& state, FieldVisitor& visit) {
  ShowAdamState(state, visit);
}
void Show(optim::AdamWOptions& options, FieldVisitor& visit) {
  ShowAdamOptions(options, visit);
}
void Show(optim::AdamWParamState& state, FieldVisitor& visit) {
  ShowAdamState(state, visit);
}

void Show(optim::RMSpropOptions& options, FieldVisitor& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}
void Show(optim::RMSpropParamState& state, FieldVisitor& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

void Show(optim::AdagradOptions& options, FieldVisitor& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}
void Show(optim::AdagradParamState& state, FieldVisitor& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

template <typename Optimizer, typename Options, typename State>
constexpr OptimizerKind MakeKind(const char* name) {
  return {
      .name = name,
      .is =
          [](const optim::Optimizer& optimizer) {
            return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
          },
      .show_options = [](optim::OptimizerOptions& options,
                         FieldVisitor& visit) { Show(static_cast<Options&>(options), visit); },
      .assign_options =
          [](const optim::OptimizerOptions& from, optim::OptimizerOptions& to) {
            static_cast<Options&>(to) = static_cast<const Options&>(from);
          },
      .new_state = []() -> std::unique_ptr<optim::OptimizerParamState> {
        return std::make_unique<State>();
      },
      .show_state = [](optim::OptimizerParamState& state,
                       FieldVisitor& visit) { Show(static_cast<State&>(state), visit); },
  };
}

constexpr std::array<OptimizerKind, kOptimizerKindCount> kKinds = {
    MakeKind<optim::SGD, optim::SGDOptions, optim::SGDParamState>("SGD"),
    MakeKind<optim::Adam, optim::AdamOptions, optim::AdamParamState>("Adam"),
    MakeKind<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>("AdamW"),
    MakeKind<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>("RMSprop"),
    MakeKind<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>("Adagrad"),
};

}  // namespace

const OptimizerKind& OptimizerKindAt(int index) {
  return kKinds.at(static_cast<size_t>(index));
}

int OptimizerKindIndex(const optim::Optimizer& optimizer) {
  const auto it = std::find_if(kKinds.begin(), kKinds.end(),
                               [&](const OptimizerKind& kind) { return kind.is(optimizer); });
  return it == kKinds.end() ? -1 : static_cast<int>(it - kKinds.begin());
}

}  // namespace rueda::libtorch
