#include "controller/bus/hosts_bus.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "controller/bus/log_codec.h"
#include "controller/protocol/codec.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

// An operation that is incomplete everywhere is known to rank 0 at this part of the age at which
// it says or does something about it, so that it can name who is missing.
constexpr int kPatienceShare = 2;

// Each on the way up waits for so long.
Nanos Patience(const CoordinatorOptions& options) {
  return options.first_stall() / kPatienceShare / std::max(1, options.leaders->depth());
}

// Plans and events are packed into messages of about this size: small enough for any log's side
// ring.
constexpr size_t kPackBytes = 256 << 10;

}  // namespace

HostsBus::HostsBus(std::unique_ptr<HostLog> log, std::vector<Rank> local_ranks, Rank self,
                   const CoordinatorOptions& options, WakeFn wake, Courier* courier)
    : log_(std::move(log)),
      ranks_(std::move(local_ranks)),
      self_(self),
      wake_(std::move(wake)),
      courier_(courier),
      leaders_(options.leaders),
      sets_(options.world_size, options.process_sets),
      ordered_(sets_.end(), 0),
      told_done_(sets_.end(), 0) {
  if (!leader()) {
    tally_ = std::make_unique<HostTally>(ranks_, &sets_);
    return;
  }
  const auto speaker = [&](SpeaksFor speaks_for) {
    return std::make_unique<Aggregator>(*leaders_, self_, speaks_for, Patience(options),
                                        options.process_sets);
  };
  aggregator_ = speaker(SpeaksFor::kHost);
  if (self_ == 0) {
    coordinator_ = std::make_unique<Coordinator>(options);
  } else if (!leaders_->ChildrenOf(self_).empty()) {
    subtree_ = speaker(SpeaksFor::kSubtree);
  }
}

void HostsBus::Wake(Rank rank) {
  if (rank != self_) wake_(rank);
}

absl::StatusOr<bool> HostsBus::Send(const ControlEvent& event) {
  RUEDA_ASSIGN_OR_RETURN(const bool sent, AppendEvent(event, log_.get()));
  if (!sent) Wake(ranks_[log_->SlowestReader()]);
  return sent;
}

absl::StatusOr<bool> HostsBus::Poll(Nanos now, Plan* plan) {
  news_ = false;
  Publish();
  bool moved = WritePlans();
  while (true) {
    RUEDA_ASSIGN_OR_RETURN(const bool read, log_->Read(&entry_));
    if (!read) break;
    moved = true;
    RUEDA_RETURN_IF_ERROR(ReadEntry(now, plan));
  }
  WakeBehindGap(log_.get(), ranks_, self_, wake_);
  for (const int writer : log_->TakeStarving()) Wake(ranks_[writer]);
  if (!said_.empty()) {
    RUEDA_RETURN_IF_ERROR(Tell(said_, now));
    said_.clear();
    Publish();
  }
  return moved | WritePlans();
}

absl::Status HostsBus::ReadEntry(Nanos now, Plan* plan) {
  if (IsPlan(entry_)) {
    if (entry_.writer != 0)
      return absl::InvalidArgumentError("a plan that the leader did not write");
    return ReadPlan(plan);
  }
  if (leader()) {
    RUEDA_ASSIGN_OR_RETURN(const ControlEvent event, DecodeLogEvent(entry_, ranks_));
    return aggregator_->Step(event, now, &said_);
  }
  bool leader_is_needed;
  if (const std::optional<PlainAnnouncement> plain = AsPlainAnnouncement(entry_)) {
    leader_is_needed = tally_->Announces(entry_.writer, plain->id, plain->waited);
  } else {
    RUEDA_ASSIGN_OR_RETURN(const ControlEvent event, DecodeLogEvent(entry_, ranks_));
    leader_is_needed = tally_->Step(entry_.writer, event);
  }
  if (leader_is_needed && ranks_[entry_.writer] == self_) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Wake(ranks_.front());
  }
  return absl::OkStatus();
}

absl::Status HostsBus::ReadPlan(Plan* plan) {
  const size_t before = plan->size();
  RUEDA_RETURN_IF_ERROR(UnpackPlan(entry_.payload, plan));
  for (size_t i = before; i < plan->size(); ++i) {
    const PlanItem& item = (*plan)[i];
    if (leader()) {
      RUEDA_RETURN_IF_ERROR(aggregator_->Apply(item));
    } else {
      tally_->Apply(item);
    }
    if (const auto* added = std::get_if<SetAdded>(&item)) {
      RUEDA_ASSIGN_OR_RETURN(const SetId id, sets_.Add(added->ranks));
      ordered_.resize(sets_.end());
      told_done_.resize(sets_.end());
      ordered_[id] = told_done_[id] = 0;
    } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
      RUEDA_RETURN_IF_ERROR(sets_.Remove(removed->set));
    } else if (const auto* order = std::get_if<Order>(&item)) {
      if (sets_.Find(order->lane) == nullptr) {
        return absl::InvalidArgumentError("a plan for an unknown process set");
      }
      ++ordered_[order->lane];
    }
  }
  if (leader()) {
    RanksConcerned(plan->data() + before, plan->data() + plan->size(), sets_, ranks_, &concerned_);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (concerned_[i]) Wake(ranks_[i]);
    }
  }
  return absl::OkStatus();
}

// Takes what a host says, this or one below, a step further.
absl::Status HostsBus::Tell(absl::Span<const ControlEvent> events, Nanos now) {
  std::vector<ControlEvent> together;
  for (const ControlEvent& event : events) {
    if (coordinator_ != nullptr) {
      RUEDA_RETURN_IF_ERROR(coordinator_->Step(event, now, &plan_));
    } else if (subtree_ != nullptr) {
      RUEDA_RETURN_IF_ERROR(subtree_->Step(event, now, &together));
    }
  }
  if (coordinator_ == nullptr) SendUp(subtree_ != nullptr ? together : events);
  return absl::OkStatus();
}

void HostsBus::SendUp(absl::Span<const ControlEvent> events) {
  for (std::string& packed : PackEvents(events, kPackBytes)) {
    courier_->SendEventsUp(std::move(packed));
  }
}

// At rank 0: what was decided since the last time.
void HostsBus::Publish() {
  for (std::string& packed : PackPlan(plan_, kPackBytes)) {
    courier_->SendPlanDown(packed);
    plans_to_write_.push_back(std::move(packed));
  }
  plan_.clear();
}

absl::Status HostsBus::DeliverEvents(absl::string_view packed, Rank child, Nanos now) {
  std::vector<ControlEvent> events;
  RUEDA_RETURN_IF_ERROR(UnpackEvents(packed, &events));
  for (const ControlEvent& event : events) {
    if (event.rank >= leaders_->world_size() || !leaders_->Covers(child, event.rank)) {
      return absl::InvalidArgumentError(absl::StrCat("leader ", child, " speaks for rank ",
                                                     event.rank, ", which is not below it"));
    }
  }
  news_ = true;
  return Tell(events, now);
}

absl::Status HostsBus::DeliverPlan(std::string packed) {
  news_ = true;
  courier_->SendPlanDown(packed);
  if (subtree_ != nullptr) {
    Plan plan;
    RUEDA_RETURN_IF_ERROR(UnpackPlan(packed, &plan));
    for (const PlanItem& item : plan) RUEDA_RETURN_IF_ERROR(subtree_->Apply(item));
  }
  plans_to_write_.push_back(std::move(packed));
  return absl::OkStatus();
}

bool HostsBus::WritePlans() {
  bool wrote = false;
  while (!plans_to_write_.empty()) {
    if (!AppendPlan(plans_to_write_.front(), log_.get())) {
      Wake(ranks_[log_->SlowestReader()]);
      break;
    }
    plans_to_write_.pop_front();
    wrote = true;
  }
  return wrote;
}

void HostsBus::BeforeSleep() {
  log_->PublishCursor();
  for (const int writer : log_->TakeStarving()) Wake(ranks_[writer]);
}

// Rank 0 can't see who has completed what; the first rank of each set tells it.
bool HostsBus::TakeDone(SetId lane, uint64_t completed) {
  if (sets_.Find(lane)->ranks.front() != self_ || completed != ordered_[lane] ||
      completed == told_done_[lane]) {
    return false;
  }
  told_done_[lane] = completed;
  return true;
}

absl::StatusOr<Nanos> HostsBus::CheckDeadlines(Nanos now, std::vector<std::string>* reports) {
  if (!leader()) return kForever;
  std::vector<ControlEvent> overdue;
  Nanos next = aggregator_->CheckDeadlines(now, &overdue);
  RUEDA_RETURN_IF_ERROR(Tell(overdue, now));
  if (subtree_ != nullptr) {
    std::vector<ControlEvent> overdue_below;
    next = std::min(next, subtree_->CheckDeadlines(now, &overdue_below));
    SendUp(overdue_below);
  }
  if (coordinator_ != nullptr) {
    std::vector<Expire> expired;
    next = std::min(next, coordinator_->CheckDeadlines(now, reports, &expired));
    for (const Expire& expire : expired) {
      RUEDA_RETURN_IF_ERROR(coordinator_->Step({self_, expire}, now, &plan_));
    }
    Publish();
  }
  return next;
}

}  // namespace rueda
