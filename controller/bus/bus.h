// What carries this rank's announcements out and the plan stream in. Two kinds: LogBus, when all
// ranks share one host's log and each works out the plans for itself; HostsBus, when hosts (or
// ranks that share no log) report to rank 0 over connections.
//
// Owned and called by the engine; nothing here blocks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/bus/host_log.h"
#include "controller/membership/process_sets.h"
#include "controller/negotiation/messages.h"
#include "core/base/status.h"

namespace rueda {

class Bus {
 public:
  virtual ~Bus() = default;

  // Hands out one event. False: no room in the log; keep the event and try again after a Poll that
  // moved, or when this rank is rung.
  virtual absl::StatusOr<bool> Send(const ControlEvent& event) = 0;

  // Appends what the plan stream says next to `plan`. Returns whether anything was read, the plan's
  // items or not. An error ends the membership.
  virtual absl::StatusOr<bool> Poll(Nanos now, Plan* plan) = 0;

  // Whether Poll would find something: the last look before sleeping, once the others know how to
  // ring this rank.
  virtual bool LastLook() = 0;
  // Whether others wait for something that this rank has to do: to make room in the log, or to hand
  // on what has come. After LastLook's fence; for one that leaves without another Poll.
  virtual bool OwesOthers() const { return false; }
  // Lets others reuse what this rank has read; called before it sleeps.
  virtual void BeforeSleep() = 0;

  // Whether this rank, having completed `completed` batches of the lane, must say so now (in an
  // event of its own: Member::AnnounceDone). Once: it counts as said.
  virtual bool TakeDone(SetId lane, uint64_t completed) = 0;

  // Looks after what is due by the clock: stalls. Reports for people are appended to `reports`, on
  // one rank of the job. Returns when to call again. An error ends the membership.
  virtual absl::StatusOr<Nanos> CheckDeadlines(Nanos now, std::vector<std::string>* reports) = 0;
};

// How the bus wakes a rank that sleeps: by world rank, a neighbour on this host. Called after what
// it should find is published.
using WakeFn = std::function<void(Rank)>;

// Which of `ranks` must look at the items: those whom an order or a rejection concerns; all, when
// process sets change or somebody joins or leaves. By place in `ranks`.
void RanksConcerned(const PlanItem* begin, const PlanItem* end, const ProcessSetTable& sets,
                    absl::Span<const Rank> ranks, std::vector<bool>* concerned);

// Called once the log is read: wakes all of `ranks` but `self`, if a word of ours has filled a gap
// behind which they may sleep.
void WakeBehindGap(HostLog* log, absl::Span<const Rank> ranks, Rank self, const WakeFn& wake);

}  // namespace rueda
