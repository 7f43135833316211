// The aggregator: a host's voice. Runs over the host's log, holds each operation back until all
// members on this host have announced it (or some have and the others let them wait for long), and
// then passes the announcements on together. Every rank of the host runs a replica; the leader's
// output is sent. PURE
#pragma once

#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "controller/membership/process_sets.h"
#include "controller/negotiation/messages.h"
#include "controller/negotiation/pending.h"
#include "controller/negotiation/tensor_table.h"

namespace rueda {

class Aggregator {
 public:
  // `local_ranks`: the ranks that write to this log, ascending. What is incomplete for `patience`
  // is passed on as it is, so that the root can name who is missing.
  // `process_sets`: sets 1, 2, ... that exist from the start.
  Aggregator(std::vector<Rank> local_ranks, int world_size, Nanos patience,
             absl::Span<const std::vector<Rank>> process_sets = {});

  // Takes one event of the host's log and appends what the root must hear.
  absl::Status Step(const ControlEvent& event, Nanos now, std::vector<ControlEvent>* out);
  // Takes the plan stream as it appears in the host's log.
  absl::Status Apply(const PlanItem& item);
  // Passes on what has waited for too long. Returns when to call again.
  Nanos Look(Nanos now, std::vector<ControlEvent>* out);

 private:
  // By arrival: how many were held before.
  using HeldEvents = std::map<uint64_t, ControlEvent>;
  struct Held {
    HeldEvents events;
    int pending_slot = -1;
    bool passed_on = false;  // later announcements go straight through
  };

  absl::Status OnAnnounced(const ControlEvent& event, Nanos now, std::vector<ControlEvent>* out);
  absl::Status OnWaited(const ControlEvent& event, std::vector<ControlEvent>* out);
  int LocalParticipants(const TensorSpec& spec) const;
  bool HoldsBack(SetId set) const;
  void OnJoin(SetId set, std::vector<ControlEvent>* out);
  void OnLeave(Rank rank, std::vector<ControlEvent>* out);
  void PassOnAllOf(SetId set, std::vector<ControlEvent>* out);
  void OnReject(const Reject& reject);
  int LocalIndex(Rank rank) const;
  void Finish(Instance* instance);
  static void PassOn(HeldEvents* events, std::vector<ControlEvent>* out);

  const std::vector<Rank> local_ranks_;
  const Nanos patience_;
  Nanos next_look_ = kForever;  // nothing can be overdue before this time
  ProcessSetTable sets_;
  TensorTable table_;
  PendingTable pending_;
  // By set: a rank of this host has joined it. It announces nothing any more, so that nothing is
  // held back until all ranks have joined.
  std::vector<bool> joined_;
  std::vector<Rank> left_;  // ranks of this host that have left: likewise, for ever
  absl::flat_hash_map<const Instance*, Held> held_;
  uint64_t arrivals_ = 0;
};

}  // namespace rueda
