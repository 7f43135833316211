// The bus of a job on one host: a shared log, and in every rank a replica of the coordinator that
// works out the same plans from it. No rank is special, and a plan needs no other process's CPU.
#pragma once

#include <memory>

#include "controller/bus/bus.h"
#include "controller/bus/host_log.h"
#include "controller/negotiation/coordinator.h"

namespace rueda {

class LogBus : public Bus {
 public:
  // `log` is shared by all ranks of the job; writer i is rank i. `wake` is called for ranks that
  // this rank's entry gives something to do, `wake_idle` for one that must read the log though it
  // may have nothing to do (null: `wake`).
  LogBus(std::unique_ptr<HostLog> log, Rank self, const CoordinatorOptions& options, WakeFn wake,
         WakeFn wake_idle = nullptr);

  absl::StatusOr<bool> Send(const ControlEvent& event) override;
  absl::StatusOr<bool> Poll(Nanos now, Plan* plan) override;
  bool LastLook() override { return log_->LastLook(); }
  bool OwesOthers() const override { return log_->OwesRoom(); }
  void BeforeSleep() override;
  bool TakeDone(SetId lane, uint64_t completed) override;
  absl::StatusOr<Nanos> CheckDeadlines(Nanos now, std::vector<std::string>* reports) override;

  const Coordinator& coordinator() const { return coordinator_; }

 private:
  void WakeStarving();

  const std::unique_ptr<HostLog> log_;
  const Rank self_;
  const WakeFn wake_;
  const WakeFn wake_idle_;
  Coordinator coordinator_;
  std::vector<Rank> ranks_;      // of the writers
  std::vector<Expire> expired_;  // to be written
  std::vector<bool> concerned_;  // scratch
  LogEntry entry_;               // scratch
};

}  // namespace rueda
