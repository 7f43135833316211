// dp, ddp2, mirrored: replicas of the model in one process, which share out each batch. With ddp2
// the processes' gradients are averaged on top.
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
    if (!between_processes_ && ranks() > 1) {
      Refuse("is for one process, and here are " + std::to_string(ranks()) +
             ", each of which would train a model of its own: ddp2 averages between processes");
    }
    if (options.replicas < 1) {
      Refuse("replicas is " + std::to_string(options.replicas) + "; at least 1");
    }
    (void)OnlyDevice();
    replicas_.emplace(model, NamedParameters(), options.replicas);
  }

  at::Tensor forward(const at::Tensor& input) override { return replicas_->Forward(input); }
  void backward(const at::Tensor& loss, bool last) override {
    if (synchronized_) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "strategy " + name() +
                      ": backward() after the gradients were reduced: several passes in a step go "
                      "with backward(loss, false) for all but the last");
    }
    replicas_->RunBackward(loss, /*hold=*/!last);
  }
  void synchronize() override {
    if (synchronized_) return;
    replicas_->Synchronize();
    if (between_processes_) AverageGradients([](const Parameter&) { return true; });
    synchronized_ = true;
  }
  void step() override {
    CheckParameters();
    synchronize();
    synchronized_ = false;
    optimizer().step();
  }
  void zero_grad() override {
    synchronized_ = false;
    replicas_->ZeroGrad();
  }

 private:
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
