// Adds the learning rates to the metrics.
#pragma once

#include <torch/optim/optimizer.h>
#include <rueda/strategy.hpp>

#include <string>

#include "examples/trainer/callback.h"

namespace trainer {

// "lr", or for several groups of the optimizer "lr_0", "lr_1" and so on: those of the epoch's last
// step.
class LearningRateMonitor : public Callback {
 public:
  std::string name() const override { return "learning_rate_monitor"; }
  void OnMetrics(Training& training) override {
    const auto& groups = training.strategy().optimizer().param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      training.metrics[groups.size() == 1 ? "lr" : "lr_" + std::to_string(i)] =
          groups[i].options().get_lr();
    }
  }
};

}  // namespace trainer
