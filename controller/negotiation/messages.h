// What ranks announce and what the plan stream says. Values; the wire forms are in
// controller/protocol. PURE
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "controller/membership/leader_tree.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/tensor/signature.h"

namespace rueda {

// The same number on all ranks; of a group's part with its own name for `name`.
uint64_t IdentityOf(SetId set, absl::string_view name, OpKind kind);

// What the first use of a name carries. Immutable once made, hence shared.
struct TensorSpec {
  SetId set = kWorldSet;
  std::string name;  // empty: unnamed, matched by kind (and pair) and sequence number
  Signature signature;
  size_t hash = 0;        // of the above; equal within one process only
  uint64_t identity = 0;  // of set, name and kind; equal on all ranks

  bool unnamed() const { return name.empty(); }
  // Of a send/recv, who sends and who receives: names and numbers are theirs. Else {-1, -1}.
  std::pair<Rank, Rank> pair() const {
    if (signature.peer < 0) return {-1, -1};
    return {signature.root, signature.peer};
  }
  // What unnamed operations are matched by, besides their sequence number.
  using UnnamedKey = std::tuple<SetId, OpKind, Rank, Rank>;
  UnnamedKey unnamed_key() const { return {set, signature.kind, pair().first, pair().second}; }
  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.hash == b.hash && a.set == b.set && a.name == b.name && a.signature == b.signature;
  }
};
using SpecPtr = std::shared_ptr<const TensorSpec>;

SpecPtr MakeSpec(SetId set, std::string name, Signature signature);

// The later of two sequence numbers, which go round.
inline uint32_t LaterSequence(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) > 0 ? a : b;
}

// "allreduce 'w'", "unnamed barrier #4" (where the number is known): for people.
std::string SpecLabel(const TensorSpec& spec, std::optional<uint32_t> sequence = std::nullopt);

// Whether the operation can complete without the rank, which has joined: it is not the one that
// sends or receives, and the operation does not change process sets.
bool CanMiss(const Signature& signature, Rank rank);

// What may differ from call to call, and the first dimensions also from rank to rank.
struct CallExtras {
  Scaling scaling;
  // Allgather, gather: the first dimension of each part. Alltoall, and scatter at its root: how
  // many rows go to each member, or one number, which goes to all in equal parts. Removal of a
  // process set: how many operations this rank has in flight there.
  std::vector<int64_t> first_dims;
  // Null, or one of the two below.
  std::shared_ptr<const std::string> said;
  bool is_fault = false;

  // Not null: why this rank can't take part, in at most kFaultBytesMax. It brings no dimensions,
  // and the operation fails on all ranks.
  const std::string* fault() const { return is_fault ? said.get() : nullptr; }
  // Not null: what this rank brings, BytesBrought of them. Where all ranks say, the plan brings it
  // to all, and nothing else has to be moved.
  const std::string* data() const { return is_fault ? nullptr : said.get(); }
  void SayFault(std::string fault) {
    said = std::make_shared<const std::string>(std::move(fault));
    is_fault = true;
  }
  void SayData(std::string data) {
    said = std::make_shared<const std::string>(std::move(data));
    is_fault = false;
  }
  bool empty() const { return scaling.none() && first_dims.empty() && said == nullptr; }
};

// The bytes that a rank brings to an operation whose data may be in the plan; -1: to another, or
// too many to say. `first_dims`: the rank's.
int64_t BytesBrought(const Signature& signature, absl::Span<const int64_t> first_dims, Rank rank);

// INVALID_ARGUMENT when the extras of `rank` don't go with the operation of a set of `members`: a
// peer that speaks nonsense.
absl::Status CheckExtras(const TensorSpec& spec, const CallExtras& extras, int members, Rank rank);

// "I have this tensor". Once an id is defined, the id stands for the spec. A leader's, for several
// ranks, has no extras: what differs by rank each says for itself.
struct Announcement {
  TensorId id = kNoTensor;
  SpecPtr spec;         // when id is kNoTensor
  bool waited = false;  // somebody waits for it already
  bool partly = false;  // of several ranks, some wait for it and others don't
  uint16_t done = 0;    // low bits of how many batches of the set's lane have been completed
  CallExtras extras;
};

// The k-th use of an unnamed (set, kind) has sequence number k; named tensors have 0.
struct Announced {
  Announcement announcement;
};
struct Waited {  // a rank waits for something that it announced before
  TensorId id;
  uint16_t sequence;
};
struct Done {  // a rank has completed the first `count` (low bits) batches of a lane
  SetId lane;
  uint16_t count;
};
struct Leave {  // a rank has shut down; it announces nothing any more
};
struct Expire {  // the leader's clock says that this is overdue
  TensorId id;
  uint16_t sequence;
};

// How long all the threads of a rank that wait have waited for what does not come, while nothing of
// the rank's moved: controller/failure/deadlock_watch.h.
struct Blocked {
  enum Level : uint8_t {
    kNot,
    kForMoments,
    kForTheLimit,  // RUEDA_DEADLOCK_TIMEOUT_S
    kStill,        // the answer to a StillBlocked
  };
  Level level;
  uint16_t question = 0;  // kStill: which it answers
};

// A rank wishes that all ranks do something at the same place of their programs: bits, whose
// meaning is the caller's.
struct Wished {
  uint8_t bits;
};

struct Asked {  // a rank wants to know who is missing where it waits: Told
};

// The coordinator's input: what one rank put into the log, or what a leader says for others, which
// is an announcement or a wait.
struct ControlEvent {
  // Those whose word it is: `rank` itself, or ranks that `leaders` (null: there are none) has.
  // None: the rank may not speak for others.
  absl::Span<const Rank> SpokenFor(const LeaderTree* leaders) const {
    if (speaks_for == SpeaksFor::kRank) return absl::MakeConstSpan(&rank, 1);
    if (leaders == nullptr || !leaders->IsLeader(rank)) return {};
    return leaders->RanksOf(rank, speaks_for);
  }

  Rank rank = 0;
  std::variant<Announced, Waited, Done, Leave, Expire, Blocked, Asked, Wished> what;
  SpeaksFor speaks_for = SpeaksFor::kRank;
};

// The plan stream. ---------------------------------------------------------------------------

struct Define {
  TensorId id;
  SpecPtr spec;
};
struct Forget {
  TensorId id;
};
struct Ordered {
  TensorId id = kNoTensor;
  uint32_t sequence = 0;
  // Allgather, gather: by member, then by part. Scatter: the rows of each member. Alltoall: by
  // member what it brings, if all send equal parts; else the rows by sender, then by receiver.
  std::vector<int64_t> first_dims;
};
// What all members bring to an operation, by member.
using PlannedData = std::shared_ptr<const std::vector<std::string>>;
// One closed batch: fusion never crosses its end.
struct Order {
  SetId lane = kWorldSet;
  absl::InlinedVector<Ordered, 2> batch;
  Rank from = -1;  // of a send/recv: nobody else has anything to do
  Rank to = -1;
  // Ranks that have joined: they submitted nothing, bring no rows, and do their part of the work
  // all the same. The scale factors are for them. Of a send/recv: none.
  std::vector<Rank> absent;
  Scaling scaling;
  // Of the one operation of the batch. Null: the lane moves it.
  PlannedData data;
};
// Of a join: those whom it concerns count their unnamed operations of the set on from the last of
// each kind that has ended. They have missed those before.
struct Reject {
  SpecPtr spec;  // of one of those who announced it; tells set, name and kind
  uint32_t sequence = 0;
  std::vector<Rank> ranks;  // whom it concerns: those who had announced it. Ascending
  absl::Status status;
};
struct SetAdded {
  SetId set;
  std::vector<Rank> ranks;
  uint32_t sequence;  // of the operation that asked for it
};
struct SetRemoved {
  SetId set;
  uint32_t sequence;  // of the operation that asked for it
};
struct Joined {  // all ranks of the set have; its unnamed operations are counted from 0 again
  SetId set;
  Rank last;
  uint32_t sequence;
};
struct Left {
  Rank rank;
};
// All ranks have said that they are blocked for the limit, some a while ago: is each still?
struct StillBlocked {
  uint16_t question;
};

// What ranks have wished for by here. Whoever has waited for an operation that is ordered behind
// this knows, and so does each other rank that has.
struct Agreed {
  uint8_t bits;
};

// To a rank that has asked: of one operation that it has submitted, who has too and who has not.
// For people; times are of the clock where it was written. `spec` has at most one tensor.
struct Told {
  Rank rank;
  SpecPtr spec;
  uint32_t sequence;
  std::string text;
};

using PlanItem = std::variant<Define, Forget, Order, Reject, SetAdded, SetRemoved, Joined, Left,
                              StillBlocked, Told, Agreed>;
using Plan = std::vector<PlanItem>;

}  // namespace rueda
