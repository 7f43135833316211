// Operations that some members have announced and others have not: who has, with which signature.
// Shared by the coordinator (all members of a set) and the aggregator (a host's members). PURE
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "controller/membership/process_sets.h"
#include "controller/membership/rank_set.h"
#include "controller/negotiation/messages.h"
#include "core/base/hash_map.h"

namespace rueda {

// One use of a name (or of an unnamed kind's sequence number) under negotiation.
struct Instance {
  int slot = -1;            // its name's slot; -1: this record is free
  int record = 0;           // a small number of its own, for the caller's columns
  uint32_t sequence = 0;    // unnamed only
  SpecPtr spec;             // the first announcement's
  Rank first = -1;          // who announced it first, for the coordinator
  TensorId id = kNoTensor;  // of `spec`, for the coordinator, which keeps it while this is pending
  bool waited = false;
  bool mixed = false;              // somebody announced another spec
  RankSet who;                     // by member index
  RankSet waiters;                 // by member index: those who block in it
  std::vector<SpecPtr> specs;      // by member; only when mixed
  std::vector<CallExtras> extras;  // by member; only when someone's are not empty
  Nanos since = 0;                 // the first announcement; for reports only, never for a decision
  int reports = 0;                 // how many were made

  bool complete(int members) const { return who.count() == members; }
};

class PendingTable {
 public:
  // The slot of a name within a set, or of an unnamed kind when `spec` has no name. Slots of names
  // are counted: each SlotFor of a named spec takes a reference, which Release gives back.
  int SlotFor(const TensorSpec& spec);
  void Retain(int slot) { ++slots_[slot].references; }
  void Release(int slot) noexcept;
  // Of an unnamed kind without a pair; -1 when none was announced yet.
  int UnnamedSlot(SetId set, OpKind kind) const;

  // Notes that participant `member` of `members` announced `spec`. Returns null when the others
  // have given up on this unnamed operation already; INVALID_ARGUMENT when the member has announced
  // this name before.
  absl::StatusOr<Instance*> Announce(int slot, int member, int members, const SpecPtr& spec,
                                     const CallExtras& extras, bool waited, Nanos now);

  // The sequence number of the member's latest announcement to an unnamed slot.
  uint32_t LastSequence(int slot, int member) const { return slots_[slot].next[member] - 1; }
  // Of an unnamed slot.
  bool HasAnnounced(int slot, int member, uint32_t sequence) const {
    return slots_[slot].next[member] > sequence;
  }

  // The pending instance of the slot; for an unnamed slot the one whose sequence number ends in
  // `sequence`. Null when there is none.
  Instance* Find(int slot, uint16_t sequence);

  // Ends the instance: ordered or rejected.
  void Remove(Instance* instance) noexcept;

  // Counts the unnamed operations of a set from 0 again. None is pending.
  void ResetUnnamed(SetId set);
  // The rank counts its unnamed operations of the set on from the last of each kind that has ended:
  // it has missed those before.
  void CatchUp(const ProcessSet& set, Rank rank);

  // Calls fn(Instance&) for each pending instance, oldest record first. fn may Remove the one it
  // gets.
  template <typename Fn>
  void ForEach(Fn fn) {
    for (size_t i = 0; i < instances_.size(); ++i) {
      if (instances_[i].slot >= 0) fn(instances_[i]);
    }
  }
  int count() const { return static_cast<int>(instances_.size() - free_.size()); }
  bool HasPending(int slot) const { return !slots_[slot].live.empty(); }

 private:
  struct Slot {
    SetId set = kWorldSet;
    std::string name;
    Rank from = -1;  // of a send/recv
    Rank to = -1;
    bool unnamed = false;
    int references = 0;
    // At most one when named; when unnamed, by sequence number.
    absl::InlinedVector<Instance*, 1> live;
    uint32_t base = 0;           // unnamed: the sequence number of live.front(), or the next one
    std::vector<uint32_t> next;  // unnamed, by member: the sequence number of its next announcement
    uint32_t ended = 0;  // unnamed: one more than the highest sequence number that has ended
  };

  Instance* New(int slot, uint32_t sequence, int members, const SpecPtr& spec, Nanos now);

  std::deque<Slot> slots_;
  std::vector<int> free_slots_;
  // By set, name and, of a send/recv, its two ranks: pairs may use one name at the same time.
  using NamedKey = std::tuple<SetId, std::string, Rank, Rank>;

  HashMap<NamedKey, int> named_;
  HashMap<TensorSpec::UnnamedKey, int> unnamed_;
  std::deque<Instance> instances_;  // stable addresses; free ones have slot -1
  std::vector<Instance*> free_;
};

}  // namespace rueda
