// Learning rates for many ranks (arXiv 1706.02677).
#include <torch/optim/optimizer.h>

#include <cmath>

#include "bindings/torch/operation.h"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

std::vector<double> RatesOf(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

void SetRates(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs) {
  for (size_t i = 0; i < lrs.size(); ++i) optimizer.param_groups()[i].options().set_lr(lrs[i]);
}

}  // namespace

void scale_learning_rate(torch::optim::Optimizer& optimizer, double factor) {
  if (!std::isfinite(factor) || factor < 0) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "scale_learning_rate: the factor is " + std::to_string(factor));
  }
  std::vector<double> lrs = RatesOf(optimizer);
  for (double& lr : lrs) lr *= factor;
  SetRates(optimizer, lrs);
}

WarmupSchedule::WarmupSchedule(torch::optim::Optimizer& optimizer, unsigned steps,
                               ProcessSet process_set)
    : LRScheduler(optimizer),
      steps_(steps),
      start_(1.0 / process_set.size()),
      lrs_(RatesOf(optimizer)) {
  if (!done()) SetRates(optimizer, RatesAfter(0));
}

std::vector<double> WarmupSchedule::RatesAfter(unsigned steps) const {
  if (steps == steps_) return lrs_;  // to the bit
  std::vector<double> lrs = lrs_;
  for (double& lr : lrs) lr *= start_ + (1 - start_) * steps / steps_;
  return lrs;
}

// Called before step_count_ is counted up.
std::vector<double> WarmupSchedule::get_lrs() {
  return done() ? get_current_lrs() : RatesAfter(step_count_ + 1);
}

}  // namespace rueda::libtorch
