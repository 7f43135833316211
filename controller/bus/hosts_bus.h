// The bus of a job whose ranks don't share one log. Each host has a log; its aggregator passes what
// is complete there up the tree of leaders (leader_tree.h), where each that has others below it
// waits for them and speaks for all, to rank 0, which has the coordinator. Its plans come
// down the tree and are written into each host's log by its leader (the host's lowest rank). With
// one rank a log, as under RUEDA_BUS=tcp, every rank is its own leader.
#pragma once

#include <deque>
#include <memory>

#include "controller/bus/bus.h"
#include "controller/bus/host_log.h"
#include "controller/negotiation/aggregator.h"
#include "controller/negotiation/coordinator.h"
#include "controller/negotiation/host_tally.h"

namespace rueda {

// Carries packed messages (controller/protocol/codec.h) between a leader and its neighbours in the
// tree. Never blocks; what it can't send yet it keeps.
class Courier {
 public:
  virtual ~Courier() = default;
  virtual void SendEventsUp(std::string packed) = 0;         // to the parent
  virtual void SendPlanDown(const std::string& packed) = 0;  // to all children
};

class HostsBus : public Bus {
 public:
  // `log` is shared by `local_ranks`, ascending, a host of options.leaders; writer i is
  // local_ranks[i]. The first is the leader. `courier` is used by leaders only and outlives this.
  HostsBus(std::unique_ptr<HostLog> log, std::vector<Rank> local_ranks, Rank self,
           const CoordinatorOptions& options, WakeFn wake, Courier* courier);

  absl::StatusOr<bool> Send(const ControlEvent& event) override;
  absl::StatusOr<bool> Poll(Nanos now, Plan* plan) override;
  bool LastLook() override { return log_->LastLook(); }
  bool OwesOthers() const override { return log_->OwesRoom() || news_; }
  void BeforeSleep() override;
  bool TakeDone(SetId lane, uint64_t completed) override;
  absl::StatusOr<Nanos> CheckDeadlines(Nanos now, std::vector<std::string>* reports) override;

  // What the courier brought: events of `child`'s subtree, or rank 0's plan from the parent.
  absl::Status DeliverEvents(absl::string_view packed, Rank child, Nanos now);
  absl::Status DeliverPlan(std::string packed);

  // Rank 0's coordinator; null elsewhere.
  const Coordinator* coordinator() const { return coordinator_.get(); }

 private:
  bool leader() const { return self_ == ranks_.front(); }
  absl::Status Tell(absl::Span<const ControlEvent> events, Nanos now);
  void SendUp(absl::Span<const ControlEvent> events);
  void Publish();
  bool WritePlans();
  void Wake(Rank rank);
  absl::Status ReadEntry(Nanos now, Plan* plan);
  absl::Status ReadPlan(Plan* plan);

  const std::unique_ptr<HostLog> log_;
  const std::vector<Rank> ranks_;  // of the log's writers
  const Rank self_;
  const WakeFn wake_;
  Courier* const courier_;
  const std::shared_ptr<const LeaderTree> leaders_;
  std::unique_ptr<Aggregator> aggregator_;    // at leaders: of this host
  std::unique_ptr<Aggregator> subtree_;       // at leaders with others below, but for rank 0
  std::unique_ptr<Coordinator> coordinator_;  // at rank 0
  ProcessSetTable sets_;                      // as the plan stream in this host's log says
  std::unique_ptr<HostTally> tally_;          // at those that lead nobody
  std::vector<uint64_t> ordered_;             // by lane: batches seen in the plan stream
  std::vector<uint64_t> told_done_;           // by lane: the completed count last announced alone
  Plan plan_;                                 // at rank 0: to be published
  std::deque<std::string> plans_to_write_;    // at leaders: for the log, when it has room
  bool news_ = false;                         // something has come since the last Poll
  std::vector<ControlEvent> said_;            // scratch: by this host
  std::vector<bool> concerned_;               // scratch
  LogEntry entry_;                            // scratch
};

}  // namespace rueda
