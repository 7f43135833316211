// Ends a training that no longer gets better.
#pragma once

#include <limits>
#include <string>

#include "examples/trainer/callback.h"

namespace trainer {

enum class Mode { kMin, kMax };  // what is better

// Whether `value` is better than `best` by more than `min_delta`. NaN is never.
bool IsBetter(double value, double best, Mode mode, double min_delta = 0);
// What anything is better than.
double Worst(Mode mode);

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  int patience = 3;  // epochs in a row that are no better than the best before
  double min_delta = 0;
  Mode mode = Mode::kMin;
};

// Metrics are the same on all ranks, so all come to the same decision.
class EarlyStopping : public Callback {
 public:
  // RUEDA_INVALID_ARGUMENT: patience is below 1, min_delta below 0.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  std::string name() const override { return "early_stopping " + options_.monitor; }
  // RUEDA_INVALID_ARGUMENT: it is a validation loader's metric, and there is none.
  void OnCheck(Training& training) override;
  void OnBegin(Training& training) override;
  void OnEpoch(Training& training) override;
  nlohmann::json SaveState() const override;
  void LoadState(const nlohmann::json& state) override;

 private:
  const EarlyStoppingOptions options_;
  double best_;
  int waited_ = 0;  // epochs since
};

}  // namespace trainer
