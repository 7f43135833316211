// ddp, multi_worker, bytegrad: DistributedOptimizer behind the strategies' interface. ByteGrad
// (Bagua, arXiv 2107.01499) sends gradients in 8 bits, and remembers nothing of what that loses.
#include <optional>

#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

class Ddp : public BaseStrategy {
 public:
  Ddp(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
      const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options) {
    const bool is_bytegrad = this->name() == "bytegrad";
    const std::string compression = is_bytegrad ? "int8,no_feedback" : options.compression;
    if (is_bytegrad) ProbeOnDevices(compression);
    distributed_.emplace(
        optimizer, NamedParameters(),
        DistributedOptimizerOptions{.op = this->name() == "multi_worker" ? Sum : Average,
                                    .process_set = options.process_set,
                                    .gradient_predivide_factor = options.gradient_predivide_factor,
                                    .compression = compression,
                                    .name = options.name});
  }

  void backward(const at::Tensor& loss, bool last) override {
    std::optional<DistributedOptimizer::NoSync> hold;
    if (!last) hold.emplace(*distributed_);
    loss.backward();
  }
  void synchronize() override { distributed_->synchronize(); }
  void step() override { distributed_->step(); }
  void zero_grad() override { distributed_->zero_grad(); }

 private:
  std::optional<DistributedOptimizer> distributed_;
};

}  // namespace

std::unique_ptr<Strategy> MakeDdp(std::string name, const Model& model,
                                  torch::optim::Optimizer& optimizer,
                                  const StrategyOptions& options) {
  return std::make_unique<Ddp>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
