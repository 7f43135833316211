// What is behind a rueda_context and a rueda_group.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "controller/runtime/runtime.h"
#include "core/base/mutex.h"
#include "rueda/rueda.h"

struct rueda_group {
  std::shared_ptr<rueda::ThreadRanks> threads;
};

// Outlives its destruction as an empty shell, so that a late call with it, such as that of a handle
// which outlives its job, is an error and no use of freed memory.
struct rueda_context {
  // The strings that rueda_handle_error has given out for a handle.
  struct ErrorStrings {
    std::string host, cause, operation, tensor, message;
  };

  rueda::RuntimeOptions options;  // as at init; reset uses them again
  // Changed only when no other call is inside: see Call.
  std::unique_ptr<rueda::Runtime> runtime;
  // How many calls are inside, and kClosing while the runtime is about to go.
  mutable std::atomic<uint32_t> calls{0};
  // The runtime's. Its thread's calls are let in to the last: it ends before the runtime goes.
  std::atomic<const rueda::Completions*> completions{nullptr};
  static constexpr uint32_t kClosing = uint32_t{1} << 31;
  // Of an elastic job's membership: how many of its ranks were in the one before, and whose state
  // is the newest.
  std::atomic<int32_t> survivors{0};
  std::atomic<int32_t> source{0};
  // Of a process that has come to an elastic job and is not in it yet: the rank that it would have,
  // were it in now; -1: it is in, or the job is another.
  std::atomic<int32_t> waits_as{-1};
  int fork_generation = 0;                 // of the process that made it
  std::atomic<bool> shut_down{false};      // or about to be
  std::atomic<bool> destroyed{false};      // likewise
  rueda_context* earlier_shell = nullptr;  // once it is destroyed: the one before
  rueda::Mutex errors_mutex;
  std::map<rueda_handle, std::unique_ptr<ErrorStrings>> errors ABSL_GUARDED_BY(errors_mutex);
  ErrorStrings own_error ABSL_GUARDED_BY(errors_mutex);  // of rueda_context_error
};

namespace rueda::capi {

// A call that uses a context's runtime, which is not freed before the call has left.
class Call {
 public:
  // `context` counts this call already.
  explicit Call(const rueda_context* context) : context_(context) {}
  Call(Call&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  Call& operator=(Call&&) = delete;
  ~Call();

  Runtime* operator->() const { return context_->runtime.get(); }
  Runtime& operator*() const { return *context_->runtime; }
  Runtime* get() const { return context_->runtime.get(); }

 private:
  const rueda_context* context_;
};

// The runtime of a context that may be used: not null, and not in a forked child. ABORTED: another
// thread resets or destroys it.
absl::StatusOr<Call> RuntimeOf(const rueda_context* context);

// The arena of a context's earlier membership, if something in it is still allocated; else null.
// Thread ranks (group_rank >= 0) have one each.
std::shared_ptr<Arena> ArenaFor(const std::string& context_name, Rank group_rank);

}  // namespace rueda::capi
