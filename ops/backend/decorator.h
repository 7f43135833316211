// A communicator on top of another one, such as compression: it forwards whatever it does not
// override.
#pragma once

#include <memory>
#include <utility>

#include "ops/backend/communicator.h"

namespace rueda {

class Decorator : public Communicator {
 public:
  explicit Decorator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  void Start(const BucketOperation& operation) override { inner_->Start(operation); }
  absl::StatusOr<Progress> Advance() override { return inner_->Advance(); }
  PhaseTimes phase_times() const override { return inner_->phase_times(); }
  void Abort() override { inner_->Abort(); }
  EarlyStart* early_start() override { return inner_->early_start(); }
  Enqueuing* enqueuing() override { return inner_->enqueuing(); }
  SilenceProbe* silence_probe() override { return inner_->silence_probe(); }

 protected:
  Communicator& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Communicator> inner_;
};

}  // namespace rueda
