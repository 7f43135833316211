// One stripe between hosts, over Gloo: a lane thread that connects to the members of the other
// hosts who have the same stripe, awaits their parts, has the operation make the finished stripe of
// them, and publishes that to the host. The engine hands over operations, and sends.
//
// The thread touches no tensor, so an abort need not wait for it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "ops/backend/lane_thread.h"
#include "ops/hierarchical/cross_buffers.h"
#include "ops/hierarchical/stripe_exchange.h"

namespace rueda {

struct GlooExchangeArgs {
  ModuleArgs module;  // members: the hosts
  CutLimits limits;
  LocalRing* ring = nullptr;  // outlives the exchange
};

class GlooExchange : public StripeExchange {
 public:
  // Starts the thread; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<GlooExchange>> Create(GlooExchangeArgs args);
  // Aborts and joins the thread: see BlockingCommunicator.
  ~GlooExchange() override;

  void Start(BlockOperation* operation) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const override { return connected_.load(std::memory_order_acquire); }
  char* PartAt(int64_t block, int host) const override;
  bool sends_from_anywhere() const override { return false; }
  absl::Status Send(int64_t block, absl::Span<const char* const> parts) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<bool> Advance() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Span<const char* const> Parts(int64_t block) override;
  absl::Status Release(int64_t block) override;
  std::optional<Silence> SilentHost() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  GlooExchange(GlooExchangeArgs args, std::unique_ptr<LaneStore> store,
               rueda_module_communicator* library);

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

  const GlooExchangeArgs args_;
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
