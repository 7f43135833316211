// What a rank that leads nobody keeps of its host's log: for each operation, who of the host has
// announced it, so that the one whose word makes it whole can wake the leader, and nobody else
// needs to. Far less than the leader's aggregator. It may say once too often that the leader is
// needed, never once too seldom. PURE
#pragma once

#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "controller/membership/process_sets.h"
#include "controller/membership/rank_set.h"
#include "controller/negotiation/messages.h"
#include "core/base/hash_map.h"

namespace rueda {

class HostTally {
 public:
  // `ranks`: of the host, ascending; writer i of the log is ranks[i]. `sets` is kept as the plan
  // stream says and outlives this.
  HostTally(absl::Span<const Rank> ranks, const ProcessSetTable* sets)
      : ranks_(ranks.begin(), ranks.end()), sets_(*sets) {}

  // Whether the leader has something to pass on, or may have, because of this word of the log.
  // `Announces`: of the announcement of an id without extras, which is what most words are.
  bool Announces(int writer, TensorId id, bool waited);
  bool Step(int writer, const ControlEvent& event);
  // Takes the plan stream. Before `sets` does.
  void Apply(const PlanItem& item);

 private:
  using Key = std::tuple<SetId, std::string, Rank, Rank, OpKind>;  // the kind of the unnamed only

  struct Slot {                // of a name, or of an unnamed kind
    const Key* key = nullptr;  // in slot_of_
    RankSet who;               // named: by writer, since it was whole
    int participants = 0;      // of this host
    int references = 0;        // ids
    SetId set = kWorldSet;
    bool joins = false;
    bool told = false;             // that somebody waits for it
    bool always = false;           // what is whole can't be told any more
    std::vector<uint32_t> counts;  // unnamed: by writer, how many it has announced
  };
  struct Defined {
    TensorId id = kNoTensor;
    int slot = -1;
  };

  // Ids forgotten lately are known still: an announcement may have been under way with one.
  static constexpr size_t kForgottenMax = 8'192;

  static Key KeyOf(const TensorSpec& spec);
  void Release(int slot);
  int SlotFor(const TensorSpec& spec);
  Slot* Find(TensorId id);
  bool Announces(int writer, Slot* slot, bool waited);
  bool HasJoined(SetId set) const {
    return static_cast<size_t>(set) < joined_.size() && joined_[set];
  }

  const std::vector<Rank> ranks_;
  const ProcessSetTable& sets_;
  std::vector<Slot> slots_;
  std::vector<int> free_;
  HashMap<Key, int> slot_of_;
  std::vector<Defined> defined_;   // by slot of the id
  std::deque<Defined> forgotten_;  // the oldest first
  std::vector<bool> joined_;       // by set: some have, and not all
  bool left_ = false;              // somebody has
};

}  // namespace rueda
