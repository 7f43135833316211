// What moves the bytes of one process set on one lane. A communicator's operation is a resumable
// machine: Start, then Advance until it is done; neither ever blocks, so that the engine can look
// after everything else meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/tensor/signature.h"

namespace rueda {

struct CompressionState;  // ops/compression/state.h

// An event of a device, such as a cudaEvent_t, recorded; null: there is none.
using DeviceEvent = std::shared_ptr<void>;

// One tensor of a bucket. The bucket is the dense sequence of its pieces; where the bytes of a
// bucket meet (a slot, a fusion buffer, cache-sized blocks, the tensors themselves) is the
// communicator's business.
struct Piece {
  // This rank's tensor; null when it has no elements, or nothing to give: it has joined, or is not
  // the one that gives.
  const void* input = nullptr;
  // May equal `input` where both have one shape; null: no result is wanted here.
  void* output = nullptr;
  int64_t elements =
      0;  // of `input`; where it is null, as many as others have (reductions, broadcast) or 0
  // Of compressed reductions: the first dimension, a number that tells the tensor from others,
  // alike on all members, and what is remembered of it (null: nothing).
  int64_t rows = 1;
  uint64_t identity = 0;
  CompressionState* state = nullptr;
};

// One collective operation on one bucket. Everything that pieces and lists point to stays valid
// until the operation is done; nothing else need.
//
// Root and peer are member indices; the compression is one that ops/compression has a way for.
struct BucketOperation : OperationTraits {
  DType dtype = DType::kUInt8;
  Scaling scaling;         // of reductions
  bool automatic = false;  // the compression was chosen, and how long it takes is to be measured
  // Reductions: member indices, ascending, of those that give nothing. The result is that of the
  // others; they do their part of the work, and get nothing.
  absl::Span<const int> absent;
  absl::Span<const Piece> pieces;  // none for a barrier, one for send/recv, else any number
  int64_t elements = 0;            // reductions, broadcast, send/recv: of all pieces together
  // Elements by piece, and for each piece: allgather, gather: by member, what it gives. Scatter,
  // reducescatter: by member, what it gets. Alltoall: by giver, then by taker.
  absl::Span<const int64_t> counts;
  uint32_t digest = 0;    // of the bucket's layout; must be equal on all members
  bool timed = false;     // whether phase_times are wanted
  uint64_t sequence = 0;  // different for each bucket of the process set, and equal on all members
  // On a device: the tensors may be touched behind these.
  absl::Span<const DeviceEvent> ready;

  bool compressed() const { return automatic || !compression.none(); }
  bool IsAbsent(int member) const {
    return !absent.empty() && std::binary_search(absent.begin(), absent.end(), member);
  }
  bool WantsResult(int member) const { return Gets(member) && !IsAbsent(member); }
};

enum class Progress {
  kDone,     // the results are there
  kMoved,    // some work was done; call again
  kBlocked,  // nothing to do until a peer (or a lane thread) rings this rank's doorbell
};

// How a communicator spent the time of one operation, for people. 0: it can't tell, it was not
// asked to, or there was nothing of that.
struct PhaseTimes {
  Nanos pack = 0;    // copying pieces to where they meet, in all
  Nanos unpack = 0;  // and copying them apart
  // When packing was over before anything moved, its end; when unpacking began after everything
  // had moved, its beginning.
  Nanos packed_at = 0;
  Nanos unpacking_at = 0;
};

// A member from whose host nothing comes, or to whose host nothing large goes, and for how long.
struct Silence {
  int member;
  Nanos time;
  bool is_of_large = false;
};

// What some communicators can do besides. Each is asked for once, when the communicator is made,
// and belongs to it.

// Does what an operation needs of this rank alone before the others know that this rank has it.
class EarlyStart {
 public:
  // The one before is done, and nobody has begun this one, as this rank has told nobody of it. Then
  // the next Start is of this operation, unless TakeBack or Drop comes first. False: nothing was
  // done, and Start does it all. Of `operation` only the traits without root and peer, dtype,
  // pieces, elements and digest are known.
  virtual bool Prepare(const BucketOperation& operation) = 0;
  // Cancels Prepare. The operation may still come, and others may have begun with it already.
  virtual void TakeBack() = 0;
  // Cancels Prepare. The operation was dropped, and never comes.
  virtual void Drop() = 0;

 protected:
  ~EarlyStart() = default;
};

// Operations may be started while others are under way, as on a device, where they are enqueued one
// behind the other. They are done in the order in which they were started, and Advance is about the
// first that is not.
class Enqueuing {
 public:
  // In the order of their start: behind the event that this returns the next one's results are
  // there, for who orders a stream behind it. Null: it is not enqueued yet.
  virtual DeviceEvent NextEnqueued() = 0;

 protected:
  ~Enqueuing() = default;
};

// Notices that the network carries nothing to a member any more.
class SilenceProbe {
 public:
  // As far as it can tell. The engine asks several times within the limit for silence, while
  // something is under way.
  virtual std::optional<Silence> SilentMember() = 0;

 protected:
  ~SilenceProbe() = default;
};

// Owned and called by the engine, one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Begins an operation. The one before is done, unless this is Enqueuing.
  virtual void Start(const BucketOperation& operation) = 0;

  // Goes on with it for at most about 100 us. An error ends the membership: UNAVAILABLE (a peer or
  // the network is gone), RESOURCE_EXHAUSTED, INTERNAL (the members' layouts differ).
  virtual absl::StatusOr<Progress> Advance() = 0;

  // Of the operation that has just ended.
  virtual PhaseTimes phase_times() const { return {}; }

  // Gives up on whatever is under way: afterwards this rank touches no memory of the operation's
  // tensors, and Advance is not called again. Bounded; wakes a lane thread that blocks in a
  // library.
  virtual void Abort() = 0;

  // What it can do besides; null: it can't.
  virtual EarlyStart* early_start() { return nullptr; }
  virtual Enqueuing* enqueuing() { return nullptr; }
  virtual SilenceProbe* silence_probe() { return nullptr; }
};

}  // namespace rueda
