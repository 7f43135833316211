// A communicator on a CUDA device: a stream of its own, which waits for the callers' events, and
// NCCL. The engine starts operations in plan order; the rank's device thread enqueues them one
// behind the other and never waits for the device; a thread that sleeps on their last events tells
// when they are done.
//
// One for the ordinary operations of a process set, and, when there are any, one for the urgent.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "ops/backend/communicator.h"
#include "ops/backend/lane_thread.h"
#include "ops/backend/store.h"
#include "ops/nccl/cuda_device.h"
#include "ops/nccl/device_program.h"

namespace rueda {

class DeviceCommunicator;

// What the device communicators of one rank share. They are made and ended by the engine.
class DeviceContext {
 public:
  struct Args {
    std::shared_ptr<CudaDevice> device;
    std::shared_ptr<Store> store;
    Nanos timeout = 0;  // of making a communicator
    bool in_rank_order = false;
    std::function<void()> wake;  // rings the engine; any thread
  };
  explicit DeviceContext(Args args);
  ~DeviceContext();

  const Args& args() const { return args_; }
  // The one thread of a rank that enqueues work on its device and calls NCCL: an application's
  // thread may be capturing a graph, and communicators of several process sets must be used in one
  // order on all ranks, that of the plan.
  LaneThread& thread() { return *thread_; }
  LaneStore& store() { return store_; }
  void Add(DeviceCommunicator* communicator) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(DeviceCommunicator* communicator) ABSL_LOCKS_EXCLUDED(mutex_);
  // The membership is over: whatever any of them waits for ends. Any thread.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Of a membership that is over: until when what is on the device is waited for.
  Nanos patient_until() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Says, the first time, that something stays on the device.
  void WarnOfRest();

  // The communicators' watchers, which end when nothing of theirs is on the device any more.
  void WatcherBegins() ABSL_LOCKS_EXCLUDED(mutex_);
  void WatcherEnds() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for them; false: not till then.
  bool AwaitWatchers(Nanos deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What NCCL's own threads have noticed. The device's thread.
  void CheckLibraries() ABSL_LOCKS_EXCLUDED(mutex_);

  const Args args_;
  LaneStore store_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> warned_{false};
  mutable Mutex mutex_;
  CondVar watcher_ended_;
  int watchers_ ABSL_GUARDED_BY(mutex_) = 0;
  Nanos patient_until_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<DeviceCommunicator*> communicators_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LaneThread> thread_;
};

class DeviceCommunicator : public Communicator, public Enqueuing {
 public:
  struct Args {
    std::string prefix;  // of the group's keys in the store; equal on all members
    int members = 1;
    int self = 0;
    bool urgent = false;
  };
  // Starts the threads; makes no communicator of NCCL's yet.
  static absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Create(
      std::shared_ptr<DeviceContext> context, Args args);
  // Waits until nothing of it is left on the device.
  ~DeviceCommunicator() override;

  // Begins to end it, when nothing is under way; then nothing else is called but `ended`, which
  // says whether the destructor would wait.
  void BeginEnd() { Post(&DeviceCommunicator::End); }
  bool ended() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes NCCL's communicator out of `parent`'s, when that one has done what it was given (NCCL
  // asks for that), instead of meeting anew. All members of the parent do so at the same place of
  // the plan: the members of this one with its color, the others by SkipSplit. Where NCCL can't,
  // they meet when the first operation comes. The parent outlives this.
  void SplitFrom(DeviceCommunicator* parent, int color) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes part in what others make out of this one.
  void SkipSplit() { Post(&DeviceCommunicator::SplitOff); }

  Enqueuing* enqueuing() override { return this; }
  void Start(const BucketOperation& operation) override ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceEvent NextEnqueued() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Progress> Advance() override ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all of the rank's device communicators: the membership is over.
  void Abort() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class DeviceContext;
  enum class State { kStarted, kEnqueued, kDone };
  struct Operation {
    BucketOperation operation;
    State state = State::kStarted;
    bool told = false;    // that it is enqueued
    bool failed = false;  // when a part of it was on the stream
    DeviceEvent event;    // behind its last work on the stream
  };
  // Of two members, for what only these take part in.
  struct Pair {
    rueda_cuda_communicator* communicator;
    int other;
  };

  DeviceCommunicator(std::shared_ptr<DeviceContext> context, Args args);

  // Has the device's thread call a function of this.
  void Post(void (DeviceCommunicator::*function)()) ABSL_LOCKS_EXCLUDED(mutex_);

  // On that thread.
  void Enqueue();
  absl::StatusOr<DeviceEvent> EnqueueOne(const BucketOperation& operation);
  absl::Status Open();
  absl::Status Connect();
  absl::StatusOr<Pair> PairWith(int other);
  void Split();
  void SplitOff();
  void ReserveLibrary() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Await(rueda_cuda_communicator* library);
  bool WaitUntilIdle() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<rueda_cuda_communicator*> Meet(const std::string& key, int members, int self);
  void CheckLibraries();
  void End();
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  void AbortLibrary() ABSL_LOCKS_EXCLUDED(mutex_);
  bool InFlight() const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<DeviceContext> context_;
  const Args args_;
  CudaDevice& device_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Operation> operations_ ABSL_GUARDED_BY(mutex_);  // by start
  size_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;               // of those
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;                   // and of them
  absl::Status status_ ABSL_GUARDED_BY(mutex_);               // what has gone wrong first
  int posted_ ABSL_GUARDED_BY(mutex_) = 0;                    // that have not returned
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                // nothing comes any more
  // NCCL's, all of them, for `abort`; the device's thread makes and ends them.
  std::vector<rueda_cuda_communicator*> libraries_ ABSL_GUARDED_BY(mutex_);

  // Constant once it was split.
  DeviceCommunicator* parent_ = nullptr;
  int color_ = 0;

  // The device thread's.
  int index_ = -1;  // the device
  void* stream_ = nullptr;
  rueda_cuda_communicator* library_ = nullptr;
  std::map<int, Pair> pairs_;  // by the other member
  std::unique_ptr<DeviceProgram> program_;

  std::thread watcher_;
};

}  // namespace rueda
