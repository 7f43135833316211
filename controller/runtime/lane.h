// A lane: executes the buckets of one process set, in plan order, on the communicators of that set.
// Owned and called by the engine.
//
// A lane has up to three ways, each with a communicator: for tensors on the CPU, on a device, and
// for urgent ones on a device. A way's buckets are done in plan order; two ways don't wait for each
// other.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "controller/runtime/buckets.h"
#include "ops/backend/backend.h"
#include "ops/compression/state.h"

namespace rueda {

enum class Way { kCpu = 0, kDevice = 1, kUrgent = 2 };
inline constexpr Way kWays[] = {Way::kCpu, Way::kDevice, Way::kUrgent};
Way WayOf(const Signature& signature);

class Lane {
 public:
  // With the way of tensors on the CPU. `compression` outlives this.
  Lane(SetId set, const Backend* backend, std::unique_ptr<Communicator> communicator,
       CompressionStates* compression)
      : set_(set), compression_(*compression) {
    Open(Way::kCpu, backend, std::move(communicator));
  }

  SetId set() const { return set_; }
  bool has(Way way) const { return Of(way).communicator != nullptr; }
  // Another way, which it has not.
  void Open(Way way, const Backend* backend, std::unique_ptr<Communicator> communicator) {
    WayState& state = Of(way);
    state.backend = backend;
    state.communicator = std::move(communicator);
    state.early = state.communicator->early_start();
    state.enqueuing = state.communicator->enqueuing();
    state.probe = state.communicator->silence_probe();
  }
  const Backend& backend(Way way) const { return *Of(way).backend; }
  // Null: it has not that way.
  Communicator* communicator(Way way) const { return Of(way).communicator.get(); }
  // The lane is not used again.
  std::unique_ptr<Communicator> Take(Way way) { return std::move(Of(way).communicator); }

  // The engine has one more operation of the set.
  void Began() { ++live_; }
  // Before each is announced. Does what can be done early of one that is this rank's only operation
  // of the set: it is the next bucket then, as nothing is ordered that this rank has not announced.
  // Takes that back when another comes, which may be ordered first.
  void Prepare(const Request& request);
  // It has ended, ordered or not.
  void Ended(const Request& request);

  // The buckets of the next batch. `auto` chooses here, and what is compressed is under way from
  // now on: they are all added.
  std::vector<LaneBucket> Plan(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes);
  // All buckets of the next batch, of one way, which it has.
  void Add(Way way, std::vector<LaneBucket> buckets);
  // Never again after Abort: nothing advances then.
  bool busy() const {
    return !aborted_ && std::any_of(ways_.begin(), ways_.end(),
                                    [](const WayState& way) { return !way.queue.empty(); });
  }
  bool busy(Way way) const { return !aborted_ && !Of(way).queue.empty(); }
  // What the way works on, or will next; it is busy.
  const LaneBucket& front(Way way) const { return Of(way).queue.front(); }

  // Goes on with the bucket at hand of a busy way. kDone: the front bucket is finished; the caller
  // looks at it and then calls Pop.
  absl::StatusOr<Progress> Advance(Way way);
  // The requests whose last bucket has been enqueued on its device since; their events are set.
  void TakeEnqueued(Way way, std::vector<Request*>* enqueued);
  // How the communicator spent the time of the bucket that is finished.
  PhaseTimes phase_times(Way way) const { return Of(way).communicator->phase_times(); }
  LaneBucket Pop(Way way);
  // How many more of the lane's batches, from the first on without a gap, are done.
  int TakeFinishedBatches();
  // A barrier of all members, after everything else: then nobody is still reading what this rank
  // has sent, which closing its connections could take back. Where nothing was sent there is none.
  // Both say whether it is over; that it fails is no matter, somebody was faster.
  bool BeginFarewell();
  bool AdvanceFarewell();
  // A member that the network does not reach any more, while something is under way.
  std::optional<Silence> SilentMember() {
    SilenceProbe* const probe = Of(Way::kCpu).probe;
    return probe != nullptr && busy(Way::kCpu) ? probe->SilentMember() : std::nullopt;
  }
  // Gives up on everything; the lane is not used again, but what is queued can be looked at.
  void Abort();

 private:
  struct WayState {
    const Backend* backend = nullptr;
    std::deque<LaneBucket> queue;
    std::unique_ptr<Communicator> communicator;  // goes first: it may still look at the queue's
    // What it can do besides; null: it can't.
    EarlyStart* early = nullptr;
    Enqueuing* enqueuing = nullptr;
    SilenceProbe* probe = nullptr;
    size_t started = 0;   // of the queue
    size_t enqueued = 0;  // of those
    Nanos done_at = 0;    // of the latest bucket
  };
  WayState& Of(Way way) { return ways_[static_cast<size_t>(way)]; }
  const WayState& Of(Way way) const { return ways_[static_cast<size_t>(way)]; }
  Communicator& cpu() { return *Of(Way::kCpu).communicator; }
  // Whether `auto` measures: over shared memory compression never pays.
  bool measures() const { return backend(Way::kCpu).connects(); }
  void Start(WayState& way);

  const SetId set_;
  std::array<WayState, std::size(kWays)> ways_;
  CompressionStates& compression_;
  std::deque<int> batches_;  // buckets left, by batch; the first has number `batch_`
  uint64_t batch_ = 0;
  bool aborted_ = false;
  bool crosses_ = false;  // all members have done something over connections between them
  enum class Farewell { kNone, kUnderWay, kOver };
  Farewell farewell_ = Farewell::kNone;
  int live_ = 0;                       // those that have begun and not ended
  const Request* prepared_ = nullptr;  // may have been taken back
};

}  // namespace rueda
