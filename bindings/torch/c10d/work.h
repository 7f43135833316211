// torch.distributed's Work: an operation of a process group under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "bindings/torch/c10d/session.h"
#include "bindings/torch/operation.h"

namespace rueda::libtorch {

// What a work is, but for the operation.
struct WorkPlan {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // for profilers
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;     // the result, which the caller has given
  std::chrono::milliseconds limit{0};  // of a wait that has none of its own
  bool writes = true;                  // to the outputs
  uint64_t number = 0;                 // of the group's operations
  // Once the operation has ended well, whoever waits or if nobody does: what is left to be done
  // until the outputs are there. May throw.
  std::function<void(Operation&)> finish;
};

// Waits of works look for Ctrl-C every so often, and once their time is over throw an Error with
// RUEDA_DEADLINE_EXCEEDED. Futures then have the same error; who waits for one hears no Ctrl-C.
//
// Results on CUDA are there for the stream that is current in wait(), and for a future's callbacks.
class GroupWork final : public c10d::Work {
 public:
  // Begins. `soon`: the caller is about to wait, and this thread does the work if it can. Throws an
  // Error, or what is wrong with the call; then nothing has begun.
  static c10::intrusive_ptr<GroupWork> Begin(const std::shared_ptr<Session>& session,
                                             const Call& call, WorkPlan plan, bool soon);

  GroupWork(std::shared_ptr<Session> session, WorkPlan plan);
  // Null: it has ended.
  std::shared_ptr<Operation> Running() const;
  // Waits without a limit, until the outputs are there or an error is.
  void Complete() noexcept;
  // Throws the error with which it has ended, the library's own.
  void Check() const;

  // ---- torch.distributed's; errors are Python's (errors.h) ----

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { (void)wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return plan_.number; }

 private:
  friend class Session;

  // The future: of how it ended; that it did not end in time. The first one counts.
  void Tell();
  void GiveUp();
  Error TimedOut(const std::string& why, std::chrono::milliseconds limit) const;

  const std::shared_ptr<Session> session_;
  WorkPlan plan_;
  std::mutex ending_;  // held until the outputs are there

  // Guarded by the base class's mutex_, which guards completed_ and exception_, too.
  std::shared_ptr<Operation> operation_;  // until it has ended
  std::optional<c10::Event> there_;       // on CUDA: the outputs are
  c10::intrusive_ptr<c10::ivalue::Future> future_;

  uint64_t giving_up_ = 0;  // constant once an operation's future is there
  std::atomic<bool> told_ = false;

  std::optional<Session::Works::iterator> kept_at_;  // the session's
};

// What is called with each work that has ended, one after another. Thread-safe.
class CompletionHook : public std::enable_shared_from_this<CompletionHook> {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}
  // Has begun.
  void Follow(const c10::intrusive_ptr<GroupWork>& work);
  // Whether it has been called for all in that time. Throws the first error that it has raised.
  bool Await(std::chrono::nanoseconds time);

 private:
  using Info = std::shared_ptr<c10d::WorkInfo>;
  void Add(Info info);
  void CallAll();

  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable all_called_;
  // Guarded by mutex_.
  int64_t followed_ = 0;  // works for which it has not been called
  std::deque<Info> ended_;
  bool is_calling_ = false;
  std::exception_ptr error_;
};

// Several works as one.
class GroupWorks final : public c10d::Work {
 public:
  explicit GroupWorks(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { (void)wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Writes `values` to `output`, which has as many elements and may be of any shape and mode.
void Put(const at::Tensor& output, const at::Tensor& values);

// Of a work with these outputs.
c10::intrusive_ptr<c10::ivalue::Future> FutureOf(const std::vector<at::Tensor>& outputs);

// "1.5 s"
std::string InSeconds(std::chrono::milliseconds time);

// When a wait that begins now has to end.
std::chrono::steady_clock::time_point EndOf(std::chrono::milliseconds limit);

// Calls `look(slice)` until it is true, or for `limit`: whether it was. Python's signals are looked
// for between two calls, on its main thread; what a handler raises is thrown.
bool WaitInSlices(std::chrono::milliseconds limit,
                  const std::function<bool(std::chrono::nanoseconds)>& look);

}  // namespace rueda::libtorch
