// One stripe between hosts: a lane thread that connects to the members of the other hosts who have
// the same stripe, awaits their parts, has the operation make the finished stripe of them, and
// publishes that to the host. The engine hands over operations, and sends.
//
// The thread touches no tensor, so an abort need not wait for it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "ops/backend/lane_thread.h"
#include "ops/hierarchical/block_operation.h"
#include "ops/hierarchical/cross_buffers.h"

namespace rueda {

struct StripeExchangeArgs {
  ModuleArgs module;  // members: the hosts
  CutLimits limits;
  LocalRing* ring = nullptr;  // outlives the exchange
};

class StripeExchange {
 public:
  // Starts the thread; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<StripeExchange>> Create(StripeExchangeArgs args);
  // Aborts and joins the thread: see BlockingCommunicator.
  ~StripeExchange();

  // The engine's side: none of it blocks.

  // Begins an operation that has this stripe, and outlives it; the one before is finished. The ring
  // is open.
  void Start(BlockOperation* operation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether blocks can be sent; rings the engine when that comes true.
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  // Where this host's part of the block for a host belongs; free when all of its members have
  // filled the block.
  char* PartAt(int64_t block, int host) const;
  // Sends it.
  absl::Status Send(int64_t block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of an operation that is taken from parts: those of a finished block, by host; nobody needs them
  // any more.
  absl::Span<const char* const> Parts(int64_t block);
  absl::Status Release(int64_t block);
  // Why it can't go on; rings the engine.
  absl::Status failure() ABSL_LOCKS_EXCLUDED(mutex_);
  // See Communicator; a host.
  std::optional<Silence> SilentHost() ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  StripeExchange(StripeExchangeArgs args, std::unique_ptr<LaneStore> store,
                 rueda_module_communicator* library);
  // Whether a host takes a second trip's results.
  bool TakesMade(int host) const {
    return now_->layout().two_trips && now_->TakesWhatOthersMake(host);
  }

  // On the lane thread.
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseLibrary() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunOperation();
  absl::Status Connect();
  absl::Status Make(int64_t block);
  absl::Status CheckParts(int64_t block) const;
  absl::Status AwaitOwn(int64_t block) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SendResults(int64_t block);
  absl::Status Finish(int64_t block);
  absl::Status Cancelled() const;

  const StripeExchangeArgs args_;
  const std::unique_ptr<LaneStore> store_;
  CrossBuffers buffers_;

  Mutex mutex_;
  CondVar changed_;
  bool queued_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;  // blocks of the operation
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  std::atomic<bool> cancelled_{false};  // set under the mutex
  std::atomic<bool> connected_{false};
  rueda_module_communicator* library_ ABSL_GUARDED_BY(mutex_);  // null: closed

  // The operation: the engine writes it while the lane thread has none.
  BlockOperation* now_ = nullptr;

  // Of who makes results: the engine, of an operation that is taken from parts, else the lane
  // thread.
  std::vector<const char*> parts_;

  LaneThread thread_;
};

}  // namespace rueda
