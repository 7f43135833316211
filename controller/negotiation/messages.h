// What ranks announce and what the plan stream says. Values; the wire forms are in
// controller/protocol. PURE
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/tensor/signature.h"

namespace rueda {

// What the first use of a name carries. Immutable once made, hence shared.
struct TensorSpec {
  SetId set = kWorldSet;
  std::string name;  // empty: unnamed, matched by kind and sequence number
  Signature signature;
  size_t hash = 0;  // of the above; equal within one process only

  bool unnamed() const { return name.empty(); }
  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.hash == b.hash && a.set == b.set && a.name == b.name && a.signature == b.signature;
  }
};
using SpecPtr = std::shared_ptr<const TensorSpec>;

SpecPtr MakeSpec(SetId set, std::string name, Signature signature);

// "allreduce 'w'", "unnamed barrier #4": for people.
std::string SpecLabel(const TensorSpec& spec, uint32_t sequence);

// What may differ from call to call, and the first dimensions also from rank to rank.
struct CallExtras {
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> first_dims;  // allgather: one a part

  bool scaled() const { return prescale != 1 || postscale != 1; }
  bool empty() const { return !scaled() && first_dims.empty(); }
};

// INVALID_ARGUMENT when the extras don't go with the operation: a peer that speaks nonsense.
absl::Status CheckExtras(const TensorSpec& spec, const CallExtras& extras);

// One rank's "I have this tensor". Once an id is defined, the id stands for the spec.
struct Announcement {
  TensorId id = kNoTensor;
  SpecPtr spec;         // when id is kNoTensor
  bool waited = false;  // somebody waits for it already
  uint16_t done = 0;    // low bits of how many batches of the set's lane this rank has completed
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

// The coordinator's input: what one rank put into the log.
struct ControlEvent {
  Rank rank = 0;
  std::variant<Announced, Waited, Done, Leave, Expire> what;
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
  std::vector<int64_t> first_dims;  // allgather: by member, then by part
};
// One closed batch: fusion never crosses its end.
struct Order {
  SetId lane = kWorldSet;
  absl::InlinedVector<Ordered, 2> batch;
};
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
struct Left {
  Rank rank;
};

using PlanItem = std::variant<Define, Forget, Order, Reject, SetAdded, Left>;
using Plan = std::vector<PlanItem>;

}  // namespace rueda
