// The composition root: one rank of one job. Owns the engine and its background thread; everything
// below has no other owner, and nothing is global.
//
// All public methods are thread-safe unless they say otherwise. Which may be called from callbacks:
// callbacks.h.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "controller/rendezvous/thread_ranks.h"
#include "controller/runtime/baton.h"
#include "controller/runtime/engine.h"
#include "core/config/config.h"
#include "ops/host/arena.h"

namespace rueda {

// What an operation on a device begins behind.
struct DeviceExec {
  void* stream = nullptr;       // what it has been given until now
  void* ready_event = nullptr;  // or, if there is one, this event alone
};

struct RuntimeOptions {
  Config config;
  Environment environment;  // for the detection of other launchers; may be empty
  std::string context;      // contexts of one name meet
  uint64_t membership = 1;  // processes: the how-manieth init of this name in this job it is
  uint64_t number = 1;      // the same in this process
  std::shared_ptr<ThreadRanks> group;  // null: ranks are processes
  Rank group_rank = -1;
  std::shared_ptr<Arena> arena;  // null: a new one
  std::shared_ptr<RequestTable>
      requests;                // of the context's earlier memberships; null: it has none
  std::vector<int32_t> slots;  // of an elastic job, by rank; else empty
};

class Runtime {
 public:
  // Meets the other ranks; blocks until they come or the start time-out passes.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(RuntimeOptions options,
                                                         bool* met = nullptr);
  // As Close, and waits for the device.
  ~Runtime();

  // Shuts down if Shutdown was not called, without waiting for anybody: ends the job for the
  // others. False: in a membership that failed the device still uses what this owns, as a stream of
  // the caller's has not come to where operations wait for it. Then it is kept, and asked again
  // later.
  bool Close();

  Rank rank() const { return engine_->world().rank; }
  const World& world() const { return engine_->world(); }
  const Config& config() const { return options_.config; }
  // Empty when there is no such process set.
  std::vector<Rank> RanksOf(SetId set) const { return submissions_->RanksOf(set); }
  // The set of these ranks; -1 when there is none.
  SetId FindSet(absl::Span<const Rank> ranks) const { return submissions_->FindSet(ranks); }

  // Of an operation on a device: checks what can be checked there, and sets its `ready`. The claim
  // is kept when it was accepted: a refused operation does not decide for a device. What the
  // caller's stream is given from now on is no concern of the operation's. FAILED_PRECONDITION:
  // there is no such device, or the stream captures a graph. INVALID_ARGUMENT: the memory is not
  // the device's.
  absl::StatusOr<DeviceClaim> PrepareOnDevice(const DeviceExec& exec, OperationArgs* args);
  // This rank's device.
  Device& device() const { return engine_->on_device().device(); }

  // Checks and queues an operation; the work goes on in the background, at once or, if the caller
  // waits soon, after kWaitSoon at the latest.
  absl::StatusOr<Handle> Submit(const OperationArgs& args);
  // Submits and waits. The handle is in `*handle` whenever one was given out.
  absl::Status Execute(OperationArgs args, Nanos timeout, Handle* handle);

  // Whether the operation has ended.
  absl::StatusOr<bool> Poll(Handle handle);
  // Waits for its end and returns how it ended. DEADLINE_EXCEEDED: not yet; it goes on. NOT_FOUND:
  // a stale handle. FAILED_PRECONDITION: CheckMayWait.
  absl::Status Wait(Handle handle, Nanos timeout);
  // As Wait with a time-out of 0, but DEADLINE_EXCEEDED says who is missing, if the coordinator
  // does within a second.
  absl::Status Explain(Handle handle);
  // Orders a stream of the operation's device behind it, and blocks at most until it is enqueued
  // there; returns how it ended, if it has. On the CPU `stream` is null, and it is Wait.
  absl::Status WaitOnStream(Handle handle, void* stream);
  // As Wait, for at most the knob unwind_timeout_s; then it aborts the membership, for the reason
  // that the operation was left by `why`, and waits on. On a device it waits until the work is
  // enqueued.
  absl::Status WaitOrAbort(Handle handle, const std::string& why);
  // Calls `function` on the completion thread, once, when the operation has ended.
  absl::Status CallAtEnd(Handle handle, CallbackFn function, void* user);
  const std::shared_ptr<RequestTable>& requests() const { return options_.requests; }
  absl::Status Release(Handle handle) { return submissions_->table().Release(handle); }
  // The request behind a handle, with a reference that Unreference gives back.
  absl::StatusOr<Request*> Find(Handle handle) { return submissions_->table().Find(handle); }
  void Unreference(Request* request) { submissions_->table().Unreference(request); }

  // Leaves the job: waits until all ranks have, or the membership fails (then ABORTED). What calls
  // of other threads wait for ends, and Submit is refused from now on. Several may call it.
  absl::Status Shutdown();
  // Ends the membership on all ranks: when it returns, or soon after if it is called from a
  // callback.
  void Abort(absl::string_view reason);
  // Tells all ranks that this one wishes for something: bits of the caller's.
  void Wish(uint8_t bits);
  // What ranks have wished for, as far as the operations of the world tell that threads of this
  // rank have waited for: the same on all ranks that have waited for the same.
  uint8_t agreed() const { return agreed_.load(std::memory_order_relaxed); }
  WaitingThreads& waiting_threads() { return waiting_threads_; }
  // Ends what threads wait for in it: aborts the membership, unless that has ended.
  void EndWaits();
  // Whose thread calls this context's callbacks.
  const Completions* completions() const { return &completions_; }
  // FAILED_PRECONDITION where the calling thread may not end this context: `what` names the call.
  absl::Status CheckMayEnd(absl::string_view what) const;
  // Of a failed membership, before the next one begins: this rank's end is not another's doing any
  // more.
  void ForgetBlame() { engine_->ForgetBlame(); }
  FailurePtr failure() const { return engine_->failure(); }

  // The timeline of this rank: "t.json" names rank 0's file, as TimelinePath says.
  // FAILED_PRECONDITION when it is on (off) already, or this rank has left the job.
  absl::Status StartTimeline(const std::string& path);
  absl::Status StopTimeline() { return timeline_.Stop(); }

  // What compression remembers.
  CompressionStates& compression() const { return engine_->compression(); }

  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  explicit Runtime(RuntimeOptions options);
  absl::Status Init(bool* met);
  // Meets the others and makes the engine.
  absl::Status Join(BootstrapArgs* args, Meeting* meeting);
  absl::StatusOr<NeighbourOffer> Offer(size_t arena_bytes_max);
  void StopThreads();
  void GuardArena();
  absl::Status StartOwnTimeline();

  // Until it is done; or `enqueued`, if that is enough. `began`: when the wait did; 0: now.
  absl::Status WaitFor(Request* request, Nanos timeout, bool enqueued = false, Nanos began = 0);
  void Learn(const Request& request);
  absl::Status OrderStreamBehind(Request* request, void* stream);

  RuntimeOptions options_;
  std::shared_ptr<Arena> arena_;
  Timeline timeline_;
  std::unique_ptr<Submissions> submissions_;
  Completions completions_;
  Sleepers sleepers_;
  WaitingThreads waiting_threads_;
  std::unique_ptr<Engine> engine_;
  std::optional<Baton> baton_;
  std::once_flag threads_stopped_;  // whoever comes second waits for the first
  std::atomic<uint8_t> wished_{0};
  std::atomic<uint8_t> agreed_{0};
};

}  // namespace rueda
