#include "controller/runtime/completions.h"

#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/failure/waiting_threads.h"
#include "controller/lanes/callbacks.h"
#include "core/base/log.h"
#include "core/base/threads.h"

namespace rueda {
namespace {

thread_local const Completions* current = nullptr;

}  // namespace

const Completions* Completions::Current() {
  return current;
}

void Callback::Run() const {
  const Nanos began = timeline->on() ? MonotonicNow() : 0;
  try {
    function(user, handle, code);
  } catch (...) {
    RUEDA_LOG(Error) << "a completion callback threw: " << CurrentException().message();
    std::terminate();
  }
  if (began != 0 && timeline->on()) {
    timeline->Span("CALLBACK", Timeline::ThreadTrack(), track, began, MonotonicNow());
  }
}

absl::Status Completions::Start() {
  if (started_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (thread_.joinable() || stopping_) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(StartThread(
      "the thread for callbacks", "rueda-callback", [this] { Run(); }, &thread_));
  runs_ = true;
  started_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void Completions::Call(const Callback& callback, bool is_inline) {
  if (callback.function == nullptr) return;
  if (!is_inline) {
    try {
      if (Add([callback] { callback.Run(); })) return;
    } catch (const std::bad_alloc&) {  // better on this thread than never
    }
  }
  const TurnScope scope;
  callback.Run();
}

void Completions::CallLate(Callback like, std::unique_ptr<LateCallbacks::Late> late) {
  for (; late != nullptr; late = std::move(late->next)) {
    like.function = late->function;
    like.user = late->user;
    Call(like, /*is_inline=*/false);
  }
}

bool Completions::Add(std::function<void()> callback) {
  MutexLock lock(mutex_);
  if (!runs_) return false;
  callbacks_.push_back(std::move(callback));
  to_return_.fetch_add(1, std::memory_order_relaxed);
  changed_.NotifyOne();
  return true;
}

void Completions::Run() {
  current = this;
  WaitingThreads::ExemptThisThread();
  while (true) {
    std::function<void()> callback;
    {
      MutexLock lock(mutex_);
      while (callbacks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (callbacks_.empty()) {
        runs_ = false;
        return;
      }
      callback = std::move(callbacks_.front());
      callbacks_.pop_front();
    }
    callback();
    to_return_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Completions::Stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
    changed_.NotifyAll();
  }
  if (thread.joinable()) thread.join();
}

}  // namespace rueda
