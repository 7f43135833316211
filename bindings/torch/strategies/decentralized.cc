// decentralized: ranks step by their own gradients, from the average of parameters (D-PSGD, arXiv
// 1705.09056; Bagua's "decentralized"). The average is under way while the gradients are computed.
#include <ATen/ops/empty_like.h>
#include <torch/optim/optimizer.h>

#include "bindings/torch/strategies/host_shards.h"
#include "bindings/torch/strategies/packed.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

class Decentralized : public BaseStrategy {
 public:
  Decentralized(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
                const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        shifts_(options.peers == "shift_one"),
        mine_(TrainedParameters()),
        // The average of all is the same by whatever way; the allreduce knows the best one.
        shards_(mine_.values(), options.process_set, options.hierarchical && shifts_,
                NameOf("parameters")) {
    if (!shifts_ && options.peers != "all") {
      Refuse("peers is '" + options.peers + "'; there are 'all' and 'shift_one'");
    }
    if (!shifts_) return;
    if (options.hierarchical) (void)OnlyDevice();
    const size_t count = shards_.peers().size();
    if (count > 1 && count % 2 != 0) {
      Refuse("peers 'shift_one' goes with an even number of " +
             std::string(options.hierarchical ? "hosts" : "ranks") + "; there are " +
             std::to_string(count));
    }
    if (count == 1) return;
    for (const at::Tensor& share : shards_.shares()) theirs_.push_back(at::empty_like(share));
  }

  at::Tensor forward(const at::Tensor& input) override {
    if (at::GradMode::is_enabled()) Begin();
    return BaseStrategy::forward(input);
  }
  void backward(const at::Tensor& loss, bool) override {
    Begin();
    loss.backward();
  }
  void synchronize() override {}  // they are this rank's own
  void step() override {
    const std::exception_ptr mistake = Mistake();
    Meet();
    optimizer().step();
    if (mistake != nullptr) std::rethrow_exception(mistake);
  }
  void skip_step() override {
    Meet();
    zero_grad();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  void finish() override {
    Begin();  // a rank may have, in a forward pass
    End();
    mine_.CopyIn();
    Allreduce(mine_.values(), "all", Average, {});
    mine_.CopyOut();
  }

 protected:
  void OnLoading() override {
    Begin();
    End();
  }

 private:
  void Meet() {
    Begin();
    End();
    ++steps_;
  }
  // The parameters stay as they are until the step.
  void Begin() {
    if (meeting_ || ranks() == 1) return;
    meeting_ = true;
    mine_.CopyIn();
    if (!shifts_) return Submit(RUEDA_ALLREDUCE, mine_.values(), -1);
    shards_.Average();
    if (theirs_.empty()) return;  // there is one host
    const int peer = shards_.peers()[static_cast<size_t>(Peer())];
    Submit(RUEDA_SEND, shards_.shares(), peer);
    Submit(RUEDA_RECV, theirs_, peer);
  }
  void Submit(rueda_kind kind, const std::vector<at::Tensor>& tensors, int peer) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = NameOf("parameters." + std::to_string(i));
      flights_.push_back(Operation::Submit(
          context(), {.kind = kind,
                      .tensors = tensors[i],
                      .in_place = kind != RUEDA_SEND,
                      .name = name,
                      .process_set = options().process_set,
                      .op = kind == RUEDA_ALLREDUCE ? Average : RUEDA_NO_REDUCE_OP,
                      .root = peer}));
    }
  }
  void End() {
    if (!std::exchange(meeting_, false)) return;
    for (const auto& flight : std::exchange(flights_, {})) flight->Wait();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < theirs_.size(); ++i) {
      shards_.shares()[i].add_(theirs_[i]).mul_(0.5);
    }
    if (shifts_) shards_.Gather();
    mine_.CopyOut();
  }
  // Whom this one meets: each of the first half each of the second in turn.
  int Peer() const {
    const int me = shards_.index(), half = static_cast<int>(shards_.peers().size()) / 2;
    const int shift = static_cast<int>(steps_ % half);
    return me < half ? half + (me + shift) % half : (me - half + half - shift) % half;
  }

  const bool shifts_;
  Packed mine_;
  HostShards shards_;               // of `mine_`
  std::vector<at::Tensor> theirs_;  // another one's shares
  bool meeting_ = false;            // from Begin to End
  std::vector<std::shared_ptr<Operation>> flights_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> MakeDecentralized(std::string name, const Model& model,
                                            torch::optim::Optimizer& optimizer,
                                            const StrategyOptions& options) {
  return std::make_unique<Decentralized>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
