// One stripe between hosts: a lane thread that connects to the members of the other hosts who have
// the same stripe, awaits what they send, reduces it with what this host's members bring, in the
// order of hosts, and publishes the finished slice to the host. The engine hands over operations,
// and sends.
//
// The thread touches no tensor, so an abort need not wait for it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "ops/backend/lane_thread.h"
#include "ops/hierarchical/cross_buffers.h"
#include "ops/kernels/reduce.h"

namespace rueda {

struct StripeExchangeArgs {
  ModuleArgs module;  // members: the hosts
  CutLimits limits;
  int stripe = 0;
  LocalRing* ring = nullptr;  // outlives the exchange
};

// One operation, as all who have the stripe know it.
struct CrossOperation {
  Cut cut;
  uint64_t first = 0;  // the number of its first block
  kernels::Wire wire;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::vector<bool> contributing;  // by host: whether any member brings something
  uint32_t digest = 0;
};

class StripeExchange {
 public:
  // Starts the thread; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<StripeExchange>> Create(StripeExchangeArgs args);
  // Aborts and joins the thread: see BlockingCommunicator.
  ~StripeExchange();

  // The engine's side: none of it blocks.

  // Begins an operation whose cut has this stripe; the one before is finished. The ring is open.
  void Start(const CrossOperation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether blocks can be sent; rings the engine when that comes true.
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  // Where the part for a host belongs of what this host brings to the block; free when all of its
  // members have filled the block.
  char* PartAt(int64_t block, int host) const;
  // Sends it.
  absl::Status Send(int64_t block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why it can't go on; rings the engine.
  absl::Status failure() ABSL_LOCKS_EXCLUDED(mutex_);
  // See Communicator; a host.
  std::optional<Silence> SilentHost() ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  StripeExchange(StripeExchangeArgs args, std::unique_ptr<LaneStore> store,
                 rueda_module_communicator* library);
  uint64_t Number(int64_t block) const { return now_.first + static_cast<uint64_t>(block); }
  Range Stripe(int64_t block) const { return now_.cut.Stripe(block, args_.stripe); }
  int PartIndex(int host) const { return now_.cut.direct ? 0 : host; }
  size_t Before(Range stripe, Range part) const {
    return static_cast<size_t>(part.begin - stripe.begin) * now_.cut.wire_bytes;
  }
  size_t SentBytes(int64_t block, int from, int to) const;

  // On the lane thread.
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseLibrary() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunOperation();
  absl::Status Connect();
  absl::Status ReducePart(int64_t block);
  absl::Status CheckParts(int64_t block) const;
  absl::Status AwaitOwn(int64_t block) ABSL_LOCKS_EXCLUDED(mutex_);
  void Reduce(int64_t block);
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
  CrossOperation now_;

  // The lane thread's.
  std::vector<const void*> sources_;
  std::unique_ptr<char[]> sums_;  // of results that are narrower

  LaneThread thread_;
};

}  // namespace rueda
