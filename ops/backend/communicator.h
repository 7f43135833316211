// What moves the bytes of one process set on one lane. A communicator's operation is a resumable
// machine: Start, then Advance until it is done; neither ever blocks, so that the engine can look
// after everything else meanwhile.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/tensor/signature.h"

namespace rueda {

// One tensor of a bucket. The bucket is the dense sequence of its pieces; where the bytes of a
// bucket meet (a slot, a fusion buffer, cache-sized blocks, the tensors themselves) is the
// communicator's business.
struct Piece {
  const void* input = nullptr;  // this rank's tensor; null only when it has no elements
  void* output = nullptr;       // may equal `input`; null: the result is not wanted here
  int64_t elements = 0;         // allreduce, broadcast: everywhere the same. allgather: of `input`
};

// One collective operation on one bucket. Everything that pieces and counts point to stays valid
// until the operation is done; nothing else need.
struct Collective {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kNone;
  int root = -1;        // broadcast: member index
  double prescale = 1;  // allreduce; equal on all members
  double postscale = 1;
  absl::Span<const Piece>
      pieces;            // allreduce: any number; broadcast, allgather: one; barrier: none
  int64_t elements = 0;  // of all pieces together
  absl::Span<const int64_t>
      counts;           // allgather: elements by member; `output` holds them in that order
  uint32_t digest = 0;  // of the bucket's layout; must be equal on all members
  bool timed = false;   // whether phase_times are wanted
};

enum class Progress {
  kDone,     // the results are there
  kMoved,    // some work was done; call again
  kBlocked,  // nothing to do until a peer (or a lane thread) rings this rank's doorbell
};

// How a communicator spent the time of one operation, for people. 0: it can't tell, it was not asked
// to, or there was nothing of that.
struct PhaseTimes {
  Nanos pack = 0;    // copying pieces to where they meet, in all
  Nanos unpack = 0;  // and copying them apart
  // When packing was over before anything moved, its end; when unpacking began after everything
  // had moved, its beginning.
  Nanos packed_at = 0;
  Nanos unpacking_at = 0;
};

// Owned and called by the engine, one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Begins an operation. The one before is done.
  virtual void Start(const Collective& collective) = 0;

  // Goes on with it for at most about 100 us. An error ends the epoch: UNAVAILABLE (a peer or the
  // network is gone), RESOURCE_EXHAUSTED, INTERNAL (the members' layouts differ).
  virtual absl::StatusOr<Progress> Advance() = 0;

  // Of the operation that has just ended.
  virtual PhaseTimes phase_times() const { return {}; }

  // Gives up on whatever is under way: afterwards this rank touches no memory of the operation's
  // tensors, and Advance is not called again. Bounded; wakes a lane thread that blocks in a
  // library.
  virtual void Abort() = 0;
};

}  // namespace rueda
