/// \file
/// Mixed precision for training loops: forward passes in bfloat16 or float16, parameters and
/// optimizer in float32 (arXiv 1710.03740), with any Strategy (strategy.hpp).
///
///     #include <rueda/precision.hpp>
///     namespace hvd = rueda::libtorch;
///
///     hvd::LossScaler scaler;  // float16 only: bfloat16 has the range of float32 and needs none
///     for (const Batch& batch : this_ranks_batches) {
///       strategy->zero_grad();
///       at::Tensor loss;
///       {
///         const hvd::Autocast autocast(at::kHalf);
///         loss = torch::mse_loss(strategy->forward(batch.x), batch.y);
///       }
///       strategy->backward(scaler.scale(loss));
///       scaler.step(*strategy);  // or skips the step, on all ranks
///     }
#ifndef RUEDA_PRECISION_HPP_
#define RUEDA_PRECISION_HPP_

#include <cstdint>
#include <vector>

#include "rueda/strategy.hpp"

namespace rueda::libtorch {

/// \addtogroup lt_precision
/// @{

/// Turns on autocast for this thread while it lives, on the CPU and on CUDA. Operators that torch's
/// autocast deems safe (matrix products, convolutions) compute in `type`, others (losses) in
/// float32, as under Python's torch.autocast("cpu", type) and torch.autocast("cuda", type).
///
/// Use it for forward passes and losses; backward passes then have the forward pass's types. kFloat
/// turns autocast off. Objects may be nested; destroy the last one first. The replicas of dp, ddp2
/// and mirrored compute as their caller does.
class RUEDA_TORCH_API Autocast {
 public:
  /// RUEDA_INVALID_ARGUMENT: `type` is not kBFloat16, kHalf or kFloat.
  explicit Autocast(at::ScalarType type);
  /// Restores what was set before.
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

/// Options of a LossScaler; the same on all ranks. The defaults are those of torch.amp.GradScaler.
struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  /// The scale grows after this many steps in a row with finite gradients.
  int64_t growth_interval = 2000;
};

/// Multiplies losses, so that float16 gradients don't vanish, and divides gradients by the same
/// factor before the optimizer sees them (arXiv 1710.03740, 3.2; torch.amp.GradScaler). When
/// gradients have become infinite or NaN, it skips the step and reduces the scale. When they have
/// been finite for long, it raises the scale.
///
/// **Agreement.** With strategies that reduce gradients, all ranks skip the same steps and have the
/// same scale:
///
/// * ddp, multi_worker, bytegrad, ddp2, dp and mirrored need no message for that: one rank's
///   infinity is in the average that all ranks have.
/// * sharded, fsdp and pipeline, where each rank has the gradients of its part, and qadam after its
///   warm-up need an allreduce of one number in each step.
///
/// With strategies that step locally (local_sgd, diloco, adasum, decentralized,
/// low_precision_decentralized, async), each rank has its own scale and skips its own steps. Its
/// parameters keep their values in that step, and averages are made as always.
///
/// A LossScaler belongs to one strategy, and to one thread at a time.
class RUEDA_TORCH_API LossScaler {
 public:
  /// RUEDA_INVALID_ARGUMENT: the scale or the interval is not positive, growth_factor is below 1,
  /// or backoff_factor is not between 0 and 1.
  explicit LossScaler(LossScalerOptions options = {});

  /// The loss for the strategy's backward(), in float32 or wider.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Waits for the gradients and divides them by the scale. Returns whether they are finite. Call
  /// it before clip_grad_norm() and the like; otherwise step() does it. Clipping gradients that are
  /// not finite does no harm. Collective, as the strategy's step() is. RUEDA_FAILED_PRECONDITION:
  /// it was called for this step already.
  bool unscale(Strategy& strategy);

  /// Steps the strategy or skips the step, and sets the next scale. Returns whether it has stepped.
  /// RUEDA_FAILED_PRECONDITION: the scale has become too small for gradients to be finite again;
  /// probably the loss itself is not finite.
  bool step(Strategy& strategy);

  /// The current scale.
  double scale() const { return state_.scale; }

  /// What a checkpoint needs in addition to the strategy's own. With strategies that step locally,
  /// save it on each rank. Read it between steps.
  struct State {
    double scale = 0;
    int64_t finite_steps = 0;  // in a row, since the scale changed
    int64_t skipped_steps = 0;
  };
  /// The state, for a checkpoint.
  const State& state() const { return state_; }
  /// Restores the state. RUEDA_INVALID_ARGUMENT: the scale is not positive.
  void set_state(const State& state);

 private:
  enum class Gradients { kScaled, kFinite, kNotFinite };

  const LossScalerOptions options_;
  State state_;
  Gradients gradients_ = Gradients::kScaled;
};

/// @}

}  // namespace rueda::libtorch

#endif  // RUEDA_PRECISION_HPP_
