#include "examples/trainer/callbacks/early_stopping.h"

#include <cmath>

namespace trainer {

bool IsBetter(double value, double best, Mode mode, double min_delta) {
  return mode == Mode::kMin ? value < best - min_delta : value > best + min_delta;
}

double Worst(Mode mode) {
  const double infinity = std::numeric_limits<double>::infinity();
  return mode == Mode::kMin ? infinity : -infinity;
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(Worst(options_.mode)) {
  if (options_.patience >= 1 && options_.min_delta >= 0) return;
  throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                     "EarlyStopping: patience must be at least 1, and min_delta at least 0");
}

void EarlyStopping::OnCheck(Training& training) {
  training.CheckMetric(options_.monitor);
}

// The checkpoint may be of a training that had ended.
void EarlyStopping::OnBegin(Training& training) {
  if (waited_ >= options_.patience) training.Stop();
}

void EarlyStopping::OnEpoch(Training& training) {
  const double value = training.Metric(options_.monitor);
  if (IsBetter(value, best_, options_.mode, options_.min_delta)) {
    best_ = value;
    waited_ = 0;
  } else if (++waited_ >= options_.patience) {
    training.Stop();
  }
}

// JSON has no infinity: none yet is null.
nlohmann::json EarlyStopping::SaveState() const {
  nlohmann::json best;
  if (std::isfinite(best_)) best = best_;
  return {{"best", best}, {"waited", waited_}};
}

void EarlyStopping::LoadState(const nlohmann::json& state) {
  best_ = state.at("best").is_null() ? Worst(options_.mode) : state.at("best").get<double>();
  waited_ = state.at("waited");
}

}  // namespace trainer
