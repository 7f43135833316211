// A lane: executes the buckets of one process set in plan order, one at a time, on the communicator
// of that set. Owned and called by the engine.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "controller/membership/process_sets.h"
#include "controller/runtime/request.h"
#include "core/fusion/planner.h"
#include "ops/backend/backend.h"
#include "ops/compression/state.h"

namespace rueda {

// A bucket on its way through a lane.
struct LaneBucket {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce_op = ReduceOp::kNone;
  DType dtype = DType::kUInt8;
  int root = -1;  // member index
  int peer = -1;  // member index
  double prescale = 1;
  double postscale = 1;
  int64_t divisor = 1;
  Compression compression;  // as chosen, if it is automatic
  bool automatic = false;
  int64_t elements = 0;
  uint32_t digest = 0;
  TensorId first_id = kNoTensor;  // for people: what the bucket begins with
  bool ends_batch = false;
  uint64_t sequence = 0;
  bool timed = false;    // whether somebody will ask for phase_times
  Nanos started_at = 0;  // 0: not yet
  Nanos done_at = 0;
  std::vector<Piece> pieces;
  std::vector<Request*> requests;  // by piece; a barrier's has no piece. Null: others' alone
  std::vector<int64_t> counts;     // see Collective
  std::vector<int> absent;         // see Collective
};

class Lane {
 public:
  // `compression` outlives this.
  Lane(SetId set, const Backend* backend, std::unique_ptr<Communicator> communicator,
       CompressionStates* compression)
      : set_(set),
        backend_(backend),
        communicator_(std::move(communicator)),
        compression_(*compression) {}

  SetId set() const { return set_; }
  const Backend& backend() const { return *backend_; }

  // The engine has one more operation of the set.
  void Began() { ++live_; }
  // Before each is announced. Does what can be done early of one that is this rank's only operation
  // of the set: it is the next bucket then, as nothing is ordered that this rank has not announced.
  // Takes that back when another comes, which may be ordered first.
  void Prepare(const Request& request);
  // It has ended, ordered or not.
  void Ended(const Request& request);

  void Add(LaneBucket bucket);
  bool busy() const { return !queue_.empty(); }
  // What it works on, or will next; the lane is busy.
  const LaneBucket& front() const { return queue_.front(); }

  // Goes on with the bucket at hand. kDone: the front bucket is finished; the caller looks at it
  // and then calls Pop.
  absl::StatusOr<Progress> Advance();
  // How the communicator spent the time of the bucket that is finished.
  PhaseTimes phase_times() const { return communicator_->phase_times(); }
  LaneBucket Pop();
  // A barrier of all members, after everything else: then nobody is still reading what this rank
  // has sent, which closing its connections could take back. Where nothing was sent there is none.
  // Both say whether it is over; that it fails is no matter, somebody was faster.
  bool BeginFarewell();
  bool AdvanceFarewell();
  // A member that the network does not reach any more, while something is under way.
  std::optional<Silence> SilentMember() {
    return busy() ? communicator_->SilentMember() : std::nullopt;
  }
  // Whether `auto` measures: over shared memory compression never pays.
  bool measures() const { return backend_->connects(); }
  // Gives up on everything; the lane is not used again, but what is queued can be looked at.
  void Abort();

 private:
  const SetId set_;
  const Backend* const backend_;
  const std::unique_ptr<Communicator> communicator_;
  CompressionStates& compression_;
  std::deque<LaneBucket> queue_;
  bool started_ = false;
  bool aborted_ = false;
  bool crosses_ = false;  // all members have done something over connections between them
  enum class Farewell { kNone, kUnderWay, kOver };
  Farewell farewell_ = Farewell::kNone;
  int live_ = 0;                       // those that have begun and not ended
  const Request* prepared_ = nullptr;  // may have been taken back
};

// One operation of a batch.
struct LaneOperation {
  Request* request;  // null: this rank has joined, and takes part for the others
  TensorId id;
  const TensorSpec* spec;
  absl::Span<const PartArgs> parts;
  absl::Span<const int64_t> first_dims;  // as planned
};

struct LaneBatch {
  std::vector<LaneOperation> operations;  // in plan order
  double prescale = 1;
  double postscale = 1;
  std::vector<int> absent;  // member indices
  uint64_t sequence = 0;    // of the batch on its lane
};

// The buckets of one batch. Outputs that this rank wants have their memory already. `measures`:
// see Lane.
void MakeBuckets(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes, bool measures,
                 CompressionStates* states, std::vector<LaneBucket>* buckets);

}  // namespace rueda
