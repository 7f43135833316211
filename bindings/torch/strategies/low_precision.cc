// low_precision_decentralized: ranks in a ring step by their own gradients, and send both
// neighbours in 8 bits by how much they have moved (DCD-PSGD, arXiv 1803.06443; Bagua, arXiv
// 2107.01499).
//
// A rank knows what its neighbours know of it: `known`, of itself and of both, which all three
// change by the same decoded difference. So errors of the quantiser don't add up.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <array>

#include "bindings/torch/strategies/packed.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

constexpr int64_t kBlock = 512;  // numbers that share a scale

// 256 steps between the least and the largest number of each block, as the compressor int8.
struct Coded {
  at::Tensor levels;    // uint8, blocks x kBlock
  at::Tensor extremes;  // float32, blocks x 2

  static Coded Empty(int64_t elements) {
    const int64_t blocks = (elements + kBlock - 1) / kBlock;
    return {at::empty({blocks, kBlock}, at::kByte), at::empty({blocks, 2}, at::kFloat)};
  }
};

Coded Encode(const at::Tensor& values) {
  const int64_t blocks = (values.numel() + kBlock - 1) / kBlock;
  at::Tensor padded = at::zeros({blocks * kBlock}, at::kFloat);
  padded.narrow(0, 0, values.numel()).copy_(values);
  // Zeros would be the last block's least or largest.
  padded.narrow(0, values.numel(), padded.numel() - values.numel()).copy_(values[-1]);
  const at::Tensor rows = padded.view({blocks, kBlock});
  const at::Tensor least = rows.amin(1), largest = rows.amax(1);
  const at::Tensor step = ((largest - least) / 255).clamp_min(1e-30);
  const at::Tensor levels =
      ((rows - least.unsqueeze(1)) / step.unsqueeze(1) + 0.5).floor_().clamp_(0, 255);
  return {levels.to(at::kByte), at::stack({least, largest}, 1)};
}

at::Tensor Decode(const Coded& coded, int64_t elements) {
  const at::Tensor least = coded.extremes.narrow(1, 0, 1);
  const at::Tensor step = (coded.extremes.narrow(1, 1, 1) - least) / 255;
  return (coded.levels.to(at::kFloat) * step + least).view({-1}).narrow(0, 0, elements);
}

class LowPrecision : public BaseStrategy {
 public:
  LowPrecision(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
               const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options), packed_(TrainedParameters()) {
    for (const at::Tensor& parameter : TrainedParameters()) {
      if (parameter.scalar_type() != at::kFloat) Refuse("is for parameters of float32");
    }
    if (packed_.values().empty()) Refuse("all parameters are frozen");
    const std::vector<int> members = options.process_set.ranks();
    left_ = members[static_cast<size_t>((index() + ranks() - 1) % ranks())];
    right_ = members[static_cast<size_t>((index() + 1) % ranks())];
    Remember();
  }

  void backward(const at::Tensor& loss, bool) override { loss.backward(); }
  void synchronize() override {}  // they are this rank's own
  void step() override {
    optimizer().step();
    if (ranks() > 1) Exchange();
  }
  void skip_step() override {  // its neighbours don't
    zero_grad();
    if (ranks() > 1) Exchange();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  void finish() override {
    packed_.CopyIn();
    Allreduce(packed_.values(), "all", Average, {});
    packed_.CopyOut();
    Remember();
  }

 protected:
  bool IsCompressed() const override { return false; }  // what is lost is in `known`
  void OnLoaded() override { Remember(); }

 private:
  // All ranks have the same.
  void Remember() {
    packed_.CopyIn();
    for (at::Tensor& known : known_) known = packed_.values()[0].clone();
  }

  void Exchange() {
    const at::NoGradGuard no_grad;
    packed_.CopyIn();
    const at::Tensor& values = packed_.values()[0];
    auto& [own, left, right] = known_;
    const Coded change = Encode(values + left / 3 + right / 3 - own * (5.0 / 3));
    Coded from_left = Coded::Empty(values.numel()), from_right = Coded::Empty(values.numel());
    std::vector<std::shared_ptr<Operation>> flights;
    // With two ranks both neighbours are one: what goes left has another name than what goes right.
    Submit(RUEDA_SEND, change, left_, ".left", &flights);
    Submit(RUEDA_SEND, change, right_, ".right", &flights);
    Submit(RUEDA_RECV, from_right, right_, ".left", &flights);
    Submit(RUEDA_RECV, from_left, left_, ".right", &flights);
    for (const auto& flight : flights) flight->Wait();
    own.add_(Decode(change, values.numel()));
    left.add_(Decode(from_left, values.numel()));
    right.add_(Decode(from_right, values.numel()));
    packed_.values()[0].copy_(own);
    packed_.CopyOut();
  }

  void Submit(rueda_kind kind, const Coded& coded, int peer, const std::string& direction,
              std::vector<std::shared_ptr<Operation>>* flights) {
    for (const auto& [tensor, what] :
         {std::pair<at::Tensor, const char*>{coded.levels, "levels"},
          std::pair<at::Tensor, const char*>{coded.extremes, "extremes"}}) {
      const std::string name = NameOf(what + direction);
      flights->push_back(Operation::Submit(context(), {.kind = kind,
                                                       .tensors = tensor,
                                                       .in_place = kind == RUEDA_RECV,
                                                       .name = name,
                                                       .process_set = options().process_set,
                                                       .root = peer}));
    }
  }

  Packed packed_;
  int left_ = 0;  // world ranks
  int right_ = 0;
  std::array<at::Tensor, 3>
      known_;  // this rank's parameters, and the left's and right's, as all know
};

}  // namespace

std::unique_ptr<Strategy> MakeLowPrecision(std::string name, const Model& model,
                                           torch::optim::Optimizer& optimizer,
                                           const StrategyOptions& options) {
  return std::make_unique<LowPrecision>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
