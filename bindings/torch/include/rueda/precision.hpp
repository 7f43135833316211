// Mixed precision for training loops: forward passes in bfloat16 or float16, parameters and
// optimizer in float32 (arXiv 1710.03740), with any Strategy (strategy.hpp).
//
//     #include <rueda/precision.hpp>
//     namespace hvd = rueda::libtorch;
//
//     hvd::LossScaler scaler;  // float16 only: bfloat16 reaches as far as float32 and needs none
//     for (const Batch& batch : this_ranks_batches) {
//       strategy->zero_grad();
//       at::Tensor loss;
//       {
//         const hvd::Autocast autocast(at::kHalf);
//         loss = torch::mse_loss(strategy->forward(batch.x), batch.y);
//       }
//       strategy->backward(scaler.scale(loss));
//       scaler.step(*strategy);  // or skips the step, on all ranks alike
//     }
#ifndef RUEDA_PRECISION_HPP_
#define RUEDA_PRECISION_HPP_

#include <cstdint>
#include <vector>

#include "rueda/strategy.hpp"

namespace rueda::libtorch {

// While it lives, operators of this thread, on the CPU and on CUDA, compute in `type` where torch's
// autocast deems that safe (matrix products, convolutions), in float32 where it does not (losses),
// as under Python's torch.autocast("cpu", type) and torch.autocast("cuda", type). For forward
// passes and losses; backward passes then have the types of the forward pass by themselves. kFloat
// turns autocast off. May be nested; the one made last goes first. The replicas of dp, ddp2 and
// mirrored compute as their caller does.
class RUEDA_TORCH_API Autocast {
 public:
  // RUEDA_INVALID_ARGUMENT: `type` is not kBFloat16, kHalf or kFloat.
  explicit Autocast(at::ScalarType type);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  struct Before {
    at::DeviceType device;
    bool enabled;
    at::ScalarType type;
  };
  RUEDA_TORCH_LOCAL void Set(at::DeviceType device, at::ScalarType type);

  std::vector<Before> before_;  // by device
};

// Of a LossScaler; the same on all ranks. The defaults are those of torch.amp.GradScaler.
struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  // Steps in a row with finite gradients after which the scale grows.
  int64_t growth_interval = 2000;
};

// Multiplies losses, so that float16 gradients don't vanish, and divides gradients by the same
// before the optimizer sees them (arXiv 1710.03740, 3.2; torch.amp.GradScaler). When gradients have
// become infinite or NaN the step is skipped and the scale reduced; when they have been finite for
// long, it grows.
//
// What the ranks agree on: with strategies whose gradients are reduced, all skip the same steps and
// have the same scale. With ddp, multi_worker, bytegrad, ddp2, dp and mirrored that takes no
// message: one rank's infinity is in the average that all have. With sharded, fsdp and pipeline,
// where each rank has the gradients of its part, and with qadam after its warm-up, it takes one
// number's allreduce a step. With those that step by themselves (local_sgd, diloco, adasum,
// decentralized, low_precision_decentralized, async) each rank has its own scale, and skips its own
// steps: its parameters stay as they are for that step, and averages are made as always.
//
// The gradients of one strategy; for one thread at a time.
class RUEDA_TORCH_API LossScaler {
 public:
  // RUEDA_INVALID_ARGUMENT: scale or interval not positive, growth_factor below 1, backoff_factor
  // not between 0 and 1.
  explicit LossScaler(LossScalerOptions options = {});

  // The loss to call the strategy's backward() with, in float32 at least.
  at::Tensor scale(const at::Tensor& loss) const;

  // Waits for the gradients and divides them by the scale: for what comes before the step, such as
  // clip_grad_norm(). step() does it otherwise. Whether they are finite; clipping those that are
  // not does no harm. Collective as the strategy's step(). RUEDA_FAILED_PRECONDITION: it was done
  // for this step already.
  bool unscale(Strategy& strategy);

  // Lets the strategy step, or skips that, and sets the next scale. Returns whether it has stepped.
  // RUEDA_FAILED_PRECONDITION: the scale has become so small that no gradients are going to be
  // finite; the loss itself is not, presumably.
  bool step(Strategy& strategy);

  double scale() const { return state_.scale; }

  // What a checkpoint must have besides the strategy's; of each rank with those that step by
  // themselves. Between steps.
  struct State {
    double scale = 0;
    int64_t finite_steps = 0;  // in a row, since the scale changed
    int64_t skipped_steps = 0;
  };
  const State& state() const { return state_; }
  // RUEDA_INVALID_ARGUMENT: the scale is not positive.
  void set_state(const State& state);

 private:
  enum class Gradients { kScaled, kFinite, kNotFinite };

  const LossScalerOptions options_;
  State state_;
  Gradients gradients_ = Gradients::kScaled;
};

}  // namespace rueda::libtorch

#endif  // RUEDA_PRECISION_HPP_
