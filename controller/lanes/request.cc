#include "controller/lanes/request.h"

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

absl::Status Stale(Handle handle) {
  return absl::NotFoundError(
      absl::StrCat("handle ", handle, " was never given out or has been released"));
}

}  // namespace

LateCallbacks::Late LateCallbacks::closed_ = {};

bool LateCallbacks::Add(CallbackFn function, void* user) {
  auto late = std::make_unique<Late>(Late{function, user, nullptr});
  Late* before = latest_.load(std::memory_order_acquire);
  do {
    if (before == &closed_) {
      (void)late->next.release();
      return false;
    }
    (void)late->next.release();  // of the last try; it is in the list
    late->next.reset(before);
  } while (!latest_.compare_exchange_weak(before, late.get(), std::memory_order_acq_rel));
  (void)late.release();
  return true;
}

std::unique_ptr<LateCallbacks::Late> LateCallbacks::Close() {
  Late* const latest = latest_.exchange(&closed_, std::memory_order_acq_rel);
  return std::unique_ptr<Late>(latest == &closed_ ? nullptr : latest);
}

absl::StatusOr<Request*> RequestTable::Acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    if (requests_.size() == static_cast<size_t>(kHandlesMax)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", kHandlesMax, " handles; release those that are done"));
    }
    requests_.emplace_back();
    requests_.back().token = static_cast<Token>(requests_.size() - 1);
    requests_.back().generation = first_generation_;
    free_.push_back(requests_.back().token);
    released_.push_back(true);
  }
  Request& request = requests_[free_.back()];
  free_.pop_back();
  ++request.generation;
  request.references.store(2, std::memory_order_relaxed);
  request.done.store(0, std::memory_order_relaxed);
  request.enqueued.store(0, std::memory_order_relaxed);
  request.wait_marked.store(false, std::memory_order_relaxed);
  request.waited = false;
  request.agreed = 0;
  released_[request.token] = false;
  return &request;
}

Request* RequestTable::Lookup(Handle handle) {
  const uint64_t index = (handle & 0xFFFFFFFF) - 1;
  if (index >= requests_.size()) return nullptr;
  Request& request = requests_[index];
  return released_[index] || request.generation != handle >> 32 ? nullptr : &request;
}

absl::StatusOr<Request*> RequestTable::Find(Handle handle) {
  MutexLock lock(mutex_);
  Request* request = Lookup(handle);
  if (request == nullptr) return Stale(handle);
  request->references.fetch_add(1, std::memory_order_relaxed);
  return request;
}

void RequestTable::Unreference(Request* request) {
  if (request->references.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  request->spec.reset();
  request->parts.clear();
  request->extras = CallExtras();
  request->ready.reset();
  request->event.reset();
  request->names_freed = false;
  request->callback = nullptr;
  request->late_callbacks.Reopen();
  request->missing.Reset();
  request->allocate = nullptr;
  request->ordered_at = 0;
  request->started_at = 0;
  request->track = 0;
  request->more_tracks.clear();
  request->local_error = absl::OkStatus();
  request->status = absl::OkStatus();
  request->failure.reset();
  request->output_shapes.clear();
  request->outputs.clear();
  request->output_splits.clear();
  request->absent.clear();
  request->value = -1;
  MutexLock lock(mutex_);
  free_.push_back(request->token);
}

void RequestTable::EndMembership() {
  MutexLock lock(mutex_);
  for (Request& request : requests_) {
    request.agreed = 0;
    request.track = 0;
    request.event.reset();  // nobody waits on it: what has ended, or failed, is not waited for
    request.enqueued.store(0, std::memory_order_relaxed);
  }
}

absl::Status RequestTable::Release(Handle handle) {
  Request* request;
  {
    MutexLock lock(mutex_);
    request = Lookup(handle);
    if (request == nullptr) return Stale(handle);
    released_[request->token] = true;
  }
  Unreference(request);
  return absl::OkStatus();
}

}  // namespace rueda
