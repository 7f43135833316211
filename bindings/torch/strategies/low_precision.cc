// low_precision_decentralized: ranks in a ring step by their own gradients, and send both
// neighbours in 8 bits by how much they have moved (DCD-PSGD, arXiv 1803.06443; Bagua, arXiv
// 2107.01499).
//
// A rank knows what its neighbours know of it: `known`, of itself and of both, which all three
// change by the same decoded difference. So errors of the quantiser don't add up.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>

#include "bindings/torch/strategies/host_shards.h"
#include "bindings/torch/strategies/packed.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

constexpr int64_t kBlock = 512;  // numbers that share a scale

// Numbers that are worked on at a time on the CPU: they stay in cache.
constexpr int64_t kChunk = 256 * kBlock;

// 256 steps between the least and the largest number of each block, as the compressor int8.
struct Coded {
  at::Tensor levels;    // uint8, blocks x kBlock
  at::Tensor extremes;  // float32, blocks x 2

  static Coded Empty(int64_t elements, at::Device device) {
    const int64_t blocks = (elements + kBlock - 1) / kBlock;
    const auto options = at::TensorOptions().device(device);
    return {at::empty({blocks, kBlock}, options.dtype(at::kByte)),
            at::empty({blocks, 2}, options.dtype(at::kFloat))};
  }
  // Of the numbers from `begin` on, a multiple of kBlock.
  Coded From(int64_t begin, int64_t elements) const {
    const int64_t blocks = (elements + kBlock - 1) / kBlock;
    return {levels.narrow(0, begin / kBlock, blocks), extremes.narrow(0, begin / kBlock, blocks)};
  }
};

void Encode(const at::Tensor& values, const Coded& coded) {
  const int64_t more = coded.levels.numel() - values.numel();
  // Zeros would be the last block's least or largest.
  const at::Tensor padded =
      more == 0 ? values : at::cat({values, values.narrow(0, values.numel() - 1, 1).expand(more)});
  const at::Tensor rows = padded.view(coded.levels.sizes());
  const at::Tensor least = rows.amin(1, true), largest = rows.amax(1, true);
  const at::Tensor step = ((largest - least) / 255).clamp_min(1e-30);
  coded.levels.copy_(((rows - least) / step + 0.5).floor_().clamp_(0, 255));
  coded.extremes.copy_(at::cat({least, largest}, 1));
}

at::Tensor Decode(const Coded& coded, int64_t elements) {
  const at::Tensor least = coded.extremes.narrow(1, 0, 1);
  const at::Tensor step = (coded.extremes.narrow(1, 1, 1) - least) / 255;
  return (coded.levels.to(at::kFloat) * step + least).view({-1}).narrow(0, 0, elements);
}

// For parts of a vector, one behind another.
template <typename Fn>
void ForChunks(const at::Tensor& vector, Fn fn) {
  const int64_t elements = vector.numel(), chunk = vector.is_cpu() ? kChunk : elements;
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    fn(begin, std::min(chunk, elements - begin));
  }
}

class LowPrecision : public BaseStrategy {
 public:
  LowPrecision(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
               const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        packed_(TrainedParameters()),
        shards_(packed_.values(), options.process_set, options.hierarchical, NameOf("parameters")) {
    for (const at::Tensor& parameter : TrainedParameters()) {
      if (parameter.scalar_type() != at::kFloat) Refuse("is for parameters of float32");
    }
    if (packed_.values().empty()) Refuse("all parameters are frozen");
    const at::Device device = OnlyDevice();
    const std::vector<int>& peers = shards_.peers();
    const size_t count = peers.size(), me = static_cast<size_t>(shards_.index());
    left_ = peers[(me + count - 1) % count];
    right_ = peers[(me + 1) % count];
    const int64_t elements = shards_.shares()[0].numel();
    for (Coded* coded : {&change_, &from_left_, &from_right_}) {
      *coded = Coded::Empty(elements, device);
    }
    Remember();
  }

  void backward(const at::Tensor& loss, bool) override { loss.backward(); }
  void synchronize() override {}  // they are this rank's own
  void step() override {
    const std::exception_ptr mistake = Mistake();
    optimizer().step();
    if (ranks() > 1) Exchange();
    if (mistake != nullptr) std::rethrow_exception(mistake);
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
    shards_.Average();
    for (at::Tensor& known : known_) known = shards_.shares()[0].clone();
  }

  void Exchange() {
    const at::NoGradGuard no_grad;
    packed_.CopyIn();
    shards_.Average();
    if (shards_.peers().size() > 1) ExchangeShare();
    shards_.Gather();
    packed_.CopyOut();
  }

  void ExchangeShare() {
    const at::Tensor& share = shards_.shares()[0];
    auto& [own, left, right] = known_;
    ForChunks(share, [&](int64_t begin, int64_t count) {
      const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, count); };
      Encode(part(share) + part(left) / 3 + part(right) / 3 - part(own) * (5.0 / 3),
             change_.From(begin, count));
    });
    std::vector<std::shared_ptr<Operation>> flights;
    // With two ranks both neighbours are one: what goes left has another name than what goes right.
    Submit(RUEDA_SEND, change_, left_, ".left", &flights);
    Submit(RUEDA_SEND, change_, right_, ".right", &flights);
    Submit(RUEDA_RECV, from_right_, right_, ".left", &flights);
    Submit(RUEDA_RECV, from_left_, left_, ".right", &flights);
    for (const auto& flight : flights) flight->Wait();
    ForChunks(share, [&](int64_t begin, int64_t count) {
      const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, count); };
      part(own).add_(Decode(change_.From(begin, count), count));
      part(left).add_(Decode(from_left_.From(begin, count), count));
      part(right).add_(Decode(from_right_.From(begin, count), count));
      part(share).copy_(part(own));
    });
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
  HostShards shards_;  // of `packed_`
  int left_ = 0;       // world ranks
  int right_ = 0;
  std::array<at::Tensor, 3>
      known_;  // this rank's share of parameters, and the left's and right's, as all know
  Coded change_, from_left_, from_right_;
};

}  // namespace

std::unique_ptr<Strategy> MakeLowPrecision(std::string name, const Model& model,
                                           torch::optim::Optimizer& optimizer,
                                           const StrategyOptions& options) {
  return std::make_unique<LowPrecision>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
