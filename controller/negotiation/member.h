// A rank's half of the negotiation: turns submissions into announcements, and the plan stream into
// what this rank has to execute or to fail. PURE
#pragma once

#include <deque>
#include <vector>

#include "controller/membership/process_sets.h"
#include "controller/negotiation/messages.h"
#include "controller/negotiation/tensor_table.h"
#include "core/base/hash_map.h"

namespace rueda {

// The caller's number for one submission; small, reused once its operation has ended.
using Token = uint32_t;
inline constexpr Token kNoToken = UINT32_MAX;

// What the engine has to do, in plan order.
struct LaunchItem {
  Token token;  // kNoToken: this rank has joined, and does its part for the others
  TensorId id;
  SpecPtr spec;
  std::vector<int64_t> first_dims;
};
struct Launch {  // one batch on one lane
  SetId lane;
  uint64_t number;           // of the batch on its lane, from 0; the same on all ranks of the set
  std::vector<Rank> absent;  // see Order
  Scaling scaling;
  absl::InlinedVector<LaunchItem, 2> items;
  PlannedData data;    // see Order
  uint8_t agreed = 0;  // see Agreed
};
struct Rejected {
  Token token;
  absl::Status status;
};
struct NewSet {
  SetId set;
  bool asked;  // whether this rank asked for it: all do, unless they failed meanwhile
  Token token;
};
struct RemovedSet {  // as above
  SetId set;
  bool asked;
  Token token;
};
struct JoinDone {
  Token token;
  Rank last;  // the rank that joined last
};
struct Missing {  // the answer to Ask, of one operation
  Token token;
  std::string who;
};
using Action =
    std::variant<Launch, Rejected, NewSet, RemovedSet, JoinDone, Left, StillBlocked, Missing>;

class Member {
 public:
  // `process_sets`: sets 1, 2, ... that exist from the start.
  Member(Rank rank, int world_size, absl::Span<const std::vector<Rank>> process_sets = {});

  // The operation's name is not in flight on this rank; its set exists and has this rank.
  void Submit(Token token, SpecPtr spec, CallExtras extras, bool waited);
  // Somebody waits for it. Harmless when it has been ordered already.
  void MarkWaited(Token token);
  // This rank has completed one more batch of the lane.
  void CompletedBatch(SetId lane);
  // Announces the above alone. At most one such event is queued per lane. Not while the lane is
  // closing: then nobody may need it any more, or know the lane.
  void AnnounceDone(SetId lane);
  bool closing(SetId lane) const { return set_states_[lane].closing; }
  void AnnounceLeave();
  // Asks who is missing where this rank waits; one such event at most is queued.
  void Ask();
  void Announce(const Wished& wished) { outgoing_.push_back({What::kWish, 0, 0, {}, wished}); }
  void Announce(const Blocked& blocked) { outgoing_.push_back({What::kBlocked, 0, 0, blocked}); }

  // The next event for the log; null when there is none. Made from what is known at this moment, so
  // take it just before it is written.
  const ControlEvent* Next();
  void Pop();
  // Of an announcement that Next has given: whose it is.
  Token next_token() const { return outgoing_.front().token; }

  // Takes the plan stream, item by item, and appends what follows for this rank. An error means
  // that the stream contradicts what this rank knows; the membership can't go on.
  absl::Status Apply(const PlanItem& item, std::vector<Action>* actions);

  const ProcessSetTable& process_sets() const { return sets_; }
  const TensorTable& tensors() const { return table_; }
  uint64_t completed_on(SetId lane) const { return set_states_[lane].completed; }

 private:
  struct Outstanding {
    bool live = false;
    bool announced = false;  // handed out by Pop
    bool waited = false;
    bool wait_told = false;   // the wait is in the announcement, or an event for it was queued
    uint32_t sequence = 0;    // unnamed only
    TensorId id = kNoTensor;  // named only: of `spec`, once it has one
    SpecPtr spec;
    CallExtras extras;
  };
  struct Unnamed {
    struct Submitted {
      uint32_t sequence;
      Token token;  // kNoToken: ended out of turn
    };
    uint32_t next = 0;                // the next submission's sequence number
    uint32_t ended = 0;               // the next one after those that ended without this rank
    std::deque<Submitted> submitted;  // by sequence number

    Submitted* Find(uint32_t sequence);
  };
  struct SetState {
    uint64_t ordered = 0;
    uint64_t completed = 0;
    bool done_queued = false;
    bool closing = false;  // this rank has asked for the set's removal; nothing of it is in flight
  };
  enum class What : uint8_t { kAnnounce, kWaited, kDone, kLeave, kBlocked, kAsk, kWish };
  struct Outgoing {
    What what;
    Token token = 0;
    SetId lane = kWorldSet;
    Blocked blocked = {};
    Wished wished = {};
  };
  struct SpecHash {
    size_t operator()(const TensorSpec* spec) const { return spec->hash; }
  };
  struct SpecEqual {
    bool operator()(const TensorSpec* a, const TensorSpec* b) const { return a == b || *a == *b; }
  };

  absl::Status ApplyOrder(const Order& order, std::vector<Action>* actions);
  void ApplyReject(const Reject& reject, std::vector<Action>* actions);
  void NoteEnded(const TensorSpec& spec, uint32_t sequence);
  void CatchUp(SetId set);
  absl::Status ApplySetAdded(const SetAdded& added, std::vector<Action>* actions);
  absl::Status ApplySetRemoved(const SetRemoved& removed, std::vector<Action>* actions);
  absl::Status ApplyJoined(const Joined& joined, std::vector<Action>* actions);
  void ApplyDefine(const Define& define);
  void ApplyForget(const Forget& forget);
  void SetClosing(const Signature& removal, bool closing);
  // Ends this rank's unnamed operation and gives its token; kNoToken when it has none.
  Token EndUnnamed(SetId set, OpKind kind, uint32_t sequence);
  // The token of this rank's submission; -1 when there is none.
  int64_t TokenOf(const TensorSpec& spec, TensorId id, uint32_t sequence);
  // This rank's announced operation of the same set, pair and name, whatever its signature; or, if
  // it is unnamed, of that number. -1 when there is none.
  int64_t AnnouncedAs(const TensorSpec& spec, uint32_t sequence);
  void End(Token token);
  void TellWait(Token token);
  // Of a live one; kNoTensor while it has none.
  TensorId IdOf(const Outstanding& entry) const {
    return entry.spec->unnamed() ? table_.Find(*entry.spec) : entry.id;
  }

  const Rank rank_;
  ProcessSetTable sets_;
  TensorTable table_;
  std::vector<Outstanding> outstanding_;  // by token
  std::vector<int64_t> token_by_id_;      // named, by slot of the id; -1: none
  HashMap<const TensorSpec*, Token, SpecHash, SpecEqual> undefined_;  // named, no id yet
  HashMap<TensorSpec::UnnamedKey, Unnamed> unnamed_;
  std::vector<Token> waits_owed_;     // announced, waited, but no id yet
  std::vector<SetState> set_states_;  // by set
  std::deque<Outgoing> outgoing_;
  bool ask_queued_ = false;
  uint8_t agreed_ = 0;  // by the plan so far
  ControlEvent next_;
};

}  // namespace rueda
