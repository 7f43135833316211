// The aggregator speaks for a host, or for the hosts below a leader. Holds each operation back
// until all members below have announced it (or some have and the others let them wait for long).
// Then it passes one announcement on for all of them, if nothing differs from rank to rank, else
// what each has said. A host's runs over the host's log, a replica on every rank; the leader's
// output is sent. That of the hosts below runs at their leader. PURE
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "controller/membership/leader_tree.h"
#include "controller/membership/process_sets.h"
#include "controller/negotiation/messages.h"
#include "controller/negotiation/pending.h"
#include "controller/negotiation/tensor_table.h"

namespace rueda {

class Aggregator {
 public:
  // Speaks as `leader` with `speaks_for`, for those that the tree says, of whom it hears. What is
  // incomplete for `patience` is passed on as it is, so that rank 0 can name who is missing.
  // `leaders` outlives this. `process_sets`: sets 1, 2, ... that exist from the start.
  Aggregator(const LeaderTree& leaders, Rank leader, SpeaksFor speaks_for, Nanos patience,
             absl::Span<const std::vector<Rank>> process_sets = {});

  // Takes one event from below and appends what rank 0 must hear. INVALID_ARGUMENT: it is of
  // ranks that are not below, or that may not say it.
  absl::Status Step(const ControlEvent& event, Nanos now, std::vector<ControlEvent>* out);
  // Takes the plan stream, of a host as it appears in the host's log.
  absl::Status Apply(const PlanItem& item);
  // Passes on what has waited for too long; all, once somebody has been told who is missing, as
  // they may ask again. Returns when to call again.
  Nanos CheckDeadlines(Nanos now, std::vector<ControlEvent>* out);

 private:
  // An announcement that waits for others. Its extras are in the instance.
  struct Held {
    uint64_t arrival;  // by how many came before
    Rank rank;
    SpeaksFor speaks_for;
    bool waited;
    bool partly;
    uint16_t done;
    TensorId id;
    SpecPtr spec;
  };
  enum class State : uint8_t {
    kHeld,
    kPassedOn,  // incomplete; what is still announced goes straight through
    kSpoken,    // for all of them, with one voice; stays until the plan ends it
  };
  struct Column {  // of an instance
    State state = State::kHeld;
    int slot = -1;  // the reference that is kept of it
    std::vector<Held> held;
    bool waits_kept = false;  // kSpoken: some wait who are not spoken of, as not all do
  };

  absl::Status OnAnnounced(const ControlEvent& event, Nanos now, std::vector<ControlEvent>* out);
  absl::Status OnWaited(const ControlEvent& event, std::vector<ControlEvent>* out);
  void OnJoin(SetId set, std::vector<ControlEvent>* out);
  void OnLeave(Rank rank, std::vector<ControlEvent>* out);
  void OnReject(const Reject& reject);
  void OnOrder(const Order& order);

  int Index(Rank rank) const;  // in ranks_; -1: it is not below
  bool IsBelow(const ControlEvent& event) const;
  int CountParticipants(const TensorSpec& spec);
  bool HoldsBack(SetId set) const { return !joined_[set] && !left_from_[set]; }
  Column& ColumnOf(const Instance& instance) { return columns_[instance.record]; }
  void Claim(const Instance& instance, int slot, Nanos now);
  void Speak(Instance* instance, std::vector<ControlEvent>* out);
  void PassOnAllOf(SetId set, std::vector<ControlEvent>* out);
  Nanos PassOnDue(Nanos now, std::vector<ControlEvent>* out);
  void PassOnWaits(const Instance& instance, std::vector<ControlEvent>* out);
  // By arrival: how many had come before.
  using HeldEvents = std::map<uint64_t, ControlEvent>;
  void TakeHeld(const Instance& instance, HeldEvents* events);
  static void PassOn(HeldEvents* events, std::vector<ControlEvent>* out);
  void End(SetId set, OpKind kind, uint32_t sequence);
  void Finish(Instance* instance);

  const LeaderTree& leaders_;
  const Rank leader_;
  const SpeaksFor speaks_for_;
  const Nanos patience_;
  std::vector<Rank> ranks_;     // below, ascending
  Nanos next_look_ = kForever;  // nothing can be overdue before this time
  bool tells_all_ = false;      // at the next look
  ProcessSetTable sets_;
  TensorTable table_;
  PendingTable pending_;
  std::vector<int> slots_;         // by slot of an id: its name's in pending_; -1: none
  std::vector<Column> columns_;    // by record of an instance
  std::vector<int> participants_;  // by set: how many of its members are below; -1: not counted yet
  // By set: a rank below has joined it, or one that was in it has left. It announces nothing any
  // more, so that nothing is held back: until all ranks have joined, or for ever.
  std::vector<bool> joined_;
  std::vector<bool> left_from_;
  std::vector<Rank> left_;
  uint64_t arrivals_ = 0;
};

}  // namespace rueda
