// The lanes of one rank, by process set: opens them, gives them what the plan launches, and moves
// them on. After Abort nothing moves, and no tensor's memory is touched.
//
// Owner: the engine; the holder of the baton.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "controller/failure/watch.h"
#include "controller/lanes/lane.h"
#include "controller/lanes/tracks.h"
#include "controller/negotiation/member.h"
#include "controller/rendezvous/bootstrap.h"
#include "core/config/config.h"
#include "ops/backend/device.h"
#include "ops/compression/state.h"

namespace rueda {

class Lanes {
 public:
  // Who is told how operations go on.
  class Listener {
   public:
    // All its work is on its device's stream.
    virtual void OnEnqueued(Request* request) = 0;
    // Its last bucket is done, since `at`; `local_error` is set.
    virtual void OnLastBucketDone(Request* request, Nanos at) = 0;

   protected:
    ~Listener() = default;
  };

  // What outlives this.
  struct Args {
    const World* world = nullptr;
    const Config* config = nullptr;
    Member* member = nullptr;
    Tracks* tracks = nullptr;
    const Timeline* timeline = nullptr;
    std::atomic<uint32_t>* activity = nullptr;  // what this rank works on, for its neighbours
    const std::vector<std::unique_ptr<Backend>>* backends = nullptr;
    Listener* listener = nullptr;
  };
  explicit Lanes(Args args);
  ~Lanes();

  // Opens the lane of a set that has none, if this rank is a member. What takes long (connections)
  // happens behind the first operation.
  absl::Status Open(SetId set);
  // After Open of a set that was added: while the world uses devices its communicator there is made
  // at once, out of the world's, and not in the middle of a step. Every rank calls it.
  absl::Status OpenOnDevice(SetId set);
  // The set is removed.
  void Close(SetId set);

  // Null where this rank is no member.
  Lane* Find(SetId set) const {
    return static_cast<size_t>(set) < lanes_.size() ? lanes_[set].get() : nullptr;
  }

  // Before it is announced: gives it the data that this rank brings, if that may go with the
  // announcement.
  void Bring(Request* request) const;
  // One batch; `requests`: by token. The error, for people, says what could not be done here: the
  // batch is not launched then, and the others' would wait for it.
  absl::Status Launch(const rueda::Launch& launch, absl::Span<Request* const> requests);

  // Whether any has something to do.
  bool busy() const { return busy_ > 0; }
  // Each busy lane takes a step, and tells the listener; until goes_on() is false. What is of low
  // priority, if nothing else has moved or it has waited for 10 ms. Returns whether anything moved;
  // UNAVAILABLE: a connection broke, which may be anybody's.
  absl::StatusOr<bool> Advance(absl::FunctionRef<bool()> goes_on);

  // A barrier of each lane's members behind everything else, so that nobody closes while others
  // read. Returns whether all are over.
  bool SayFarewell(bool begin);

  // A rank that the network does not reach any more, while something is under way.
  std::optional<Watch::Lost> SilentRank() const;

  // Gives up on everything. Operations that were under way get their time of start, for people.
  void Abort();

  // Calls fn(lane) for each lane that this rank has.
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      if (lane != nullptr) fn(*lane);
    }
  }

  CompressionStates& compression() { return compression_; }
  DeviceBackend& on_device() const { return *on_device_; }

 private:
  Members MembersOf(SetId set) const;
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectOnCpu(Backend* backend,
                                                             const Members& members);
  bool NeighbourIsThrough(SetId set) const;
  bool PlanBrings(const Lane& lane) const;
  absl::Status OpenQueue(Lane& lane, Queue queue, Communicator* parent);
  absl::Status OpenOfLowPriority(Lane& lane);
  absl::StatusOr<std::shared_ptr<void>> Allocate(Queue queue, size_t bytes) const;
  absl::StatusOr<bool> AdvanceQueues(absl::Span<const Queue> queues,
                                     absl::FunctionRef<bool()> goes_on);
  absl::StatusOr<bool> AdvanceQueue(Lane& lane, Queue queue);
  void TellOfExactAverages(const LaneBuckets& buckets);
  void OnBucketDone(Lane& lane, Queue queue);
  void CountBatches(Lane& lane);

  const Args args_;
  DeviceBackend* on_device_ = nullptr;  // one of the backends
  CompressionStates compression_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by set; null where this rank is no member
  int busy_ = 0;
  int low_buckets_ = 0;  // of low priority
  Nanos low_at_ = 0;     // when these took their last step
  bool aborted_ = false;
  bool told_of_exact_averages_ = false;
  std::vector<Request*> enqueued_;  // scratch
};

}  // namespace rueda
