// decentralized: ranks step by their own gradients, from the average of parameters (D-PSGD, arXiv
// 1705.09056; Bagua's "decentralized"). The average is under way while the gradients are computed.
#include <torch/optim/optimizer.h>

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
        theirs_(TrainedParameters()) {
    if (!shifts_ && options.peers != "all") {
      Refuse("peers is '" + options.peers + "'; there are 'all' and 'shift_one'");
    }
    if (shifts_ && ranks() > 1 && ranks() % 2 != 0) {
      Refuse("peers 'shift_one' goes with an even number of ranks; there are " +
             std::to_string(ranks()));
    }
    for (const int rank : options.process_set.ranks()) members_.push_back(rank);
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
    Meet();
    optimizer().step();
  }
  void skip_step() override {
    Meet();
    zero_grad();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  void finish() override {
    if (!flights_.empty()) End();
    mine_.CopyIn();
    Allreduce(mine_.values(), "all", Average, {});
    mine_.CopyOut();
  }

 private:
  void Meet() {
    Begin();
    End();
    ++steps_;
  }
  // The parameters stay as they are until the step.
  void Begin() {
    if (!flights_.empty() || ranks() == 1) return;
    mine_.CopyIn();
    if (shifts_) {
      const int peer = members_[static_cast<size_t>(PeerOf(index()))];
      Submit(RUEDA_SEND, mine_.values(), peer);
      Submit(RUEDA_RECV, theirs_.values(), peer);
    } else {
      Submit(RUEDA_ALLREDUCE, mine_.values(), -1);
    }
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
    const std::vector<std::shared_ptr<Operation>> flights = std::exchange(flights_, {});
    for (const auto& flight : flights) flight->Wait();
    if (flights.empty()) return;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; shifts_ && i < mine_.values().size(); ++i) {
      mine_.values()[i].add_(theirs_.values()[i]).mul_(0.5);
    }
    mine_.CopyOut();
  }
  // Each of the first half meets each of the second in turn.
  int PeerOf(int member) const {
    const int half = ranks() / 2;
    const int shift = static_cast<int>(steps_ % half);
    return member < half ? half + (member + shift) % half : (member - half + half - shift) % half;
  }

  const bool shifts_;
  std::vector<int> members_;  // world ranks
  Packed mine_, theirs_;
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
