// One accepted operation, from submit until its handle is released and its work is done, and the
// table that turns handles into requests.
//
// A request has one owner at a time: the submitting thread, the queue, the engine (and through it a
// lane), and at last nobody. What the engine writes before it sets `done` is read by others only
// after.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controller/failure/failure.h"
#include "controller/negotiation/member.h"
#include "core/base/limits.h"
#include "core/base/mutex.h"
#include "ops/backend/communicator.h"

namespace rueda {

using Handle = uint64_t;  // generation and index; 0 is no handle

// How the caller of an operation with an output of unknown size provides memory: called once, on
// the engine's thread, with no lock held. Returns null when it can't.
using AllocateFn = void* (*)(void* user, int32_t part, const int64_t* shape, int32_t dims);
// Called exactly once, when the operation has ended.
using CallbackFn = void (*)(void* user, Handle handle, absl::StatusCode code);

struct PartArgs {
  const void* input = nullptr;
  void* output = nullptr;
  DType dtype = DType::kUInt8;
  Shape shape;                // of the input; scatter: but at the root, with any first dimension
  Shape output_shape;         // of the caller's buffer, if its shape is not the input's
  bool output_given = false;  // `output` and `output_shape` are the caller's
};

struct OutputMemory {
  std::shared_ptr<void> data;  // if nobody gave a buffer
  bool taken = false;
};

// What else is to be called at the end of a request that was submitted already. Thread-safe.
class LateCallbacks {
 public:
  struct Late {
    CallbackFn function;
    void* user;
    std::unique_ptr<Late> next;
  };

  LateCallbacks() = default;
  ~LateCallbacks() { (void)Close(); }
  LateCallbacks(const LateCallbacks&) = delete;
  LateCallbacks& operator=(const LateCallbacks&) = delete;

  // False: the request has ended, and nobody will call it.
  bool Add(CallbackFn function, void* user);
  // At the end, once.
  std::unique_ptr<Late> Close();
  // For the next request.
  void Reopen() { latest_.store(nullptr, std::memory_order_relaxed); }

 private:
  static Late closed_;  // marks the end

  std::atomic<Late*> latest_{nullptr};  // owned, the latest first; or &closed_
};

// Who is missing where a thread waits: the thread asks, the engine answers. Thread-safe.
class WhoIsMissing {
 public:
  // How many answers there have been; another one tells that its text has come.
  uint32_t answers() const { return answers_.load(std::memory_order_acquire); }
  void Ask() { asked_.store(true, std::memory_order_release); }
  bool TakeQuestion() { return asked_.exchange(false, std::memory_order_acq_rel); }
  void Answer(std::string text) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    text_ = std::move(text);
    answers_.fetch_add(1, std::memory_order_release);
  }
  std::string text() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return text_;
  }
  // For the next request.
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!asked_.load(std::memory_order_relaxed) && answers() == 0) return;
    asked_.store(false, std::memory_order_relaxed);
    MutexLock lock(mutex_);
    text_.clear();
  }

 private:
  std::atomic<bool> asked_{false};
  std::atomic<uint32_t> answers_{0};
  mutable Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

struct SubmittedName;  // of Submissions

struct Request {
  Token token = 0;
  uint32_t generation = 0;
  std::atomic<int> references{0};  // the user's handle, the engine, and threads inside a call

  // Set at submit.
  Nanos submitted_at = 0;
  SpecPtr spec;
  SubmittedName* name = nullptr;  // of a named one that is no group; while it is in flight
  absl::InlinedVector<PartArgs, 1> parts;
  CallExtras extras;
  DeviceEvent ready;  // the tensors may be touched behind it; null on the CPU
  int device = 0;     // the number of their device
  AllocateFn allocate = nullptr;
  void* allocate_user = nullptr;
  CallbackFn callback = nullptr;
  void* callback_user = nullptr;
  bool callback_inline = false;
  LateCallbacks late_callbacks;
  bool waited = false;                   // by a blocking call, from the start
  std::atomic<bool> wait_marked{false};  // the engine has been told that somebody waits
  WhoIsMissing missing;

  // The engine's.
  Nanos ordered_at = 0;               // 0: not yet
  uint8_t agreed = 0;                 // Launch::agreed
  Nanos started_at = 0;               // of a bucket that failed under way
  uint32_t track = 0;                 // in the timeline, of the first part; 0: none
  std::vector<uint32_t> more_tracks;  // of the other parts
  int buckets_left = 0;               // one a part, from the order on
  int buckets_to_enqueue = 0;         // of those, on a device
  DeviceEvent event;                  // behind it the results are there, once `enqueued`
  bool names_freed = false;           // others may be using them
  absl::Status local_error;  // went wrong here only; the operation goes on for the others' sake

  // Results, once done.
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> enqueued{0};  // on a device: all its work is
  absl::Status status;
  FailurePtr failure;       // when the membership failed
  uint64_t membership = 0;  // in which it was
  // By part, where the output's shape is not the input's.
  std::vector<Shape> output_shapes;
  std::vector<OutputMemory> outputs;
  std::vector<std::vector<int64_t>> output_splits;  // rows by member that they came from
  std::vector<int> absent;  // member indices of those who had joined and gave nothing
  int64_t value = -1;       // add_process_set: the id; join: the rank that joined last

  Handle handle() const { return (static_cast<Handle>(generation) << 32) | (token + 1); }
  bool on_device() const { return spec->signature.device != DeviceType::kCpu; }
  bool is_done() const { return done.load(std::memory_order_acquire) != 0; }
  // Done, or on its device's stream.
  bool is_enqueued() const { return is_done() || enqueued.load(std::memory_order_acquire) != 0; }
};

// Of a context, in all its memberships: handles of operations that have ended stay valid in the
// next. Thread-safe.
class RequestTable {
 public:
  // `membership`: the first. A handle of an earlier context is none of a later one's: their
  // generations begin far apart.
  explicit RequestTable(uint64_t membership)
      : first_generation_(static_cast<uint32_t>(membership) * 0x9E3779B9u) {}

  // A fresh request, with one reference for the user's handle and one for the engine.
  // RESOURCE_EXHAUSTED when there are kHandlesMax.
  absl::StatusOr<Request*> Acquire() ABSL_LOCKS_EXCLUDED(mutex_);
  // The request of a handle, with a reference for the caller. NOT_FOUND: never given out, or
  // released.
  absl::StatusOr<Request*> Find(Handle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unreference(Request* request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the next membership: forgets of requests that have ended what was the last one's alone.
  // Nobody uses them meanwhile.
  void EndMembership() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the handle's validity and gives its reference back. NOT_FOUND as above.
  absl::Status Release(Handle handle) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Request* Lookup(Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t first_generation_;
  Mutex mutex_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);  // by token; stable addresses
  std::vector<Token> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> released_ ABSL_GUARDED_BY(mutex_);  // by token: the handle is no longer valid
};

}  // namespace rueda
