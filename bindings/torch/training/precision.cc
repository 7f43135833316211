// Mixed precision: autocast for a scope, and losses that are scaled.
#include "rueda/precision.hpp"

#include <ATen/autocast_mode.h>

#include <cmath>
#include <cstdio>

#include "bindings/torch/device.h"

namespace rueda::libtorch {
namespace {

// Far below what helps: from the first scale on more than fifty steps in a row were skipped.
constexpr double kLeastScale = 1e-12;

std::string Written(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

void CheckScale(double scale) {
  if (std::isfinite(scale) && scale > 0) return;
  throw Error(RUEDA_INVALID_ARGUMENT,
              "LossScaler: the scale is " + Written(scale) + "; above 0 and finite");
}

}  // namespace

void Autocast::Set(at::DeviceType device, at::ScalarType type) {
  before_.push_back({device, at::autocast::is_autocast_enabled(device),
                     at::autocast::get_autocast_dtype(device)});
  at::autocast::set_autocast_enabled(device, type != at::kFloat);
  if (type != at::kFloat) at::autocast::set_autocast_dtype(device, type);
}

Autocast::Autocast(at::ScalarType type) {
  if (type != at::kBFloat16 && type != at::kHalf && type != at::kFloat) {
    throw Error(RUEDA_INVALID_ARGUMENT, std::string("Autocast: the type is ") + at::toString(type) +
                                            "; there are BFloat16, Half, and Float for none");
  }
  Set(at::kCPU, type);
  // Each device's autocast looks at every operator.
  if (TorchHasCuda()) Set(at::kCUDA, type);
  at::autocast::clear_cache();  // its casts may be of another type
}

Autocast::~Autocast() {
  at::autocast::clear_cache();  // casts of parameters, which a step is going to change
  for (const Before& before : before_) {
    at::autocast::set_autocast_enabled(before.device, before.enabled);
    at::autocast::set_autocast_dtype(before.device, before.type);
  }
}

LossScaler::LossScaler(LossScalerOptions options) : options_(options) {
  CheckScale(options.initial_scale);
  if (!(options.growth_factor >= 1 && std::isfinite(options.growth_factor))) {
    throw Error(RUEDA_INVALID_ARGUMENT, "LossScaler: growth_factor must be at least 1");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    throw Error(RUEDA_INVALID_ARGUMENT, "LossScaler: backoff_factor must be between 0 and 1");
  }
  if (options.growth_interval < 1) {
    throw Error(RUEDA_INVALID_ARGUMENT, "LossScaler: growth_interval must be at least 1");
  }
  state_.scale = options.initial_scale;
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  // A scaled loss is beyond float16 soon.
  const bool is_small = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (is_small ? loss.to(at::kFloat) : loss) * state_.scale;
}

bool LossScaler::unscale(Strategy& strategy) {
  if (gradients_ != Gradients::kScaled) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "LossScaler: unscale() was called already since the last step()");
  }
  const bool finite = strategy.unscale(1 / state_.scale);
  gradients_ = finite ? Gradients::kFinite : Gradients::kNotFinite;
  return finite;
}

bool LossScaler::step(Strategy& strategy) {
  if (gradients_ == Gradients::kScaled) (void)unscale(strategy);
  const bool finite = gradients_ == Gradients::kFinite;
  gradients_ = Gradients::kScaled;
  if (finite) {
    strategy.step();
    // Beyond float's range it would make every gradient infinite.
    const double grown = state_.scale * options_.growth_factor;
    if (++state_.finite_steps == options_.growth_interval) {
      state_.finite_steps = 0;
      if (std::isfinite(static_cast<float>(grown))) state_.scale = grown;
    }
    return true;
  }
  strategy.skip_step();
  state_.scale *= options_.backoff_factor;
  state_.finite_steps = 0;
  ++state_.skipped_steps;
  if (state_.scale < kLeastScale) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "LossScaler: gradients are infinite or NaN however small the scale, which is " +
                    Written(state_.scale) + " after " + std::to_string(state_.skipped_steps) +
                    " skipped steps: look for what makes the loss infinite or NaN itself");
  }
  return false;
}

void LossScaler::set_state(const State& state) {
  CheckScale(state.scale);
  state_ = state;
}

}  // namespace rueda::libtorch
