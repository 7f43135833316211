// Rueda's C++ API: operations under way. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_HANDLES_HPP_
#define RUEDA_CPP_HANDLES_HPP_

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/tensors.hpp"
#include "rueda/rueda.h"

namespace rueda {

namespace detail {

inline void Sweep() noexcept;  // see there

// Whether to wait for the end.
enum class When { kNow, kInBackground };

// Gives the handle back when nobody needs it any more.
struct Claim {
  rueda_context* const context;
  const rueda_handle handle;
  Claim(rueda_context* where, rueda_handle what) : context(where), handle(what) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { (void)rueda_release(context, handle); }
};

// Whether the operation ended in time, however.
inline bool WaitFor(rueda_context* context, rueda_handle handle, int64_t timeout_ns) {
  const rueda_status status = rueda_wait(context, handle, timeout_ns);
  if (status == RUEDA_OK) return true;
  if (status == RUEDA_DEADLINE_EXCEEDED) return false;
  const std::string message = rueda_last_error();
  rueda_error details = RUEDA_ERROR_INIT;
  if (rueda_handle_error(context, handle, &details) == RUEDA_OK) return true;
  Throw(status, message, details, /*ended=*/false);  // it can't be waited for
}

// Why it has not ended; empty when it has.
inline std::string Explain(rueda_context* context, rueda_handle handle) {
  return rueda_explain(context, handle) == RUEDA_OK ? "" : rueda_last_error();
}

// An operation in flight. Its end is waited for before its memory goes.
struct Flight {
  rueda_context* context = nullptr;
  rueda_handle handle = 0;
  std::shared_ptr<const Claim> claim;  // on the handle, if callbacks share it

  Flight() = default;
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  ~Flight() { End(); }
  void End() {
    if (handle == 0) return;
    (void)rueda_wait(context, handle, RUEDA_FOREVER);
    Release();
  }
  // Callbacks may still need it.
  void Release() {
    if (claim == nullptr) (void)rueda_release(context, handle);
    claim.reset();
    handle = 0;
  }
  // Throws when the operation failed.
  void Wait() const {
    const rueda_status status = rueda_wait(context, handle, RUEDA_FOREVER);
    if (status != RUEDA_OK) ThrowEnd(status, context, handle);
  }
  // Throws when nothing was submitted or what was waited for failed.
  void Start(std::span<const rueda_operation> operations, When when) {
    Sweep();
    context = Current();
    if (when == When::kInBackground) {
      Check(rueda_submit(context, operations.data(), operations.size(), nullptr, &handle), context);
      return;
    }
    const rueda_status status =
        rueda_execute(context, operations.data(), operations.size(), RUEDA_FOREVER, &handle);
    if (status == RUEDA_OK) return;
    if (handle == 0) ThrowLast(status, context);
    Wait();
  }
};

// A claim on the handle for one more callback. Threads may share the handle.
inline std::shared_ptr<const Claim> Share(Flight* flight) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (flight->claim == nullptr) {
    flight->claim = std::make_shared<const Claim>(flight->context, flight->handle);
  }
  return flight->claim;
}

// What is to be done at an operation's end, on the context's callback thread.
template <typename F>
struct Later {
  F callback;
  std::shared_ptr<const Claim> claim;

  // A rueda_completion's.
  static void Call(void* user, rueda_handle handle, rueda_status status) {
    const std::unique_ptr<Later> later(static_cast<Later*>(user));
    rueda_set_thread_context(later->claim->context);
    later->Tell(handle, status);
    rueda_set_thread_context(nullptr);
  }

  void Tell(rueda_handle handle, rueda_status status) {
    if (status == RUEDA_OK) {
      callback(static_cast<const Error*>(nullptr));
      return;
    }
    rueda_error details = RUEDA_ERROR_INIT;
    (void)rueda_handle_error(claim->context, handle, &details);
    const char* const known = details.message;
    try {
      Throw(status, *known != '\0' ? known : rueda_status_name(status), details, /*ended=*/true);
    } catch (const Error& error) {
      callback(&error);
    }
  }
};

template <typename F>
void CallAtEnd(Flight* flight, F callback) {
  auto later = std::make_unique<Later<F>>(Later<F>{std::move(callback), Share(flight)});
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = &Later<F>::Call;
  completion.user = later.get();
  Check(rueda_on_completion(flight->context, flight->handle, &completion), flight->context);
  (void)later.release();  // it is the library's, and may have been called
}

// What an operation needs until it ends: a derived class has it. Handles share one; MakeCargo makes
// it, and LetGo ends it.
struct Cargo {
  Cargo() = default;
  Cargo(const Cargo&) = delete;
  Cargo& operator=(const Cargo&) = delete;
  virtual ~Cargo() = default;
  // Waits for the end.
  virtual void End() noexcept { flight.End(); }

  Flight flight;
  bool borrows = false;  // the operation uses memory that this does not own
  // When it was made, on that thread. If there are more of them when the last handle goes, an
  // exception unwinds past it.
  const int exceptions = std::uncaught_exceptions();
  Cargo* next = nullptr;  // of those that were left behind
};

// Left by handles that an exception unwound past. They stay at the program's end: an operation may
// be at them.
inline constinit std::atomic<Cargo*> left_behind = nullptr;

inline void LeaveBehind(Cargo* cargo) noexcept {
  cargo->next = left_behind.load(std::memory_order_relaxed);
  while (!left_behind.compare_exchange_weak(cargo->next, cargo, std::memory_order_acq_rel,
                                            std::memory_order_relaxed)) {
  }
}

// Frees what was left behind and has ended since.
inline void Sweep() noexcept {
  if (left_behind.load(std::memory_order_relaxed) == nullptr) return;
  Cargo* cargo = left_behind.exchange(nullptr, std::memory_order_acq_rel);
  while (cargo != nullptr) {
    Cargo* const next = cargo->next;
    int32_t done = 0;
    const rueda_status status = rueda_poll(cargo->flight.context, cargo->flight.handle, &done);
    // ABORTED: another thread is ending the context, and may not have come to the operation.
    if (status == RUEDA_OK ? done == 0 : status == RUEDA_ABORTED) {
      LeaveBehind(cargo);
    } else {
      cargo->End();
      delete cargo;
    }
    cargo = next;
  }
}

// When the last handle goes. If an exception unwinds past it this rank may never come to what the
// others wait for, nor they to this operation.
inline void LetGo(Cargo* cargo) noexcept {
  const Flight& flight = cargo->flight;
  if (flight.handle != 0 && std::uncaught_exceptions() > cargo->exceptions) {
    if (!cargo->borrows) {
      LeaveBehind(cargo);
      return Sweep();
    }
    (void)rueda_wait_or_abort(flight.context, flight.handle,
                              "an exception unwound past its handle");
  }
  cargo->End();
  delete cargo;
}

// For rueda_wait.
template <typename Rep, typename Period>
int64_t Nanoseconds(std::chrono::duration<Rep, Period> time) {
  const auto seconds = std::chrono::duration<double>(time).count();
  if (!(seconds > 0)) return 0;
  if (seconds > 9e9) return RUEDA_FOREVER;  // more than an int64 has
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

template <typename C>
std::shared_ptr<C> MakeCargo() {
  return std::shared_ptr<C>(new C, LetGo);
}

// An operation's, with a result of type R.
template <typename R>
struct State : Cargo {
  std::vector<Tensor> inputs;       // copies, when nobody waits for the end
  std::vector<rueda_dtype> dtypes;  // of the parts of a result whose size was not known
  R result = {};
  bool taken = false;
};
template <>
struct State<void> : Cargo {
  std::vector<Tensor> inputs;
};

}  // namespace detail

/// \addtogroup cpp_handles
/// @{

/// An operation under way, with a result of type `R` (void: in place). Copies refer to the same
/// operation. The destructor of the last one waits for the operation's end, without a limit, so
/// that nothing uses the memory afterwards.
///
/// An exception that unwinds past the last handle is not held up: this rank may be about to leave,
/// and the others may never submit the operation.
///  - An operation in place has the caller's memory. The handle waits for its end, for at most
///    RUEDA_UNWIND_TIMEOUT_S (5 s). After that it ends the membership on all ranks (rueda_abort),
///    and the error names the operation: "allreduce 'g': an exception unwound past its handle,
///    ...". C++ does not tell a destructor which exception that is, so the text of it is not there.
///  - An operation that owns its memory is left to itself, and goes on. The memory is freed when it
///    has ended: at the next operation, or by shutdown.
///
/// "Unwinds past" means: while the handle's destructor runs more exceptions are in flight on its
/// thread than when the operation was started. A handle that is destroyed in a catch block waits
/// without a limit.
template <typename R = void>
class [[nodiscard]] Handle {
 public:
  Handle() = default;
  /// The library's own.
  explicit Handle(std::shared_ptr<detail::State<R>> state) : state_(std::move(state)) {}
  /// The library's own.
  detail::State<R>& state() const {
    if (state_ == nullptr) throw Error(RUEDA_INVALID_ARGUMENT, "an empty rueda::Handle");
    return *state_;
  }

  /// Waits for the operation for at most that long. Whether it has ended, well or not: synchronize
  /// tells. If not, it goes on.
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) const {
    const detail::Flight& flight = state().flight;
    return detail::WaitFor(flight.context, flight.handle, detail::Nanoseconds(timeout));
  }

  /// Why the operation has not ended, after wait_for() in vain: which ranks have submitted it and
  /// which have not. Empty once it has ended well. May take a second: rueda_explain.
  std::string explain() const {
    const detail::Flight& flight = state().flight;
    return detail::Explain(flight.context, flight.handle);
  }

  /// Calls `callback` once, when the operation has ended (soon, if it has), on the context's
  /// callback thread: with null when it went well, else with the rueda::Error that says how it
  /// failed. The current context is then the operation's. The callback may start operations and
  /// wait for them, but must not throw: the program would end. (What it starts once shutdown has
  /// begun is refused by an exception.) It comes even if all handles have gone, and before shutdown
  /// returns; what it captures must live until then, for a wait for the operation may return before
  /// it has been called. To use the result in it, copy (don't move) the
  /// handle into it and synchronize; of an operation in place, the memory must then live as long.
  template <std::invocable<const Error*> F>
  void then(F callback) const {
    detail::CallAtEnd(&state().flight, std::move(callback));
  }

 private:
  std::shared_ptr<detail::State<R>> state_;
};

/// Whether the operation has ended. May be false right after it was submitted.
template <typename R>
bool poll(const Handle<R>& handle) {
  const detail::Flight& flight = handle.state().flight;
  int32_t done = 0;
  detail::Check(rueda_poll(flight.context, flight.handle, &done), flight.context);
  return done == 1;
}

/// How many rows of the result came from each rank of the process set: of an allgather, a gather's
/// root, an alltoall, a scatter. `index`: which operation of the group. The operation has ended.
template <typename R>
std::vector<int64_t> received_splits(const Handle<R>& handle, size_t index = 0) {
  const detail::Flight& flight = handle.state().flight;
  size_t count = 0;
  detail::Check(rueda_result_splits(flight.context, flight.handle, index, nullptr, 0, &count),
                flight.context);
  std::vector<int64_t> splits(count);
  detail::Check(
      rueda_result_splits(flight.context, flight.handle, index, splits.data(), count, &count),
      flight.context);
  return splits;
}

/// Waits for the operation; throws how it failed.
inline void synchronize(const Handle<>& handle) {
  handle.state().flight.Wait();
}

/// Of an operation in place on CUDA: orders the stream behind it, and blocks at most until its work
/// is enqueued (rueda_wait_on_stream). The tensor is the operation's until its end.
inline void wait_on_stream(const Handle<>& handle, void* cuda_stream) {
  const detail::Flight& flight = handle.state().flight;
  detail::Check(rueda_wait_on_stream(flight.context, flight.handle, cuda_stream), flight.context);
}

/// Waits for the operation and returns its result, once.
template <typename R>
R synchronize(const Handle<R>& handle) {
  detail::State<R>& state = handle.state();
  state.flight.Wait();
  if (std::exchange(state.taken, true)) {
    throw Error(RUEDA_FAILED_PRECONDITION, "synchronize: this result has been taken already");
  }
  if constexpr (requires { state.result.splits; }) state.result.splits = received_splits(handle);
  return std::move(state.result);
}

/// Waits until all of the operations have ended, then returns their results in that order (nothing,
/// of operations in place). If some failed, throws how the first of them did; no result is taken
/// then. `handles`: a range of them.
template <std::ranges::forward_range Handles>
auto wait_all(const Handles& handles) {
  for (const auto& handle : handles) handle.wait_for(std::chrono::nanoseconds::max());
  for (const auto& handle : handles) handle.state().flight.Wait();
  using R = decltype(synchronize(*std::ranges::begin(handles)));
  if constexpr (!std::is_void_v<R>) {
    std::vector<R> results;
    for (const auto& handle : handles) results.push_back(synchronize(handle));
    return results;
  }
}
/// The same of `wait_all({first, second})`.
template <typename R>
auto wait_all(std::initializer_list<Handle<R>> handles) {
  return wait_all(std::span(handles.begin(), handles.size()));
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_HANDLES_HPP_
