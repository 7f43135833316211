#include "controller/bus/log_bus.h"

#include <atomic>

#include "controller/bus/log_codec.h"

namespace rueda {

LogBus::LogBus(std::unique_ptr<HostLog> log, Rank self, const CoordinatorOptions& options,
               WakeFn wake, WakeFn wake_idle)
    : log_(std::move(log)),
      self_(self),
      wake_(std::move(wake)),
      wake_idle_(wake_idle != nullptr ? std::move(wake_idle) : wake_),
      coordinator_(options) {
  for (Rank rank = 0; rank < options.world_size; ++rank) ranks_.push_back(rank);
}

absl::StatusOr<bool> LogBus::Send(const ControlEvent& event) {
  RUEDA_ASSIGN_OR_RETURN(const bool sent, AppendEvent(event, log_.get()));
  if (!sent) wake_idle_(log_->SlowestReader());
  return sent;
}

absl::StatusOr<bool> LogBus::Poll(Nanos now, Plan* plan) {
  bool moved = false;
  while (true) {
    RUEDA_ASSIGN_OR_RETURN(const bool read, log_->Read(&entry_));
    if (!read) break;
    moved = true;
    RUEDA_ASSIGN_OR_RETURN(const ControlEvent event, DecodeLogEvent(entry_, ranks_));
    // Whoever asks finds the answer in its own replica.
    if (entry_.writer != self_ && std::holds_alternative<Asked>(event.what)) continue;
    const size_t before = plan->size();
    RUEDA_RETURN_IF_ERROR(coordinator_.Step(event, now, plan));
    // Whoever's entry completes something wakes those whom it concerns; nobody else does.
    if (entry_.writer == self_ && plan->size() > before) {
      RanksConcerned(plan->data() + before, plan->data() + plan->size(),
                     coordinator_.process_sets(), ranks_, &concerned_);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      for (const Rank rank : ranks_) {
        if (rank != self_ && concerned_[rank]) wake_(rank);
      }
    }
  }
  WakeBehindGap(log_.get(), ranks_, self_, wake_);
  WakeStarving();
  while (!expired_.empty()) {
    RUEDA_ASSIGN_OR_RETURN(const bool sent, Send({self_, expired_.back()}));
    if (!sent) break;
    expired_.pop_back();
  }
  return moved;
}

void LogBus::WakeStarving() {
  for (const int writer : log_->TakeStarving()) wake_(writer);
}

void LogBus::BeforeSleep() {
  log_->PublishCursor();
  WakeStarving();
}

bool LogBus::TakeDone(SetId lane, uint64_t completed) {
  return coordinator_.HasOpenBatch(lane) && coordinator_.OrderedOn(lane) == completed &&
         coordinator_.DoneOn(lane) < completed;
}

absl::StatusOr<Nanos> LogBus::CheckDeadlines(Nanos now, std::vector<std::string>* reports) {
  const Nanos next = coordinator_.CheckDeadlines(now, reports, &expired_, self_);
  return expired_.empty() ? next : now;
}

}  // namespace rueda
