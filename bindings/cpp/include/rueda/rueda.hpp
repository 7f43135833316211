// Rueda's C++ API, in the manner of Horovod's: header-only, over the C API, C++20.
//
//     #include <rueda/rueda.hpp>
//
//     rueda::init();
//     std::vector<float> gradient = ...;
//     rueda::allreduce_(gradient, "gradient");      // in place; the average over all ranks
//     rueda::shutdown();
//
// `namespace hvd = rueda;` reads like Horovod. Functions whose name ends in `_` work in place,
// those with `async` return at once with a handle for `synchronize` and `poll`. Names match
// operations across the ranks, in any order of submission; operations without a name match by
// order.
//
// Errors are exceptions of type rueda::Error, which say what, where, and what to do. All functions
// work on the calling thread's current context (rueda_current_context), which init sets for the
// process. Threads: as in the C API, everything may be called from any thread.
#ifndef RUEDA_RUEDA_HPP_
#define RUEDA_RUEDA_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rueda/rueda.h"

namespace rueda {

// Errors --------------------------------------------------------------------------------------

class Error : public std::runtime_error {
 public:
  Error(rueda_status status, const std::string& message, bool recoverable = false, int rank = -1)
      : std::runtime_error(message), status_(status), recoverable_(recoverable), rank_(rank) {}
  rueda_status status() const { return status_; }
  // A rank or the network was lost, and a new epoch without it could go on. A mismatch, or a
  // mistake of the caller's, is not recoverable: trying again changes nothing.
  bool recoverable() const { return recoverable_; }
  // The rank that was lost; -1 when none was.
  int rank() const { return rank_; }

 private:
  rueda_status status_;
  bool recoverable_;
  int rank_;
};

namespace detail {

inline void Check(rueda_status status) {
  if (status != RUEDA_OK) throw Error(status, rueda_last_error());
}

inline int CheckNumber(int32_t number) {
  if (number < 0) throw Error(RUEDA_FAILED_PRECONDITION, rueda_last_error());
  return number;
}

// The current context, or an error that says what to do.
inline rueda_context* Current() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) {
    throw Error(RUEDA_FAILED_PRECONDITION, "Rueda is not initialised: call rueda::init() first");
  }
  return context;
}

}  // namespace detail

// Reduce operations ---------------------------------------------------------------------------

using reduce_op = rueda_reduce_op;
inline constexpr reduce_op Sum = RUEDA_SUM;
inline constexpr reduce_op Average = RUEDA_AVERAGE;
inline constexpr reduce_op Min = RUEDA_MIN;
inline constexpr reduce_op Max = RUEDA_MAX;
inline constexpr reduce_op Product = RUEDA_PRODUCT;

// The job -------------------------------------------------------------------------------------

// A knob and its value, as in docs/knobs.md: {"fusion_threshold", "1048576"}.
using Knobs = std::vector<std::pair<std::string, std::string>>;

// Joins the job that the environment describes (ruedarun sets it; without a launcher: a world of
// one), and makes it the process's current context. Does nothing when that is initialised already,
// but for knobs, which come too late then: FAILED_PRECONDITION.
inline void init(const Knobs& knobs = {}) {
  rueda_context* context = rueda_current_context();
  if (rueda_is_initialized(context)) {
    if (knobs.empty()) return;
    throw Error(RUEDA_FAILED_PRECONDITION,
                "init: knobs such as " + knobs[0].first + " come too late, this is initialised");
  }
  rueda_context_destroy(context);
  std::vector<const char*> words;
  for (const auto& [name, value] : knobs) {
    words.push_back(name.c_str());
    words.push_back(value.c_str());
  }
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  options.knobs = words.data();
  options.knob_count = knobs.size();
  detail::Check(rueda_init(RUEDA_VERSION, &options, &context));
  rueda_set_default_context(context);
}

// Leaves the job: waits for all ranks, frees the context. Does nothing when there is none.
inline void shutdown() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) return;
  const rueda_status status = rueda_shutdown(context);
  const std::string message = status == RUEDA_OK ? "" : rueda_last_error();
  if (status == RUEDA_FAILED_PRECONDITION) throw Error(status, message);  // from a callback
  rueda_context_destroy(context);
  if (status != RUEDA_OK) throw Error(status, message, status == RUEDA_ABORTED);
}

inline bool is_initialized() {
  return rueda_is_initialized(rueda_current_context()) == 1;
}

inline int rank() {
  return detail::CheckNumber(rueda_rank(detail::Current()));
}
inline int size() {
  return detail::CheckNumber(rueda_size(detail::Current()));
}
// Among the ranks of this host.
inline int local_rank() {
  return detail::CheckNumber(rueda_local_rank(detail::Current()));
}
inline int local_size() {
  return detail::CheckNumber(rueda_local_size(detail::Current()));
}
// Among the ranks with this local rank, one a host.
inline int cross_rank() {
  return detail::CheckNumber(rueda_cross_rank(detail::Current()));
}
inline int cross_size() {
  return detail::CheckNumber(rueda_cross_size(detail::Current()));
}
inline bool is_homogeneous() {
  return detail::CheckNumber(rueda_is_homogeneous(detail::Current())) == 1;
}

// Records what this rank's operations go through, from now on, in a file for chrome://tracing and
// Perfetto: rank 0 in `path` itself, rank 3 in "t.3.json" for "t.json". Local: ranks start and stop
// when they like.
inline void start_timeline(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a path with a NUL byte in it: " + std::string(path.c_str()));
  }
  detail::Check(rueda_timeline_start(detail::Current(), path.c_str()));
}
// Ends the file. shutdown does so too.
inline void stop_timeline() {
  detail::Check(rueda_timeline_stop(detail::Current()));
}

// Process sets --------------------------------------------------------------------------------

struct ProcessSet {
  int32_t id = RUEDA_WORLD;

  int size() const { return detail::CheckNumber(rueda_process_set_size(detail::Current(), id)); }
  // This rank's index in the set; -1 when it is not in it.
  int rank() const { return rueda_process_set_rank(detail::Current(), id); }
  bool included() const { return rank() >= 0; }
  std::vector<int> ranks() const {
    std::vector<int32_t> found(static_cast<size_t>(size()));
    size_t count = 0;
    detail::Check(
        rueda_process_set_ranks(detail::Current(), id, found.data(), found.size(), &count));
    return {found.begin(), found.end()};
  }
};

inline constexpr ProcessSet global_process_set{RUEDA_WORLD};

// Makes a process set of these world ranks, ascending. All ranks of the world call it, with one
// list.
inline ProcessSet add_process_set(const std::vector<int>& ranks) {
  const std::vector<int32_t> list(ranks.begin(), ranks.end());
  ProcessSet set;
  detail::Check(
      rueda_process_set_add(detail::Current(), list.data(), list.size(), RUEDA_FOREVER, &set.id));
  return set;
}

// Handles -------------------------------------------------------------------------------------

namespace detail {

template <typename T>
inline constexpr rueda_dtype kDType = {0, 0, 0};
template <>
inline constexpr rueda_dtype kDType<float> = {2, 32, 1};
template <>
inline constexpr rueda_dtype kDType<double> = {2, 64, 1};
template <>
inline constexpr rueda_dtype kDType<int32_t> = {0, 32, 1};
template <>
inline constexpr rueda_dtype kDType<int64_t> = {0, 64, 1};
template <>
inline constexpr rueda_dtype kDType<int8_t> = {0, 8, 1};
template <>
inline constexpr rueda_dtype kDType<uint8_t> = {1, 8, 1};
template <>
inline constexpr rueda_dtype kDType<bool> = {6, 8, 1};

// Ranges that the functions below take: contiguous memory of an element type that Rueda has. (A
// std::vector<bool> is not contiguous.)
template <typename R>
concept TensorRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    (kDType<std::ranges::range_value_t<R>>.lanes == 1);

// An operation in flight, with what it needs until it ends. Its end is waited for before the memory
// goes.
struct Flight {
  rueda_context* context = nullptr;
  rueda_handle handle = 0;

  Flight() = default;
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  ~Flight() { End(); }
  void End() {
    if (handle == 0) return;
    (void)rueda_wait(context, handle, RUEDA_FOREVER);
    (void)rueda_release(context, std::exchange(handle, 0));
  }
  // Throws when the operation failed.
  void Wait() const {
    const rueda_status status = rueda_wait(context, handle, RUEDA_FOREVER);
    if (status == RUEDA_OK) return;
    const std::string message = rueda_last_error();
    rueda_error error = RUEDA_ERROR_INIT;
    if (rueda_handle_error(context, handle, &error) == RUEDA_OK) {
      throw Error(status, message, error.recoverable != 0, error.rank);
    }
    throw Error(status, message);
  }
};

template <typename T>
struct State {
  std::vector<T> input;
  std::vector<T> output;
  bool gathers = false;
  bool taken = false;
  Flight flight;  // last, so that it ends before the vectors go
};
template <>
struct State<void> {
  Flight flight;
};

// A one-dimensional tensor over `data`.
struct Vector {
  Vector(void* data, size_t elements, rueda_dtype dtype)
      : shape{static_cast<int64_t>(elements)}, tensor{data,  {RUEDA_CPU, 0}, 1, dtype,
                                                      shape, nullptr,        0} {}
  Vector(const Vector&) = delete;
  int64_t shape[1];
  rueda_tensor tensor;
};

inline rueda_operation Operation(rueda_kind kind, const std::string& name, const Vector* vector,
                                 ProcessSet process_set) {
  if (name.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a name with a NUL byte in it: '" + std::string(name.c_str()) + "'...");
  }
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = kind;
  operation.name = name.empty() ? nullptr : name.c_str();
  operation.input = vector == nullptr ? nullptr : &vector->tensor;
  operation.process_set = process_set.id;
  return operation;
}

inline void Submit(const rueda_operation& operation, Flight* flight) {
  flight->context = Current();
  Check(rueda_submit(flight->context, &operation, 1, nullptr, &flight->handle));
}

inline void Execute(const rueda_operation& operation) {
  Flight flight;
  flight.context = Current();
  const rueda_status status =
      rueda_execute(flight.context, &operation, 1, RUEDA_FOREVER, &flight.handle);
  if (status == RUEDA_OK) return;
  if (flight.handle == 0) throw Error(status, rueda_last_error());
  flight.Wait();
}

}  // namespace detail

// An operation under way, in place (void) or with a result of type std::vector<T>. Copies refer to
// the same operation. Letting go of the last one waits for the operation's end.
template <typename T = void>
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<detail::State<T>> state) : state_(std::move(state)) {}
  detail::State<T>& state() const {
    if (state_ == nullptr) throw Error(RUEDA_INVALID_ARGUMENT, "an empty rueda::Handle");
    return *state_;
  }

 private:
  std::shared_ptr<detail::State<T>> state_;
};

// Whether the operation has ended. May be false right after it was submitted.
template <typename T>
bool poll(const Handle<T>& handle) {
  const detail::Flight& flight = handle.state().flight;
  int32_t done = 0;
  detail::Check(rueda_poll(flight.context, flight.handle, &done));
  return done == 1;
}

// Waits for the operation; throws how it failed.
inline void synchronize(const Handle<>& handle) {
  handle.state().flight.Wait();
}

// Waits for the operation and returns its result, once.
template <typename T>
std::vector<T> synchronize(const Handle<T>& handle) {
  detail::State<T>& state = handle.state();
  state.flight.Wait();
  if (std::exchange(state.taken, true)) {
    throw Error(RUEDA_FAILED_PRECONDITION, "synchronize: this result has been taken already");
  }
  if (state.gathers) {
    rueda_result result = RUEDA_RESULT_INIT;
    detail::Check(rueda_result_take(state.flight.context, state.flight.handle, 0, &result));
    const T* data = static_cast<const T*>(result.tensor.data);
    state.output.assign(data, data + result.tensor.shape[0]);
    rueda_result_free(&result);
  }
  return std::move(state.output);
}

// allreduce -----------------------------------------------------------------------------------

// Combines `tensor` over the ranks of the process set, in place. The inputs are multiplied by
// `prescale_factor` before and the result by `postscale_factor` after the reduction.
template <detail::TensorRange R>
void allreduce_(R&& tensor, const std::string& name = "", reduce_op op = Average,
                double prescale_factor = 1, double postscale_factor = 1,
                ProcessSet process_set = global_process_set) {
  const detail::Vector vector(std::ranges::data(tensor), std::ranges::size(tensor),
                              detail::kDType<std::ranges::range_value_t<R>>);
  rueda_operation operation = detail::Operation(RUEDA_ALLREDUCE, name, &vector, process_set);
  operation.reduce_op = op;
  operation.prescale = prescale_factor;
  operation.postscale = postscale_factor;
  detail::Execute(operation);
}

// The same, in the background: `tensor` is borrowed until the operation has ended.
template <detail::TensorRange R>
[[nodiscard]] Handle<> allreduce_async_(R& tensor, const std::string& name = "",
                                        reduce_op op = Average, double prescale_factor = 1,
                                        double postscale_factor = 1,
                                        ProcessSet process_set = global_process_set) {
  const detail::Vector vector(std::ranges::data(tensor), std::ranges::size(tensor),
                              detail::kDType<std::ranges::range_value_t<R>>);
  rueda_operation operation = detail::Operation(RUEDA_ALLREDUCE, name, &vector, process_set);
  operation.reduce_op = op;
  operation.prescale = prescale_factor;
  operation.postscale = postscale_factor;
  auto state = std::make_shared<detail::State<void>>();
  detail::Submit(operation, &state->flight);
  return Handle<>(std::move(state));
}

// Out of place: `tensor` stays as it is.
template <typename T>
[[nodiscard]] Handle<T> allreduce_async(const std::vector<T>& tensor, const std::string& name = "",
                                        reduce_op op = Average, double prescale_factor = 1,
                                        double postscale_factor = 1,
                                        ProcessSet process_set = global_process_set) {
  auto state = std::make_shared<detail::State<T>>();
  state->output = tensor;
  const detail::Vector vector(state->output.data(), state->output.size(), detail::kDType<T>);
  rueda_operation operation = detail::Operation(RUEDA_ALLREDUCE, name, &vector, process_set);
  operation.reduce_op = op;
  operation.prescale = prescale_factor;
  operation.postscale = postscale_factor;
  detail::Submit(operation, &state->flight);
  return Handle<T>(std::move(state));
}

template <typename T>
std::vector<T> allreduce(const std::vector<T>& tensor, const std::string& name = "",
                         reduce_op op = Average, double prescale_factor = 1,
                         double postscale_factor = 1, ProcessSet process_set = global_process_set) {
  std::vector<T> result = tensor;
  allreduce_(result, name, op, prescale_factor, postscale_factor, process_set);
  return result;
}

// broadcast -----------------------------------------------------------------------------------

// Gives every rank of the process set the `tensor` of `root_rank`, a world rank in the set.
template <detail::TensorRange R>
void broadcast_(R&& tensor, int root_rank, const std::string& name = "",
                ProcessSet process_set = global_process_set) {
  const detail::Vector vector(std::ranges::data(tensor), std::ranges::size(tensor),
                              detail::kDType<std::ranges::range_value_t<R>>);
  rueda_operation operation = detail::Operation(RUEDA_BROADCAST, name, &vector, process_set);
  operation.root = root_rank;
  detail::Execute(operation);
}

template <detail::TensorRange R>
[[nodiscard]] Handle<> broadcast_async_(R& tensor, int root_rank, const std::string& name = "",
                                        ProcessSet process_set = global_process_set) {
  const detail::Vector vector(std::ranges::data(tensor), std::ranges::size(tensor),
                              detail::kDType<std::ranges::range_value_t<R>>);
  rueda_operation operation = detail::Operation(RUEDA_BROADCAST, name, &vector, process_set);
  operation.root = root_rank;
  auto state = std::make_shared<detail::State<void>>();
  detail::Submit(operation, &state->flight);
  return Handle<>(std::move(state));
}

template <typename T>
std::vector<T> broadcast(const std::vector<T>& tensor, int root_rank, const std::string& name = "",
                         ProcessSet process_set = global_process_set) {
  std::vector<T> result = tensor;
  broadcast_(result, root_rank, name, process_set);
  return result;
}

// allgather -----------------------------------------------------------------------------------

// All ranks' vectors, one after another in rank order. They may differ in length.
template <typename T>
[[nodiscard]] Handle<T> allgather_async(const std::vector<T>& tensor, const std::string& name = "",
                                        ProcessSet process_set = global_process_set) {
  auto state = std::make_shared<detail::State<T>>();
  state->input = tensor;
  state->gathers = true;
  const detail::Vector vector(state->input.data(), state->input.size(), detail::kDType<T>);
  const rueda_operation operation = detail::Operation(RUEDA_ALLGATHER, name, &vector, process_set);
  detail::Submit(operation, &state->flight);
  return Handle<T>(std::move(state));
}

template <typename T>
std::vector<T> allgather(const std::vector<T>& tensor, const std::string& name = "",
                         ProcessSet process_set = global_process_set) {
  return synchronize(allgather_async(tensor, name, process_set));
}

// barrier -------------------------------------------------------------------------------------

// Waits until all ranks of the process set are here.
inline void barrier(ProcessSet process_set = global_process_set) {
  detail::Execute(detail::Operation(RUEDA_BARRIER, "", nullptr, process_set));
}

}  // namespace rueda

#endif  // RUEDA_RUEDA_HPP_
