// adasum, local_sgd, diloco: ranks step by themselves, and combine how far they have come.
//
// adasum: after each step, by Adasum (arXiv 2006.02924; Horovod's op=Adasum for optimizers).
// local_sgd: every so many steps, by averaging (arXiv 1805.09767). diloco: and an outer optimizer,
// SGD with Nesterov's momentum, takes the average for its gradient (arXiv 2311.08105).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

class LocalSteps : public BaseStrategy {
 public:
  LocalSteps(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
             const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        op_(this->name() == "adasum" ? Adasum : Average),
        period_(this->name() == "adasum" ? 1 : options.local_steps),
        has_outer_(this->name() == "diloco") {
    if (period_ < 1) Refuse("local_steps is " + std::to_string(period_) + "; at least 1");
    if (has_outer_ && !(options.outer_lr > 0)) Refuse("outer_lr must be above 0");
    if (has_outer_ && !(options.outer_momentum >= 0 && options.outer_momentum < 1)) {
      Refuse("outer_momentum must be at least 0 and below 1");
    }
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : parameters()) {
      Origin origin;
      origin.start = parameter.tensor.detach().clone();
      origin.moves = parameter.tensor.requires_grad();
      if (has_outer_) origin.momentum = at::zeros_like(origin.start);
      origins_.push_back(std::move(origin));
    }
  }

  void backward(const at::Tensor& loss, bool) override { loss.backward(); }
  void synchronize() override {}  // they are this rank's own
  void step() override {
    CheckParameters();
    optimizer().step();
    CountStep();
  }
  // Of this rank alone: it goes on in step with the others.
  void skip_step() override {
    zero_grad();
    CountStep();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  void finish() override {
    if (steps_ > 0) Combine();
  }

 protected:
  void OnLoaded() override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < origins_.size(); ++i) origins_[i].start.copy_(parameters()[i].tensor);
    steps_ = 0;
  }
  NamedTensors Extras() override {
    NamedTensors extras;
    for (size_t i = 0; has_outer_ && i < origins_.size(); ++i) {
      extras.emplace_back("outer_momentum." + parameters()[i].name, origins_[i].momentum);
    }
    return extras;
  }

 private:
  // Where a parameter was when all ranks had the same.
  struct Origin {
    at::Tensor start;
    at::Tensor momentum;  // diloco
    bool moves = false;   // it was not frozen then
  };

  void CountStep() {
    if (++steps_ == period_) Combine();
  }

  void Combine() {
    steps_ = 0;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> moved;
    std::vector<const char*> suffixes;
    std::vector<size_t> indices;
    for (size_t i = 0; i < origins_.size(); ++i) {
      const at::Tensor& parameter = parameters()[i].tensor;
      const bool moves = parameter.requires_grad();
      if (moves || origins_[i].moves) {
        indices.push_back(i);
        suffixes.push_back(parameters()[i].suffix.c_str());
        moved.push_back(parameter.detach());
      }
      origins_[i].moves = moves;
    }
    // In the parameters' own memory: no other is needed.
    for (size_t k = 0; k < moved.size(); ++k) moved[k].sub_(origins_[indices[k]].start);
    // The library has Adasum on the CPU alone.
    std::vector<at::Tensor> sent;
    for (const at::Tensor& change : moved) sent.push_back(op_ == Adasum ? change.cpu() : change);
    try {
      Allreduce(sent, "change", op_, suffixes);
      for (size_t k = 0; k < moved.size(); ++k) {
        if (!sent[k].is_same(moved[k])) moved[k].copy_(sent[k]);
      }
    } catch (...) {
      for (size_t k = 0; k < moved.size(); ++k) moved[k].copy_(origins_[indices[k]].start);
      throw;
    }
    for (size_t k = 0; k < moved.size(); ++k) {
      Origin& origin = origins_[indices[k]];
      if (has_outer_) {
        // The gradient is the change's opposite.
        origin.momentum.mul_(options().outer_momentum).sub_(moved[k]);
        moved[k].sub_(origin.momentum, options().outer_momentum).mul_(options().outer_lr);
      }
      origin.start.add_(moved[k]);
      moved[k].copy_(origin.start);
    }
  }

  const reduce_op op_;
  const int period_;
  const bool has_outer_;
  std::vector<Origin> origins_;  // by parameter
  int steps_ = 0;                // since the ranks were equal
};

}  // namespace

std::unique_ptr<Strategy> MakeLocalSteps(std::string name, const Model& model,
                                         torch::optim::Optimizer& optimizer,
                                         const StrategyOptions& options) {
  return std::make_unique<LocalSteps>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
