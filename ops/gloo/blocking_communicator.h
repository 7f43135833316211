// A communicator over a library that can only block, behind a module's table of functions. A lane
// thread of its own owns the library's object: it connects behind the first operation, packs,
// converts and scales, calls the library, unpacks, and rings the engine. The engine only hands
// operations over and looks whether they are done.
//
// An operation goes through the library in chunks, so that memory for packing is bounded whatever
// the size of the bucket, and an abort need not wait for the whole of it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "ops/backend/channels.h"
#include "ops/backend/communicator.h"
#include "ops/backend/lane_thread.h"
#include "ops/backend/module_abi.h"
#include "ops/backend/module_library.h"
#include "ops/backend/pieces.h"
#include "ops/backend/store.h"
#include "ops/kernels/reduce.h"

namespace rueda {

class BlockingCommunicator : public Communicator, public SilenceProbe {
 public:
  // Starts the thread; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<BlockingCommunicator>> Create(ModuleArgs args);
  // Aborts and joins the thread. If that waits for a key of the store, it does so until the store
  // is aborted or the time-out passes.
  ~BlockingCommunicator() override;

  void Start(const BucketOperation& operation) override ABSL_LOCKS_EXCLUDED(mutex_);
  // The library's error, in its words. What only time told (nobody came, nothing moved) is
  // UNAVAILABLE like a lost connection.
  absl::StatusOr<Progress> Advance() override ABSL_LOCKS_EXCLUDED(mutex_);
  SilenceProbe* silence_probe() override { return this; }
  std::optional<Silence> SilentMember() override ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns once the thread has left the tensors alone: the library's call ends at once, and
  // between calls the thread looks every few hundred KiB. The thread then closes the connections,
  // which tells the peers.
  void Abort() override ABSL_LOCKS_EXCLUDED(mutex_);
  // Packing includes converting and scaling. The thread has been done with it since Advance said
  // so.
  PhaseTimes phase_times() const override { return times_; }

 private:
  enum class State { kIdle, kQueued, kConnecting, kMoving, kDone };

  BlockingCommunicator(ModuleArgs args, std::unique_ptr<LaneStore> store,
                       rueda_module_communicator* library);
  void Cancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLibrary() ABSL_LOCKS_EXCLUDED(mutex_);

  // On the lane thread.
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunOperation() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Connect();
  absl::Status Move();
  absl::Status Allreduce();
  absl::Status Allgather();
  absl::Status Broadcast();
  absl::Status Barrier();
  // Gather, scatter, alltoall, reducescatter: everything from whom it is to whom it is for.
  absl::Status Exchange();
  absl::Status ExchangeRound(size_t channel_bytes);
  size_t Collect(int taker, size_t channel_bytes, std::vector<rueda_module_transfer>* sends,
                 char** scratch);
  void ReduceRound(absl::Span<char* const> received, size_t bytes);
  absl::Status SendOrReceive();
  void Fill(int64_t begin, int64_t end, char* wire);
  void Drain(int64_t begin, int64_t end, char* wire);
  // Memory of at least that size; null when there is none.
  char* Scratch(size_t bytes);
  uint32_t NextTag();
  absl::Status Cancelled() const;
  absl::Status StatusOf(int32_t code, const char* message) const;

  const rueda_module* const module_;
  const int members_;
  const int self_;
  const std::unique_ptr<LaneStore> store_;
  const std::function<void()> wake_;

  Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};  // set under the mutex

  // Constant while the lane thread runs; written under the mutex. That thread reads it without.
  rueda_module_communicator* library_;

  // Handed over with the state: the engine's before kQueued and from kDone on, the lane thread's
  // between.
  BucketOperation operation_;
  PhaseTimes times_;

  // The lane thread's.
  bool connected_ = false;  // to everybody
  uint32_t operations_ = 0;
  Pieces pieces_;
  Channels channels_;
  kernels::Wire wire_;     // of an allreduce or reduce
  bool in_place_ = false;  // a lone tensor that is reduced where it is
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
  std::unique_ptr<char[]> narrow_;  // a block of a bucket of narrow floats, packed

  LaneThread thread_;
};

}  // namespace rueda
