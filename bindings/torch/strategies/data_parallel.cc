// dp, ddp2, mirrored: replicas of the model in one process, which share out each batch. With ddp2
// the processes' gradients are averaged on top.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include <optional>

#include "bindings/torch/strategies/replicas.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

class DataParallel : public BaseStrategy {
 public:
  DataParallel(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
               const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        between_processes_(this->name() == "ddp2") {
    if (options.replicas < 1) {
      Refuse("replicas is " + std::to_string(options.replicas) + "; at least 1");
    }
    replicas_.emplace(model, NamedParameters(), options.replicas);
  }

  at::Tensor forward(const at::Tensor& input) override { return replicas_->Forward(input); }
  void backward(const at::Tensor& loss, bool last) override {
    replicas_->Hold(!last);
    loss.backward();
  }
  void synchronize() override {
    if (synchronized_) return;
    replicas_->Synchronize();
    if (between_processes_) Average();
    synchronized_ = true;
  }
  void step() override {
    synchronize();
    synchronized_ = false;
    optimizer().step();
  }
  void zero_grad() override {
    synchronized_ = false;
    replicas_->ZeroGrad();
  }

 private:
  // Over the processes; one that has no gradient counts as zeros.
  void Average() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    std::vector<const char*> suffixes;
    for (const Parameter& parameter : parameters()) {
      const at::Tensor& tensor = parameter.tensor;
      if (!tensor.requires_grad()) continue;
      at::Tensor& gradient = tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(tensor);
      if (gradient.is_sparse()) gradient = gradient.to_dense();
      gradients.push_back(gradient);
      suffixes.push_back(parameter.suffix.c_str());
    }
    Allreduce(gradients, "gradient", rueda::Average, suffixes);
  }

  const bool between_processes_;
  std::optional<Replicas> replicas_;
  bool synchronized_ = false;
};

}  // namespace

std::unique_ptr<Strategy> MakeDataParallel(std::string name, const Model& model,
                                           torch::optim::Optimizer& optimizer,
                                           const StrategyOptions& options) {
  return std::make_unique<DataParallel>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
