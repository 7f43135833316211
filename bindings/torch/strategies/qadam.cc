// qadam: Adam whose variance stays as it is after a warm-up; from then on ranks average the
// momentum, compressed, instead of gradients (QAdam: Bagua, arXiv 2107.01499; 1-bit Adam: arXiv
// 2102.02888).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <utility>

#include "bindings/torch/compressible.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

namespace optim = torch::optim;

class QAdam : public BaseStrategy {
 public:
  QAdam(std::string name, const Model& model, optim::Optimizer& optimizer,
        const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        compression_(options.compression.empty() ? "int8" : options.compression),
        variance_steps_(at::zeros({static_cast<int64_t>(parameters().size())}, at::kLong)) {
    if (options.warmup_steps < 1) Refuse("warmup_steps must be at least 1");
    bool amsgrad = false;
    for (auto& group : optimizer.param_groups()) {
      if (IsAdam()) {
        amsgrad |= static_cast<optim::AdamOptions&>(group.options()).amsgrad();
      } else if (IsAdamW()) {
        amsgrad |= static_cast<optim::AdamWOptions&>(group.options()).amsgrad();
      } else {
        Refuse("needs an Adam or AdamW");
      }
    }
    if (amsgrad) Refuse("does not go with amsgrad");
    if (options.compression.empty()) ProbeOnDevices(compression_);
  }

  void backward(const at::Tensor& loss, bool) override {
    synchronized_ = false;
    loss.backward();
  }
  // Those after the warm-up are this rank's own.
  void synchronize() override {
    if (synchronized_) return;
    AverageGradients([this](const Parameter& parameter) { return !IsSteady(parameter); });
    synchronized_ = true;
  }
  bool unscale(double factor) override {
    if (!IsAnySteady()) return BaseStrategy::unscale(factor);
    synchronize();
    std::vector<at::Tensor> gradients;
    for (const Parameter& parameter : parameters()) gradients.push_back(parameter.tensor.grad());
    return UnscaleTogether(gradients, factor);  // all average their momentum, or none
  }
  void step() override {
    CheckParameters();
    synchronize();
    synchronized_ = false;
    // Who is past the warm-up is known before the others come there.
    std::vector<const Parameter*> steady;
    std::vector<at::Tensor> gradients;
    for (const Parameter& parameter : parameters()) {
      if (!parameter.tensor.requires_grad() || !IsSteady(parameter)) continue;
      steady.push_back(&parameter);
      gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), at::Tensor()));
    }
    optimizer().step();  // those in the warm-up
    for (size_t i = 0; i < steady.size(); ++i) steady[i]->tensor.mutable_grad() = gradients[i];
    if (steady.empty()) return;
    if (IsAdam()) {
      StepByMomentum<optim::AdamOptions, optim::AdamParamState>(steady);
    } else {
      StepByMomentum<optim::AdamWOptions, optim::AdamWParamState>(steady);
    }
  }
  void zero_grad() override {
    synchronized_ = false;
    optimizer().zero_grad();
  }

 protected:
  bool IsCompressed() const override { return true; }
  NamedTensors Extras() override { return {{"variance_steps", variance_steps_}}; }
  void OnLoading() override { variance_steps_.zero_(); }  // another strategy's file has none

 private:
  bool IsAdam() const { return dynamic_cast<optim::Adam*>(&optimizer()) != nullptr; }
  bool IsAdamW() const { return dynamic_cast<optim::AdamW*>(&optimizer()) != nullptr; }

  template <typename State>
  State* StateOf(const at::Tensor& parameter) const {
    const auto it = optimizer().state().find(parameter.unsafeGetTensorImpl());
    return it == optimizer().state().end() ? nullptr : static_cast<State*>(it->second.get());
  }

  // How often it has been stepped: the same on all ranks, and known after loading.
  int64_t StepsOf(const Parameter& parameter) const {
    if (IsAdam()) {
      const auto* const state = StateOf<optim::AdamParamState>(parameter.tensor);
      return state == nullptr ? 0 : state->step();
    }
    const auto* const state = StateOf<optim::AdamWParamState>(parameter.tensor);
    return state == nullptr ? 0 : state->step();
  }
  // Whether its warm-up is over, and its variance stays. One that was unfrozen has its own.
  bool IsSteady(const Parameter& parameter) const {
    return StepsOf(parameter) >= options().warmup_steps;
  }
  bool IsAnySteady() const {
    for (const Parameter& parameter : parameters()) {
      if (parameter.tensor.requires_grad() && IsSteady(parameter)) return true;
    }
    return false;
  }

  template <typename Options, typename State>
  void StepByMomentum(const std::vector<const Parameter*>& moved) {
    constexpr bool kDecoupled = std::is_same_v<Options, optim::AdamWOptions>;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> steps;
    for (const Parameter* const parameter : moved) {
      auto* const state = StateOf<State>(parameter->tensor);
      const auto& group = OptionsOf<Options>(*parameter);
      at::Tensor gradient = parameter->tensor.grad();
      if (!gradient.defined()) gradient = at::zeros_like(parameter->tensor);
      if (gradient.is_sparse()) gradient = gradient.to_dense();
      if (!kDecoupled && group.weight_decay() != 0) {
        gradient = gradient.add(parameter->tensor, group.weight_decay());
      }
      int64_t& variance_steps = VarianceStepsOf(*parameter);
      if (variance_steps == 0) variance_steps = state->step();
      state->exp_avg().lerp_(gradient, 1 - std::get<0>(group.betas()));
      state->step(state->step() + 1);
      steps.push_back(state->exp_avg() / DivisorOf<Options>(*state, *parameter));
      // What never had a gradient in the warm-up has no scale: it stays where it is.
      steps.back().masked_fill_(state->exp_avg_sq() == 0, 0);
    }
    // Momenta over their scales, which all ranks have alike: what compression loses is small beside
    // each step. Of momenta it could be many times the step where the variance is small.
    for (const bool compressible : {true, false}) {
      std::vector<at::Tensor> tensors;
      std::vector<const char*> suffixes;
      for (size_t i = 0; i < moved.size(); ++i) {
        if (IsCompressible(steps[i]) != compressible) continue;
        tensors.push_back(steps[i]);
        suffixes.push_back(moved[i]->suffix.c_str());
      }
      Allreduce(tensors, compressible ? "momentum" : "whole momentum", Average, suffixes,
                compressible ? compression_ : "");
    }
    for (size_t i = 0; i < moved.size(); ++i) {
      const Parameter& parameter = *moved[i];
      auto* const state = StateOf<State>(parameter.tensor);
      const auto& group = OptionsOf<Options>(parameter);
      const double momentum_share = 1 - std::pow(std::get<0>(group.betas()), state->step());
      if (kDecoupled) parameter.tensor.mul_(1 - group.lr() * group.weight_decay());
      parameter.tensor.sub_(steps[i], group.lr() / momentum_share);
      state->exp_avg() = steps[i].mul_(DivisorOf<Options>(*state, parameter));
    }
  }

  // By what the momentum is divided: the variance as it was left, without its bias.
  template <typename Options, typename State>
  at::Tensor DivisorOf(const State& state, const Parameter& parameter) {
    const auto& group = OptionsOf<Options>(parameter);
    const auto steps = static_cast<double>(VarianceStepsOf(parameter));
    const double share = 1 - std::pow(std::get<1>(group.betas()), steps);
    return state.exp_avg_sq().sqrt().div_(std::sqrt(share)).add_(group.eps());
  }

  // How many gradients its variance is of; 0: it does not stay yet.
  int64_t& VarianceStepsOf(const Parameter& parameter) {
    return variance_steps_.mutable_data_ptr<int64_t>()[&parameter - parameters().data()];
  }

  template <typename Options>
  const Options& OptionsOf(const Parameter& parameter) const {
    return static_cast<const Options&>(optimizer().param_groups()[parameter.group].options());
  }

  const std::string compression_;
  const at::Tensor variance_steps_;  // by place in parameters()
  bool synchronized_ = false;
};

}  // namespace

std::unique_ptr<Strategy> MakeQAdam(std::string name, const Model& model,
                                    torch::optim::Optimizer& optimizer,
                                    const StrategyOptions& options) {
  return std::make_unique<QAdam>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
