// The backend "rueda" of torch.distributed: a process group's operations over a context.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/torch/c10d/any_source.h"
#include "bindings/torch/c10d/session.h"
#include "bindings/torch/c10d/work.h"

namespace rueda::libtorch {

// Thread-safe. Tensors are strided, of any memory layout, on the CPU or on CUDA; each operation
// says what else. Operations of one group are matched by their order. What is wrong with a call is
// Python's ValueError or one of rueda.errors, as is how an operation ended.
class GroupBackend final : public c10d::Backend {
 public:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // Of ranks that have met. `store`: the group's own part of torch's.
  GroupBackend(rueda_context* context, const c10::intrusive_ptr<c10d::Store>& store, int rank,
               int size, Milliseconds timeout, const std::string& name,
               std::vector<int64_t> global_ranks);
  ~GroupBackend() override;

  // ---- what it is ----

  const std::string getBackendName() const override { return "rueda"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }
  // How many operations this rank has begun.
  void setSequenceNumberForGroup() override {}
  // Works always know when they began and ended.
  void enableCollectivesTiming() override {}
  // Called with each work that ends from now on, one after another, on a thread of the backend's.
  // Once, before there are threads that call operations.
  void registerOnCompletionHook(CompletionHook::Hook&& hook) override;
  // Waits until all works that were begun have ended, and the hook was called for them; for the
  // group's limit. Throws the first error of a work or of the hook.
  void waitForPendingWorks() override;
  uint64_t getSequenceNumberForGroup() override { return begun_; }
  c10d::ErrorType getError() override;
  void shutdown() override { session_->Shutdown(); }
  void abort() override;

  // ---- reductions ----

  // In place. Sparse COO tensors are added up or averaged, too.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  // In place at the root; the others' tensors stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  // Each rank's share of a list, which may differ in size.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  // Of one tensor in equal parts.
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  // ---- moving ----

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  // A tensor from each rank, which may differ in shape.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;

  // ---- point to point ----

  // Messages with one tag come in order; those with different tags don't wait for each other.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // ---- barriers ----

  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // Names, at rank 0, the ranks that did not come in time: all of them. The barrier has then failed
  // for those that come later, too; the next one is for all ranks again.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // ---- several at once, on one thread ----

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  // What torch's options have in common.
  struct Terms {
    Milliseconds timeout{0};
    bool is_async = true;
  };
  template <typename Options>
  static Terms TermsOf(const Options& options) {
    return {options.timeout, options.asyncOp};
  }
  // By which torch's profilers know an operation.
  struct Kind {
    c10d::OpType type;
    const char* title;
  };
  using Finish = std::function<void(Operation&)>;

  WorkPtr Run(const Kind& kind, const Call& call, Tensors outputs, const Terms& terms,
              Finish finish = nullptr);
  c10::intrusive_ptr<GroupWork> Begin(const Kind& kind, const Call& call, Tensors outputs,
                                      const Terms& terms, Finish finish);
  // From inputs to outputs of known sizes. `own_part`: an input may be this rank's part of its
  // output.
  WorkPtr Into(const Kind& kind, Call call, const Tensors& inputs, const Tensors& outputs,
               const Terms& terms, bool own_part = false);
  // To outputs one after another, from each rank as many elements as `expected` says.
  WorkPtr Exchange(const Kind& kind, Call call, const Tensor& flat, std::vector<int64_t> expected,
                   const Tensors& outputs, const Terms& terms);
  // What `prepare` returns: of arguments that may differ by rank. What it throws ends the operation
  // for all ranks, which would wait for this one.
  template <typename Prepare>
  auto OrTellAll(const Kind& kind, const Call& call, Prepare prepare) -> decltype(prepare()) {
    try {
      return prepare();
    } catch (const c10::Error& error) {
      TellAll(kind, call, error);
      throw;
    }
  }
  void TellAll(const Kind& kind, Call call, const c10::Error& error);
  std::vector<int64_t> SplitsOf(const Tensor& tensor, const std::vector<int64_t>& rows) const;
  Tensor Apart(const Tensor& input, const Tensor& output, bool own_part) const;

  c10::intrusive_ptr<GroupWork> Send(const Tensors& tensors, int peer, const std::string& name);
  c10::intrusive_ptr<GroupWork> Receive(const Tensors& tensors, int peer, const std::string& name);
  // The next of the messages with a tag to a peer, or from it. One that is refused takes no place
  // in the order. Null: its number would be higher than `last`.
  enum class Way { kTo, kFrom };
  c10::intrusive_ptr<GroupWork> Message(const Tensors& tensors, int peer, int tag, Way way,
                                        int64_t last = std::numeric_limits<int64_t>::max());
  bool IsCoalescing();
  // Part of what this thread does together, if it does.
  WorkPtr Together(WorkPtr work);
  void AwaitAll(Milliseconds limit, int64_t number);
  void AwaitVerdict(Milliseconds limit, int64_t number);

  const std::vector<int64_t> global_ranks_;
  const std::shared_ptr<Session> session_;
  std::shared_ptr<CompletionHook> hook_;
  std::atomic<Milliseconds> timeout_;
  std::atomic<uint64_t> begun_ = 0;

  std::mutex messages_mutex_;
  // Guarded by messages_mutex_: how many there have been.
  std::map<std::tuple<int, int, Way>, int64_t> messages_;
  int64_t monitored_barriers_ = 0;
  std::shared_ptr<SentMessages> sent_;
  std::shared_ptr<WantedMessages> wanted_;

  std::mutex coalescing_mutex_;
  // Guarded by coalescing_mutex_.
  std::thread::id coalescing_on_;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace rueda::libtorch
