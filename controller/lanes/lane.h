// A lane: executes the buckets of one process set, in plan order, on the communicators of that set.
// Owned and called by the engine.
//
// A lane has up to four queues, each with a communicator: for tensors on the CPU, for those of low
// priority, for tensors on a device, and for urgent ones there. A queue's buckets are done in plan
// order; two queues don't wait for each other.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "controller/lanes/buckets.h"
#include "ops/backend/backend.h"
#include "ops/compression/state.h"
#include "ops/hierarchical/cross_wire.h"
#include "ops/hierarchical/host_split.h"

namespace rueda {

enum class Queue { kCpu = 0, kDevice = 1, kUrgent = 2, kLow = 3 };
inline constexpr Queue kQueues[] = {Queue::kCpu, Queue::kDevice, Queue::kUrgent, Queue::kLow};
inline bool IsOnDevice(Queue queue) {
  return queue == Queue::kDevice || queue == Queue::kUrgent;
}
Queue QueueOf(const Signature& signature);

class Lane {
 public:
  // With the queue of tensors on the CPU. `split`: where the members are. `compression` outlives
  // this.
  Lane(SetId set, HostSplit split, int self, const Config& config, Backend* backend,
       std::unique_ptr<Communicator> communicator, CompressionStates* compression)
      : set_(set),
        split_(std::move(split)),
        self_(self),
        narrow_wire_(TravelsNarrow(config)),
        compression_(*compression) {
    Open(Queue::kCpu, backend, std::move(communicator));
  }

  SetId set() const { return set_; }
  const HostSplit& split() const { return split_; }
  bool has(Queue queue) const { return Of(queue).communicator != nullptr; }
  // Another queue, which it has not.
  void Open(Queue queue, Backend* backend, std::unique_ptr<Communicator> communicator) {
    QueueState& state = Of(queue);
    state.backend = backend;
    state.communicator = std::move(communicator);
    state.early = state.communicator->early_start();
    state.enqueuing = state.communicator->enqueuing();
    state.probe = state.communicator->silence_probe();
  }
  Backend& backend(Queue queue) const { return *Of(queue).backend; }
  // Null: it has not that queue.
  Communicator* communicator(Queue queue) const { return Of(queue).communicator.get(); }
  // The lane is not used again.
  std::unique_ptr<Communicator> Take(Queue queue) { return std::move(Of(queue).communicator); }

  // The engine has one more operation of the set.
  void Began(const Request& request) { in_flight_ += IsOfLowPriority(request) ? 0 : 1; }
  // Before each is announced. Does what can be done early of one that is this rank's only operation
  // of the set but for those of low priority: it is the next bucket then, as nothing is ordered
  // that this rank has not announced. Takes that back when another comes, which may be ordered
  // first.
  void Prepare(const Request& request);
  // It has ended, ordered or not.
  void Ended(const Request& request);

  // The buckets of the next batch. `auto` chooses here, and what is compressed is under way from
  // now on: they are all added.
  LaneBuckets Plan(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes);
  // All buckets of the next batch, of one queue, which it has.
  void Add(Queue queue, LaneBuckets buckets);
  // Never again after Abort: nothing advances then.
  bool busy() const {
    return !aborted_ && std::any_of(queues_.begin(), queues_.end(),
                                    [](const QueueState& queue) { return !queue.buckets.empty(); });
  }
  bool busy(Queue queue) const { return !aborted_ && !Of(queue).buckets.empty(); }
  // What the queue works on, or will next; it is busy.
  const LaneBucket& front(Queue queue) const { return Of(queue).buckets.front(); }

  // Goes on with the bucket at hand of a busy queue. kDone: the front bucket is finished; the
  // caller looks at it and then calls Pop.
  absl::StatusOr<Progress> Advance(Queue queue);
  // The requests whose last bucket has been enqueued on its device since; their events are set.
  void TakeEnqueued(Queue queue, std::vector<Request*>* enqueued);
  // How the communicator spent the time of the bucket that is finished.
  PhaseTimes phase_times(Queue queue, const LaneBucket& bucket) const {
    return bucket.data == nullptr ? Of(queue).communicator->phase_times() : PhaseTimes();
  }
  // That bucket, alone.
  LaneBuckets Pop(Queue queue);
  // How many more of the lane's batches, from the first on without a gap, are done. Those of
  // low priority count as done at once: nobody waits for them with what he has.
  int TakeFinishedBatches();
  // A barrier of all members, after everything else: then nobody is still reading what this rank
  // has sent, which closing its connections could take back. Where nothing was sent there is none.
  // Both say whether it is over; that it fails is no matter, somebody was faster.
  bool BeginFarewell();
  bool AdvanceFarewell();
  // A member that the network does not reach any more, while something is under way. And for a
  // while afterwards one that large packets don't reach, as the kernel may still have some to send.
  std::optional<Silence> SilentMember(Nanos now) const;
  // Gives up on everything; the lane is not used again, but what is queued can be looked at.
  void Abort();

 private:
  struct QueueState {
    Backend* backend = nullptr;
    LaneBuckets buckets;
    std::unique_ptr<Communicator> communicator;  // goes first: it may still look at these
    // What it can do besides; null: it can't.
    EarlyStart* early = nullptr;
    Enqueuing* enqueuing = nullptr;
    SilenceProbe* probe = nullptr;
    std::deque<LaneBucket*> to_enqueue;  // those that have been started and are not enqueued
    Nanos done_at = 0;                   // of the latest bucket
    bool used_connections = false;       // all members have done something over those between them
    bool says_farewell = false;          // that is under way
  };
  QueueState& Of(Queue queue) { return queues_[static_cast<size_t>(queue)]; }
  const QueueState& Of(Queue queue) const { return queues_[static_cast<size_t>(queue)]; }
  static bool IsOfLowPriority(const Request& request);
  std::optional<Silence> SilentMember(Queue queue, Nanos now) const;
  // Whether `auto` measures: over shared memory compression never pays.
  bool measures() const { return backend(Queue::kCpu).connects(); }
  Nanos RecordStart(const LaneBucket& bucket) const;
  void Start(QueueState& queue, LaneBucket* bucket);

  const SetId set_;
  const HostSplit split_;
  const int self_;          // this rank's member index
  const bool narrow_wire_;  // see CrossWire
  std::array<QueueState, std::size(kQueues)> queues_;
  CompressionStates& compression_;
  std::deque<int> batches_;  // buckets left, by batch; the first has number `batch_`
  uint64_t batch_ = 0;
  bool aborted_ = false;
  int in_flight_ = 0;                  // begun and not ended, but for low priority
  const Request* prepared_ = nullptr;  // may have been taken back
};

}  // namespace rueda
