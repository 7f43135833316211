// The bounded queue between the threads that submit and the engine, and the names in flight on this
// rank. A submission is checked whole before anything changes; a group is taken whole or not at
// all.
//
// Thread-safe. Nothing blocks but a mutex that is held for moments.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "controller/lanes/request.h"
#include "controller/membership/process_sets.h"
#include "core/base/hash_map.h"
#include "core/base/mutex.h"

namespace rueda {

// A name that this rank uses, or has used.
struct SubmittedName {
  bool in_flight = false;
  SpecPtr spec;  // of the latest use
};

// What a caller asks for.
struct OperationArgs : OperationTraits {
  SetId set = kWorldSet;
  Scaling scaling;
  int device_index = 0;
  DeviceEvent ready;  // on a device: behind which the parts may be touched
  absl::Span<const PartArgs> parts;
  absl::Span<const absl::string_view> names;  // one a part, or (barrier) one; empty: unnamed
  absl::Span<const int64_t> splits;  // alltoall, scatter's root: rows by member; empty: equal
  absl::string_view fault;           // CallExtras::fault, or empty
  size_t fault_part = 0;             // whose it is
  std::vector<Rank> ranks;           // of the process set that is added or removed
  AllocateFn allocate = nullptr;
  void* allocate_user = nullptr;
  CallbackFn callback = nullptr;
  void* callback_user = nullptr;
  bool callback_inline = false;
  bool waited = false;
  bool wait_soon = false;  // the caller will wait before long
};

struct Submitted {
  Handle handle = 0;
  // With `args.waited`: the request, with a reference for the caller. Else null: it may have ended,
  // been released and be another's by now.
  Request* request = nullptr;
  // The caller wakes the engine: the queue was empty, or held only what was left to a later wait.
  bool must_wake_engine = false;
};

class Submissions {
 public:
  // `process_sets`: sets 1, 2, ... that exist from the start. `table`: the context's, not null.
  Submissions(Rank rank, int world_size, absl::Span<const std::vector<Rank>> process_sets = {},
              std::shared_ptr<RequestTable> table = std::make_shared<RequestTable>(0));

  // Lets go of what nobody has taken.
  ~Submissions();

  // Checks the operation and queues it. INVALID_ARGUMENT, RESOURCE_EXHAUSTED, or what Close was
  // given.
  absl::StatusOr<Submitted> Submit(const OperationArgs& args) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the engine that somebody waits for the request.
  void MarkWaited(Request* request) ABSL_LOCKS_EXCLUDED(mutex_);

  // The engine's end: whether there is something, and all of it.
  bool HasWork() const { return has_work_.load(std::memory_order_acquire); }
  void Take(std::vector<Request*>* submitted, std::vector<Request*>* waited)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The request's names may be used again: it is on its device's stream, and what is submitted from
  // now on comes behind it.
  void FreeNames(Request* request) ABSL_LOCKS_EXCLUDED(mutex_);
  // The request has ended: its names may be used again.
  void Ended(const Request& request) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddSet(absl::Span<const Rank> ranks) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveSet(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on Submit returns `status`. The first reason stays.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // A copy of a process set's ranks; empty when there is no such set.
  std::vector<Rank> RanksOf(SetId set) const ABSL_LOCKS_EXCLUDED(mutex_);
  SetId FindSet(absl::Span<const Rank> ranks) const ABSL_LOCKS_EXCLUDED(mutex_);
  int in_flight() const { return in_flight_.load(std::memory_order_acquire); }

  RequestTable& table() { return *table_; }

 private:
  // Whose name it is: a process set's, or a pair's of its ranks.
  struct Scope {
    SetId set = kWorldSet;
    Rank from = -1;  // send/recv; else -1
    Rank to = -1;

    friend bool operator==(const Scope&, const Scope&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Scope& scope) {
      return H::combine(std::move(h), scope.set, scope.from, scope.to);
    }
  };
  struct NameHash {
    using is_transparent = void;
    size_t operator()(const std::pair<Scope, absl::string_view>& key) const;
  };
  struct NameEqual {
    using is_transparent = void;
    bool operator()(const std::pair<Scope, absl::string_view>& a,
                    const std::pair<Scope, absl::string_view>& b) const {
      return a == b;
    }
  };

  // What this rank has under way in a process set.
  struct SetState {
    int in_flight = 0;
    bool joined = false;    // a join is in flight: nothing else may be submitted
    bool removing = false;  // a removal is in flight, and nothing else was
  };

  // Fills found_.
  absl::Status Check(const OperationArgs& args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSet(const OperationArgs& args) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNames(const OperationArgs& args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // That no name is twice in the group.
  static absl::Status CheckDistinct(const OperationArgs& args);
  CallExtras ExtrasOf(const OperationArgs& args) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The state of the set that a removal names.
  SetState& Removed(absl::Span<const Rank> ranks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Scope ScopeOf(OpKind kind, SetId set, Rank root, Rank peer);
  SubmittedName& NameOf(Scope scope, absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetNames(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Scope scope, absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Rank rank_;
  const std::shared_ptr<RequestTable> table_;
  std::atomic<bool> has_work_{false};
  std::atomic<int> in_flight_{0};

  mutable Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  ProcessSetTable sets_ ABSL_GUARDED_BY(mutex_);
  std::vector<SetState> states_ ABSL_GUARDED_BY(mutex_);  // by set
  HashMap<std::pair<Scope, std::string>, SubmittedName, NameHash, NameEqual> names_
      ABSL_GUARDED_BY(mutex_);
  std::vector<SubmittedName*> found_
      ABSL_GUARDED_BY(mutex_);  // scratch, by part: null if it is new
  std::vector<Request*> submitted_ ABSL_GUARDED_BY(mutex_);
  bool all_wait_soon_ ABSL_GUARDED_BY(mutex_) = false;  // what is queued, if anything
  std::vector<Request*> waited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
