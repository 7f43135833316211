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
// Tensors are contiguous ranges (a vector, an array, a span: one dimension) or a TensorView, which
// has a shape. Roots and peers are world ranks.
//
// Whose memory it is:
//  - A function that works in place and is async borrows the caller's memory until the operation
//    has ended. The caller keeps it alive, and where it is, until synchronize has returned or the
//    last handle has gone: declare the memory before the handle, and return no handle without it.
//    A container that is a temporary does not compile. Clang warns (-Wreturn-stack-address,
//    -Wdangling) when a handle leaves the scope of a local container. GCC does not, a TensorView or
//    a group hides the container from Clang too, and nothing checks it at run time.
//  - Everything else leaves its input as it is, and needs it during the call only. It returns a
//    std::vector of what the range holds, or a Tensor for a view. With async the handle owns that,
//    and a copy of the input.
//
// Exceptions of the program's own may unwind past handles: see rueda::Handle.
//
// Errors are exceptions of type rueda::Error, which say what, where, and what to do. All functions
// work on the calling thread's current context (rueda_current_context), which init sets for the
// process. Threads: as in the C API, everything may be called from any thread.
#ifndef RUEDA_RUEDA_HPP_
#define RUEDA_RUEDA_HPP_

#include <atomic>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/rueda.h"

// Before a parameter that the result must not outlive, for compilers that warn then (Clang).
#if __has_cpp_attribute(clang::lifetimebound)
#define RUEDA_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define RUEDA_LIFETIMEBOUND
#endif

/// Rueda's C++ API.
namespace rueda {

// Errors --------------------------------------------------------------------------------------
/// \addtogroup cpp_job
/// @{

/// What every function of this API throws.
class Error : public std::runtime_error {
 public:
  /// `message`: for people.
  Error(rueda_status status, const std::string& message, bool recoverable = false, int rank = -1)
      : std::runtime_error(message), status_(status), recoverable_(recoverable), rank_(rank) {}
  /// Which kind of error.
  rueda_status status() const { return status_; }
  /// A rank or the network was lost, and a new epoch without it could go on. A mismatch, or a
  /// mistake of the caller's, is not recoverable: trying again changes nothing.
  bool recoverable() const { return recoverable_; }
  /// The rank that was lost; -1 when none was.
  int rank() const { return rank_; }

 private:
  rueda_status status_;
  bool recoverable_;
  int rank_;
};

/// @}

namespace detail {

// The latest error of this thread; after a loss with what the context knows about it.
inline Error LastError(rueda_status status, rueda_context* context) {
  const std::string message = rueda_last_error();
  rueda_error error = RUEDA_ERROR_INIT;
  if (status == RUEDA_ABORTED && rueda_context_error(context, &error) == RUEDA_OK) {
    return Error(status, message, error.recoverable != 0, error.rank);
  }
  return Error(status, message);
}

inline void Check(rueda_status status, rueda_context* context = rueda_current_context()) {
  if (status != RUEDA_OK) throw LastError(status, context);
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

inline void Sweep() noexcept;  // see there

// For the C API. "" becomes null: unnamed.
inline const char* NameOf(const std::string& name) {
  if (name.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a name with a NUL byte in it: '" + std::string(name.c_str()) + "'...");
  }
  return name.empty() ? nullptr : name.c_str();
}

}  // namespace detail

// Reduce operations ---------------------------------------------------------------------------
/// \addtogroup cpp_reductions
/// @{

/// How elements are combined; see rueda_reduce_op.
using reduce_op = rueda_reduce_op;
inline constexpr reduce_op Sum = RUEDA_SUM;
inline constexpr reduce_op Average = RUEDA_AVERAGE;
inline constexpr reduce_op Min = RUEDA_MIN;
inline constexpr reduce_op Max = RUEDA_MAX;
inline constexpr reduce_op Product = RUEDA_PRODUCT;
inline constexpr reduce_op Band = RUEDA_BAND;
inline constexpr reduce_op Bor = RUEDA_BOR;
inline constexpr reduce_op Bxor = RUEDA_BXOR;
inline constexpr reduce_op Adasum = RUEDA_ADASUM;
inline constexpr reduce_op AverageLive = RUEDA_AVERAGE_LIVE;

/// @}

// The job -------------------------------------------------------------------------------------
/// \addtogroup cpp_job
/// @{

/// A knob and its value, as in docs/knobs.md: {"fusion_threshold", "1048576"}.
using Knobs = std::vector<std::pair<std::string, std::string>>;

/// Joins the job that the environment describes (ruedarun sets it; without a launcher: a world of
/// one), and makes it the process's current context. Does nothing when that is initialised already,
/// but for knobs, which come too late then: FAILED_PRECONDITION.
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
  detail::Check(rueda_init(RUEDA_VERSION, &options, &context), nullptr);
  rueda_set_default_context(context);
}

/// The same with process sets from the start: lists of world ranks, the same on all ranks. The
/// first one is ProcessSet{1}, the second ProcessSet{2}, and so on.
inline void init(Knobs knobs, const std::vector<std::vector<int>>& process_sets) {
  std::string lists;
  for (const std::vector<int>& ranks : process_sets) {
    if (!lists.empty()) lists += ';';
    for (size_t i = 0; i < ranks.size(); ++i)
      lists += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  }
  if (!lists.empty()) knobs.emplace_back("process_sets", lists);
  init(knobs);
}

/// Leaves the job: waits for all ranks, frees the context. Does nothing when there is none.
inline void shutdown() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) return;
  const rueda_status status = rueda_shutdown(context);
  if (status == RUEDA_OK) {
    rueda_context_destroy(context);
    return detail::Sweep();
  }
  const Error error = detail::LastError(status, context);
  if (status != RUEDA_FAILED_PRECONDITION) {  // else: a callback's
    rueda_context_destroy(context);
    detail::Sweep();
  }
  throw error;
}

/// Whether there is a current context that can be used.
inline bool is_initialized() {
  return rueda_is_initialized(rueda_current_context()) == 1;
}

/// This rank, from 0 on.
inline int rank() {
  return detail::CheckNumber(rueda_rank(detail::Current()));
}
/// How many ranks there are.
inline int size() {
  return detail::CheckNumber(rueda_size(detail::Current()));
}
/// This rank among those of this host.
inline int local_rank() {
  return detail::CheckNumber(rueda_local_rank(detail::Current()));
}
/// How many ranks this host has.
inline int local_size() {
  return detail::CheckNumber(rueda_local_size(detail::Current()));
}
/// This rank among those with its local rank, one a host.
inline int cross_rank() {
  return detail::CheckNumber(rueda_cross_rank(detail::Current()));
}
/// How many ranks have this local rank.
inline int cross_size() {
  return detail::CheckNumber(rueda_cross_size(detail::Current()));
}
/// Whether all hosts have the same number of ranks.
inline bool is_homogeneous() {
  return detail::CheckNumber(rueda_is_homogeneous(detail::Current())) == 1;
}

/// Records what this rank's operations go through, from now on, in a file for chrome://tracing and
/// Perfetto: rank 0 in `path` itself, rank 3 in "t.3.json" for "t.json". Local: ranks start and
/// stop when they like.
inline void start_timeline(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a path with a NUL byte in it: " + std::string(path.c_str()));
  }
  detail::Check(rueda_timeline_start(detail::Current(), path.c_str()));
}
/// Ends the file. shutdown does so too.
inline void stop_timeline() {
  detail::Check(rueda_timeline_stop(detail::Current()));
}

/// The number of the epoch: each init and each reset begins the next.
inline uint64_t epoch() {
  uint64_t number = 0;
  detail::Check(rueda_context_epoch(detail::Current(), &number));
  return number;
}
/// Ends the epoch on all ranks: everything in flight fails with ABORTED and this reason.
inline void abort(const std::string& reason) {
  detail::Check(rueda_abort(detail::Current(), reason.c_str()));
}
/// After ABORTED: meets the same ranks again in a new epoch; see rueda_context_reset.
inline void reset() {
  detail::Check(rueda_context_reset(detail::Current()));
}

/// @}

// Process sets --------------------------------------------------------------------------------
/// \addtogroup cpp_process_sets
/// @{

/// Some of the ranks, by the number of their set. All operations take one.
struct ProcessSet {
  int32_t id = RUEDA_WORLD;

  /// How many ranks it has.
  int size() const { return detail::CheckNumber(rueda_process_set_size(detail::Current(), id)); }
  /// This rank's index in the set; -1 when it is not in it.
  int rank() const { return rueda_process_set_rank(detail::Current(), id); }
  /// Whether this rank is in it.
  bool included() const { return rank() >= 0; }
  /// Its world ranks, ascending.
  std::vector<int> ranks() const {
    std::vector<int32_t> found(static_cast<size_t>(size()));
    size_t count = 0;
    detail::Check(
        rueda_process_set_ranks(detail::Current(), id, found.data(), found.size(), &count));
    return {found.begin(), found.end()};
  }
};

/// All ranks.
inline constexpr ProcessSet global_process_set{RUEDA_WORLD};

/// Makes a process set of these world ranks, ascending. All ranks of the world call it, with one
/// list.
inline ProcessSet add_process_set(const std::vector<int>& ranks) {
  const std::vector<int32_t> list(ranks.begin(), ranks.end());
  ProcessSet set;
  detail::Check(
      rueda_process_set_add(detail::Current(), list.data(), list.size(), RUEDA_FOREVER, &set.id));
  return set;
}

/// Removes a process set that has no operation in flight. All ranks of the world call it.
inline void remove_process_set(ProcessSet process_set) {
  detail::Check(rueda_process_set_remove(detail::Current(), process_set.id, RUEDA_FOREVER));
}

/// @}

// Tensors -------------------------------------------------------------------------------------
/// \addtogroup cpp_tensors
/// @{

/// The bits of an IEEE half: what C++20 has no type for. These four are moved and reduced by Rueda;
/// to compute with them is others' business.
struct Float16 {
  uint16_t bits;
  bool operator==(const Float16&) const = default;
};
/// The bits of a bfloat16.
struct BFloat16 {
  uint16_t bits;
  bool operator==(const BFloat16&) const = default;
};
/// The bits of an 8-bit float with 4 bits of exponent.
struct Float8E4M3fn {
  uint8_t bits;
  bool operator==(const Float8E4M3fn&) const = default;
};
/// The bits of an 8-bit float with 5 bits of exponent.
struct Float8E5M2 {
  uint8_t bits;
  bool operator==(const Float8E5M2&) const = default;
};

/// The dtype of an element type. Specialise it for types of your own, such as another library's
/// half, and ranges of them are tensors.
template <typename T>
inline constexpr rueda_dtype dtype_of = {0, 0, 0};
template <>
inline constexpr rueda_dtype dtype_of<bool> = {6, 8, 1};
template <>
inline constexpr rueda_dtype dtype_of<int8_t> = {0, 8, 1};
template <>
inline constexpr rueda_dtype dtype_of<int16_t> = {0, 16, 1};
template <>
inline constexpr rueda_dtype dtype_of<int32_t> = {0, 32, 1};
template <>
inline constexpr rueda_dtype dtype_of<int64_t> = {0, 64, 1};
template <>
inline constexpr rueda_dtype dtype_of<uint8_t> = {1, 8, 1};
template <>
inline constexpr rueda_dtype dtype_of<uint16_t> = {1, 16, 1};
template <>
inline constexpr rueda_dtype dtype_of<uint32_t> = {1, 32, 1};
template <>
inline constexpr rueda_dtype dtype_of<uint64_t> = {1, 64, 1};
template <>
inline constexpr rueda_dtype dtype_of<float> = {2, 32, 1};
template <>
inline constexpr rueda_dtype dtype_of<double> = {2, 64, 1};
template <>
inline constexpr rueda_dtype dtype_of<std::complex<float>> = {5, 64, 1};
template <>
inline constexpr rueda_dtype dtype_of<std::complex<double>> = {5, 128, 1};
template <>
inline constexpr rueda_dtype dtype_of<Float16> = {2, 16, 1};
template <>
inline constexpr rueda_dtype dtype_of<BFloat16> = {4, 16, 1};
template <>
inline constexpr rueda_dtype dtype_of<Float8E4M3fn> = {10, 8, 1};
template <>
inline constexpr rueda_dtype dtype_of<Float8E5M2> = {12, 8, 1};

/// A type that Rueda has a dtype for.
template <typename T>
concept Element = dtype_of<std::remove_const_t<T>>
.lanes == 1;

/// Contiguous memory of such a type. (A std::vector<bool> is not contiguous.)
template <typename R>
concept TensorRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    Element<std::ranges::range_value_t<R>>;

class Tensor;

namespace detail {
// A tensor whose memory goes with it: a container, an array, a Tensor; no view.
template <typename R>
concept Owner = std::same_as<std::remove_cvref_t<R>, Tensor> ||
    (TensorRange<std::remove_reference_t<R>> &&
     !std::ranges::enable_borrowed_range<std::remove_cvref_t<R>>);

// What the compiler says of a temporary one that an operation would outlive.
struct KeepTheTensorUntilTheOperationHasEnded;

// One that can be changed.
template <typename R>
concept Changeable =
    TensorRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
}  // namespace detail

/// Borrowed memory with a shape: contiguous, row-major. Ranges that outlive the call and can be
/// changed become one by themselves. Memory on a CUDA device is named by on_cuda; the in-place
/// operations take it. In a group all views have one device and one stream.
struct TensorView {
  void* data;
  std::vector<int64_t> shape;
  rueda_dtype dtype;
  rueda_device device = {RUEDA_CPU, 0};
  /// Of CUDA memory: operations begin behind what this has been given. Others have none.
  void* stream = nullptr;

  /// Of any dtype.
  TensorView(void* memory, std::vector<int64_t> dims, rueda_dtype type)
      : data(memory), shape(std::move(dims)), dtype(type) {}
  /// Of the dtype of T.
  template <Element T>
  TensorView(T* memory, std::vector<int64_t> dims)
      : TensorView(memory, std::move(dims), dtype_of<T>) {}
  /// The range's memory, as one dimension.
  template <detail::Changeable R>
  requires detail::Owner<R> TensorView(R& range RUEDA_LIFETIMEBOUND)
      : TensorView(std::ranges::data(range), {static_cast<int64_t>(std::ranges::size(range))}) {}
  /// The same of a view such as a std::span.
  template <detail::Changeable R>
  requires(!detail::Owner<R> && std::ranges::borrowed_range<R>) TensorView(R&& range)
      : TensorView(std::ranges::data(range), {static_cast<int64_t>(std::ranges::size(range))}) {}

  /// The same on a CUDA device. `cuda_stream`: a cudaStream_t of it; null: the legacy default one.
  /// What is given to a stream afterwards is ordered behind an operation by wait_on_stream.
  TensorView on_cuda(int device_id, void* cuda_stream = nullptr) const {
    TensorView view = *this;
    view.device = {RUEDA_CUDA, device_id};
    view.stream = cuda_stream;
    return view;
  }

  /// The product of its dimensions. INVALID_ARGUMENT: one is negative, or they are too large.
  size_t elements() const {
    size_t product = 1;
    for (const int64_t dim : shape) {
      if (dim < 0 || __builtin_mul_overflow(product, static_cast<size_t>(dim), &product) ||
          product > SIZE_MAX / 16) {
        throw Error(RUEDA_INVALID_ARGUMENT,
                    "a tensor's shape has a negative dimension or is too large: a dimension of " +
                        std::to_string(dim));
      }
    }
    return product;
  }
  /// How much memory that is.
  size_t bytes() const { return elements() * (dtype.bits / 8u); }
};

namespace detail {

// Of a tensor that is to be read or made by this process's own instructions.
inline void CheckOnCpu(const TensorView& view, const char* what) {
  const int32_t type = view.device.type;
  if (type == RUEDA_CPU || type == RUEDA_CUDA_HOST) return;
  if (type == RUEDA_CUDA || type == RUEDA_CUDA_MANAGED) {
    throw Error(RUEDA_UNIMPLEMENTED, std::string(what) + " for a tensor on CUDA");
  }
  throw Error(RUEDA_UNIMPLEMENTED, "DLPack device type " + std::to_string(type) +
                                       "; this version moves tensors on the CPU and on CUDA");
}

}  // namespace detail

/// Memory of its own with a shape: the result of an operation on a TensorView.
class Tensor {
 public:
  Tensor() = default;
  /// Zeroes. RESOURCE_EXHAUSTED: there is no memory for them.
  Tensor(std::vector<int64_t> shape, rueda_dtype dtype) : shape_(std::move(shape)), dtype_(dtype) {
    const size_t bytes = view().bytes();
    try {
      bytes_.resize(bytes);
    } catch (const std::exception&) {
      throw Error(RUEDA_RESOURCE_EXHAUSTED,
                  "no memory for a tensor of " + std::to_string(bytes) + " bytes");
    }
  }
  /// A copy. UNIMPLEMENTED: of memory on a device.
  explicit Tensor(const TensorView& view) : Tensor(view.shape, view.dtype) {
    detail::CheckOnCpu(view, "a rueda::Tensor is in the CPU's memory; there is none");
    if (!bytes_.empty()) std::memcpy(bytes_.data(), view.data, bytes_.size());
  }

  /// Its dimensions.
  const std::vector<int64_t>& shape() const { return shape_; }
  /// What its elements are.
  rueda_dtype dtype() const { return dtype_; }
  /// Its memory, borrowed.
  TensorView view() RUEDA_LIFETIMEBOUND { return {bytes_.data(), shape_, dtype_}; }
  /// The same.
  operator TensorView() & RUEDA_LIFETIMEBOUND { return view(); }

  /// Its elements, which must be of this type.
  template <Element T>
  std::span<const T> values() const RUEDA_LIFETIMEBOUND {
    constexpr rueda_dtype asked = dtype_of<T>;
    if (asked.code != dtype_.code || asked.bits != dtype_.bits) {
      throw Error(RUEDA_INVALID_ARGUMENT, "Tensor::values: the elements are of another type");
    }
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<int64_t> shape_ = {0};
  rueda_dtype dtype_ = {0, 0, 1};
};

/// What operations read: a range, a TensorView or a Tensor.
template <typename I>
concept Input = TensorRange<const I> || std::same_as<I, TensorView> || std::same_as<I, Tensor>;

namespace detail {
template <typename I>
struct ResultOf {
  using type = Tensor;
};
template <TensorRange I>
requires(!std::same_as<std::ranges::range_value_t<I>, bool>) struct ResultOf<I> {
  using type = std::vector<std::ranges::range_value_t<I>>;
};
}  // namespace detail

/// What an operation on an input of type `I` returns: a std::vector for a range, a Tensor for a
/// TensorView or a Tensor (and for a range of bool, which no std::vector holds).
template <typename I>
using Result = typename detail::ResultOf<I>::type;

/// The result of alltoall.
template <typename R>
struct Received {
  R tensor;                     ///< what all ranks sent, in rank order
  std::vector<int64_t> splits;  ///< how many rows of it came from each rank
};

namespace detail {

// Frees what rueda_mem_alloc gave. A rank of a failed epoch that is stopped may still write to it:
// then it is kept, with a warning the first time, and freed with what is freed later.
inline void FreeShared(void* memory) noexcept {
  static std::mutex mutex;
  static auto* const kept = new std::vector<void*>();  // outlives every other object
  const rueda_status status = rueda_mem_free(memory);
  if (status != RUEDA_OK && status != RUEDA_FAILED_PRECONDITION) {
    std::fprintf(stderr, "[rueda] E SharedAllocator: %s\n", rueda_last_error());
    return;
  }
  const std::lock_guard lock(mutex);
  if (status == RUEDA_FAILED_PRECONDITION) {
    static bool warned = false;
    if (!std::exchange(warned, true)) {
      std::fprintf(stderr, "[rueda] W SharedAllocator: %s; freed with a later deallocation\n",
                   rueda_last_error());
    }
    try {
      kept->push_back(memory);
    } catch (const std::bad_alloc&) {  // it stays allocated
    }
    return;
  }
  while (!kept->empty() && rueda_mem_free(kept->back()) != RUEDA_FAILED_PRECONDITION) {
    kept->pop_back();
  }
}

}  // namespace detail

/// Allocates memory in which allreduces touch every byte once (rueda_mem_alloc), from the current
/// context: `std::vector<float, rueda::SharedAllocator<float>>`.
template <typename T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <typename U>
  SharedAllocator(const SharedAllocator<U>&) {}  ///< they are all alike
  /// Zeroed memory for that many.
  T* allocate(size_t count) {
    void* memory = nullptr;
    detail::Check(rueda_mem_alloc(detail::Current(), count * sizeof(T), &memory));
    return static_cast<T*>(memory);
  }
  /// Frees it; no operation may be using it. After a failed epoch a stopped rank may keep it from
  /// being freed (see rueda_mem_free): then a later deallocation frees it.
  void deallocate(T* memory, size_t) noexcept { detail::FreeShared(memory); }
  bool operator==(const SharedAllocator&) const { return true; }
};

/// @}

// Handles -------------------------------------------------------------------------------------

namespace detail {

// Whether to wait for the end.
enum class When { kNow, kInBackground };

// An operation in flight. Its end is waited for before its memory goes.
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
    if (handle == 0) throw LastError(status, context);
    Wait();
  }
};

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

template <typename C>
std::shared_ptr<C> MakeCargo() {
  return std::shared_ptr<C>(new C, LetGo);
}

// An operation's, with a result of type R.
template <typename R>
struct State : Cargo {
  std::vector<Tensor> inputs;       // copies, when nobody waits for the end
  std::vector<rueda_dtype> dtypes;  // of the parts of a result whose size was not known
  R result;
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
///    RUEDA_UNWIND_TIMEOUT_S (5 s). After that it ends the epoch on all ranks (rueda_abort), and
///    the error names the operation: "allreduce 'g': an exception unwound past its handle, ...".
///    C++ does not tell a destructor which exception that is, so the text of it is not there.
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

/// @}

namespace detail {

inline const std::string& NoCompressor() {
  static const std::string none;
  return none;
}

// What to do with one tensor or a group. Borrowed for the call.
struct Request {
  rueda_kind kind;
  const std::string& name;
  ProcessSet process_set;
  reduce_op op = RUEDA_NO_REDUCE_OP;
  double prescale = 1;
  double postscale = 1;
  int root = -1;
  std::span<const int64_t> splits = {};
  const std::string& compressor = NoCompressor();
};

// The C API's form of the view, with other memory of the same shape. Points into the view.
inline rueda_tensor CTensor(const TensorView& view, void* data) {
  return {data,
          view.device,
          static_cast<int32_t>(view.shape.size()),
          view.dtype,
          const_cast<int64_t*>(view.shape.data()),
          nullptr,
          0};
}

// Everything but the tensors.
inline rueda_operation COperation(const Request& request) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = request.kind;
  operation.name = NameOf(request.name);
  operation.process_set = request.process_set.id;
  operation.root = request.root;
  operation.reduce_op = request.op;
  operation.prescale = request.prescale;
  operation.postscale = request.postscale;
  operation.compressor = NameOf(request.compressor);
  operation.splits = request.splits.empty() ? nullptr : request.splits.data();
  operation.split_count = request.splits.size();
  return operation;
}

inline void SetTensor(rueda_operation* operation, const rueda_tensor* tensor) {
  (operation->kind == RUEDA_RECV ? operation->output : operation->input) = tensor;
}

// Where the operation runs, of CUDA. A stream that is given where there is none is the C API's to
// refuse, and so is a group whose tensors have several.
inline void SetExec(rueda_operation* operation, const TensorView& view, rueda_exec* exec) {
  const int32_t type = view.device.type;
  if (type != RUEDA_CUDA && type != RUEDA_CUDA_MANAGED && view.stream == nullptr) return;
  *exec = RUEDA_EXEC_INIT;
  exec->device = view.device;
  exec->stream = view.stream;
  operation->exec = exec;
}

// Does it now, in the memory of the tensor, if there is one.
inline void Execute(const Request& request, const TensorView* tensor) {
  rueda_operation operation = COperation(request);
  rueda_tensor in_c = {};
  rueda_exec exec = RUEDA_EXEC_INIT;
  if (tensor != nullptr) {
    SetTensor(&operation, &(in_c = CTensor(*tensor, tensor->data)));
    SetExec(&operation, *tensor, &exec);
  }
  Flight flight;
  flight.Start({&operation, 1}, When::kNow);
}

// The input's memory, which the operation only reads.
template <Input I>
TensorView ViewOf(const I& input) {
  if constexpr (TensorRange<const I>) {
    using T = std::ranges::range_value_t<const I>;
    return {const_cast<T*>(std::ranges::data(input)),
            {static_cast<int64_t>(std::ranges::size(input))}};
  } else {
    return const_cast<I&>(input);
  }
}

template <Input I>
std::vector<TensorView> ViewsOf(const std::vector<I>& inputs) {
  std::vector<TensorView> views;
  for (const I& input : inputs) views.push_back(ViewOf(input));
  return views;
}

// A result has one part, or one for each tensor of a group.
template <typename R>
concept Group = requires(R result) {
  result[0].begin();
}
|| std::same_as<R, std::vector<Tensor>>;

template <typename R>
auto& PartOf(R& result, size_t index) {
  if constexpr (Group<R>) {
    return result[index];
  } else if constexpr (requires { result.splits; }) {
    return result.tensor;
  } else {
    return result;
  }
}

// Gives the part this shape and returns its memory.
inline void* Reshape(Tensor* part, const TensorView& like) {
  *part = Tensor(like.shape, like.dtype);
  return part->view().data;
}
template <typename T>
void* Reshape(std::vector<T>* part, const TensorView& like) {
  part->resize(like.elements());
  return part->data();
}

// A rueda_allocate_fn.
template <typename R>
void* Allocate(void* user, int32_t part, const int64_t* shape, int32_t ndim) {
  auto* state = static_cast<State<R>*>(user);
  const auto index = static_cast<size_t>(part);
  return Reshape(&PartOf(state->result, index),
                 TensorView(nullptr, {shape, shape + ndim}, state->dtypes[index]));
}

enum class Memory {
  kInPlace,    // the tensors' own, borrowed until the end
  kCopied,     // the result begins as a copy of the input, and is worked on in place
  kAllocated,  // the result's size is known later
  kReadOnly    // there is no result
};

// Where the operation works on a tensor: there, in the result, or in a copy that is kept.
template <typename R>
void* Place(State<R>* state, const TensorView& tensor, size_t index, Memory memory, When when) {
  if (memory != Memory::kInPlace) {
    CheckOnCpu(tensor,
               "take the function that works in place (its name ends in _), or the C API: there is "
               "no memory of the library's");
  }
  if constexpr (!std::is_void_v<R>) {
    if (memory == Memory::kCopied) {
      void* data = Reshape(&PartOf(state->result, index), tensor);
      if (tensor.bytes() > 0) std::memcpy(data, tensor.data, tensor.bytes());
      return data;
    }
  }
  if (when == When::kNow || memory == Memory::kInPlace) {
    state->borrows = true;
    return tensor.data;
  }
  return state->inputs.emplace_back(tensor).view().data;
}

// Starts an operation on each tensor, together. The names in a group have numbers.
template <typename R>
Handle<R> Start(const Request& request, std::span<const TensorView> tensors, Memory memory,
                When when, bool grouped = false) {
  auto state = MakeCargo<State<R>>();
  std::vector<rueda_operation> operations(tensors.size(), COperation(request));
  std::vector<rueda_tensor> in_c(tensors.size());
  std::vector<rueda_exec> execs(tensors.size());
  std::vector<std::string> names(tensors.size());
  if constexpr (Group<R>) state->result.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    in_c[i] = CTensor(tensors[i], Place(state.get(), tensors[i], i, memory, when));
    SetTensor(&operations[i], &in_c[i]);
    SetExec(&operations[i], tensors[i], &execs[i]);
    if (grouped && !request.name.empty()) {
      names[i] = request.name + "." + std::to_string(i);
      operations[i].name = names[i].c_str();
    }
    if constexpr (!std::is_void_v<R>) {
      if (memory != Memory::kAllocated) continue;
      state->dtypes.push_back(tensors[i].dtype);
      operations[i].allocate = &Allocate<R>;
      operations[i].allocate_user = state.get();
    }
  }
  state->flight.Start(operations, when);
  return Handle<R>(std::move(state));
}

template <typename R, Input I>
Handle<R> StartOne(const Request& request, const I& input, Memory memory, When when) {
  const TensorView view = ViewOf(input);
  return Start<R>(request, {&view, 1}, memory, when);
}

template <Input I>
auto StartGroup(const Request& request, const std::vector<I>& inputs, Memory memory, When when) {
  return Start<std::vector<Result<I>>>(request, ViewsOf(inputs), memory, when, /*grouped=*/true);
}

// Only the root has a result of a reduce.
inline Memory ReduceMemory(int root) {
  return rank() == root ? Memory::kCopied : Memory::kReadOnly;
}

}  // namespace detail

// allreduce, reduce ----------------------------------------------------------------------------
/// \addtogroup cpp_reductions
/// @{

/// Combines `tensor` over the ranks of the process set, in place. The inputs are multiplied by
/// `prescale_factor` before and the result by `postscale_factor` after the reduction. `compressor`:
/// "" or, for sums and averages of floats, what makes them smaller on their way, such as "int8" or
/// "powersgd:4": rueda_operation has them all.
inline void allreduce_(const TensorView& tensor, const std::string& name = "",
                       reduce_op op = Average, double prescale_factor = 1,
                       double postscale_factor = 1, ProcessSet process_set = global_process_set,
                       const std::string& compressor = "") {
  detail::Execute({RUEDA_ALLREDUCE,
                   name,
                   process_set,
                   op,
                   prescale_factor,
                   postscale_factor,
                   -1,
                   {},
                   compressor},
                  &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> allreduce_async_(const TensorView& tensor,
                                               const std::string& name = "", reduce_op op = Average,
                                               double prescale_factor = 1,
                                               double postscale_factor = 1,
                                               ProcessSet process_set = global_process_set,
                                               const std::string& compressor = "") {
  return detail::Start<void>({RUEDA_ALLREDUCE,
                              name,
                              process_set,
                              op,
                              prescale_factor,
                              postscale_factor,
                              -1,
                              {},
                              compressor},
                             {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> allreduce_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return allreduce_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    allreduce_async_(R&& temporary, const More&... more)
= delete;

/// The same, out of place.
template <Input I>
Result<I> allreduce(const I& tensor, const std::string& name = "", reduce_op op = Average,
                    double prescale_factor = 1, double postscale_factor = 1,
                    ProcessSet process_set = global_process_set,
                    const std::string& compressor = "") {
  return synchronize(detail::StartOne<Result<I>>({RUEDA_ALLREDUCE,
                                                  name,
                                                  process_set,
                                                  op,
                                                  prescale_factor,
                                                  postscale_factor,
                                                  -1,
                                                  {},
                                                  compressor},
                                                 tensor, detail::Memory::kCopied,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> allreduce_async(const I& tensor, const std::string& name = "",
                                                reduce_op op = Average, double prescale_factor = 1,
                                                double postscale_factor = 1,
                                                ProcessSet process_set = global_process_set,
                                                const std::string& compressor = "") {
  return detail::StartOne<Result<I>>({RUEDA_ALLREDUCE,
                                      name,
                                      process_set,
                                      op,
                                      prescale_factor,
                                      postscale_factor,
                                      -1,
                                      {},
                                      compressor},
                                     tensor, detail::Memory::kCopied, detail::When::kInBackground);
}

/// Several tensors, also of several dtypes, as one operation: taken whole or not at all. Their
/// names are `name` with ".0", ".1", ... behind it.
inline void grouped_allreduce_(const std::vector<TensorView>& tensors, const std::string& name = "",
                               reduce_op op = Average, double prescale_factor = 1,
                               double postscale_factor = 1,
                               ProcessSet process_set = global_process_set,
                               const std::string& compressor = "") {
  synchronize(detail::Start<void>({RUEDA_ALLREDUCE,
                                   name,
                                   process_set,
                                   op,
                                   prescale_factor,
                                   postscale_factor,
                                   -1,
                                   {},
                                   compressor},
                                  tensors, detail::Memory::kInPlace, detail::When::kNow,
                                  /*grouped=*/true));
}

/// The same, in the background: the memory is borrowed until the operation has ended, and the
/// caller keeps it alive until then.
[[nodiscard]] inline Handle<> grouped_allreduce_async_(
    const std::vector<TensorView>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::Start<void>({RUEDA_ALLREDUCE,
                              name,
                              process_set,
                              op,
                              prescale_factor,
                              postscale_factor,
                              -1,
                              {},
                              compressor},
                             tensors, detail::Memory::kInPlace, detail::When::kInBackground,
                             /*grouped=*/true);
}

/// The same, out of place: of vectors all of one type, or of a std::vector<TensorView> of any.
template <Input I>
std::vector<Result<I>> grouped_allreduce(const std::vector<I>& tensors,
                                         const std::string& name = "", reduce_op op = Average,
                                         double prescale_factor = 1, double postscale_factor = 1,
                                         ProcessSet process_set = global_process_set,
                                         const std::string& compressor = "") {
  return synchronize(detail::StartGroup({RUEDA_ALLREDUCE,
                                         name,
                                         process_set,
                                         op,
                                         prescale_factor,
                                         postscale_factor,
                                         -1,
                                         {},
                                         compressor},
                                        tensors, detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allreduce_async(
    const std::vector<I>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::StartGroup({RUEDA_ALLREDUCE,
                             name,
                             process_set,
                             op,
                             prescale_factor,
                             postscale_factor,
                             -1,
                             {},
                             compressor},
                            tensors, detail::Memory::kCopied, detail::When::kInBackground);
}

/// As allreduce_, but only the tensor of `root_rank` changes.
inline void reduce_(const TensorView& tensor, int root_rank, const std::string& name = "",
                    reduce_op op = Average, double prescale_factor = 1, double postscale_factor = 1,
                    ProcessSet process_set = global_process_set) {
  detail::Execute(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> reduce_async_(const TensorView& tensor, int root_rank,
                                            const std::string& name = "", reduce_op op = Average,
                                            double prescale_factor = 1, double postscale_factor = 1,
                                            ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank},
      {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> reduce_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return reduce_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    reduce_async_(R&& temporary, const More&... more)
= delete;

/// As allreduce, but only `root_rank` has a result; elsewhere it is empty.
template <Input I>
Result<I> reduce(const I& tensor, int root_rank, const std::string& name = "",
                 reduce_op op = Average, double prescale_factor = 1, double postscale_factor = 1,
                 ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, tensor,
      detail::ReduceMemory(root_rank), detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> reduce_async(const I& tensor, int root_rank,
                                             const std::string& name = "", reduce_op op = Average,
                                             double prescale_factor = 1,
                                             double postscale_factor = 1,
                                             ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, tensor,
      detail::ReduceMemory(root_rank), detail::When::kInBackground);
}

/// Reduces the tensors, of one shape on all ranks, and gives each rank its part of the rows: equal
/// parts, the lowest ranks one row more.
template <Input I>
Result<I> reducescatter(const I& tensor, const std::string& name = "", reduce_op op = Average,
                        double prescale_factor = 1, double postscale_factor = 1,
                        ProcessSet process_set = global_process_set,
                        const std::string& compressor = "") {
  return synchronize(detail::StartOne<Result<I>>({RUEDA_REDUCESCATTER,
                                                  name,
                                                  process_set,
                                                  op,
                                                  prescale_factor,
                                                  postscale_factor,
                                                  -1,
                                                  {},
                                                  compressor},
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> reducescatter_async(const I& tensor, const std::string& name = "",
                                                    reduce_op op = Average,
                                                    double prescale_factor = 1,
                                                    double postscale_factor = 1,
                                                    ProcessSet process_set = global_process_set,
                                                    const std::string& compressor = "") {
  return detail::StartOne<Result<I>>({RUEDA_REDUCESCATTER,
                                      name,
                                      process_set,
                                      op,
                                      prescale_factor,
                                      postscale_factor,
                                      -1,
                                      {},
                                      compressor},
                                     tensor, detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Several reducescatters as one operation; see grouped_allreduce_.
template <Input I>
std::vector<Result<I>> grouped_reducescatter(const std::vector<I>& tensors,
                                             const std::string& name = "", reduce_op op = Average,
                                             double prescale_factor = 1,
                                             double postscale_factor = 1,
                                             ProcessSet process_set = global_process_set,
                                             const std::string& compressor = "") {
  return synchronize(detail::StartGroup({RUEDA_REDUCESCATTER,
                                         name,
                                         process_set,
                                         op,
                                         prescale_factor,
                                         postscale_factor,
                                         -1,
                                         {},
                                         compressor},
                                        tensors, detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_reducescatter_async(
    const std::vector<I>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::StartGroup({RUEDA_REDUCESCATTER,
                             name,
                             process_set,
                             op,
                             prescale_factor,
                             postscale_factor,
                             -1,
                             {},
                             compressor},
                            tensors, detail::Memory::kAllocated, detail::When::kInBackground);
}

/// @}

// broadcast, gathering and scattering ----------------------------------------------------------
/// \addtogroup cpp_movement
/// @{

/// Gives every rank of the process set the `tensor` of `root_rank`.
inline void broadcast_(const TensorView& tensor, int root_rank, const std::string& name = "",
                       ProcessSet process_set = global_process_set) {
  detail::Execute(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> broadcast_async_(const TensorView& tensor, int root_rank,
                                               const std::string& name = "",
                                               ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> broadcast_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return broadcast_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    broadcast_async_(R&& temporary, const More&... more)
= delete;

/// The same, out of place.
template <Input I>
Result<I> broadcast(const I& tensor, int root_rank, const std::string& name = "",
                    ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      tensor, detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> broadcast_async(const I& tensor, int root_rank,
                                                const std::string& name = "",
                                                ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      tensor, detail::Memory::kCopied, detail::When::kInBackground);
}

/// All ranks' tensors, one after another in rank order. They may differ in the first dimension.
template <Input I>
Result<I> allgather(const I& tensor, const std::string& name = "",
                    ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> allgather_async(const I& tensor, const std::string& name = "",
                                                ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Several allgathers as one operation; see grouped_allreduce_.
template <Input I>
std::vector<Result<I>> grouped_allgather(const std::vector<I>& tensors,
                                         const std::string& name = "",
                                         ProcessSet process_set = global_process_set) {
  return synchronize(
      detail::StartGroup({.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set},
                         tensors, detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allgather_async(
    const std::vector<I>& tensors, const std::string& name = "",
    ProcessSet process_set = global_process_set) {
  return detail::StartGroup({.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set},
                            tensors, detail::Memory::kAllocated, detail::When::kInBackground);
}

/// As allgather, but only `root_rank` has a result; elsewhere it is empty.
template <Input I>
Result<I> gather(const I& tensor, int root_rank, const std::string& name = "",
                 ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_GATHER, .name = name, .process_set = process_set, .root = root_rank}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> gather_async(const I& tensor, int root_rank,
                                             const std::string& name = "",
                                             ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_GATHER, .name = name, .process_set = process_set, .root = root_rank}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Gives each rank of the process set its `splits` rows of the root's tensor; without splits equal
/// parts. Elsewhere `tensor` only tells dtype and shape of a row, and may have none.
template <Input I>
Result<I> scatter(const I& tensor, int root_rank, const std::vector<int64_t>& splits = {},
                  const std::string& name = "", ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>({.kind = RUEDA_SCATTER,
                                                  .name = name,
                                                  .process_set = process_set,
                                                  .root = root_rank,
                                                  .splits = splits},
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> scatter_async(const I& tensor, int root_rank,
                                              const std::vector<int64_t>& splits = {},
                                              const std::string& name = "",
                                              ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>({.kind = RUEDA_SCATTER,
                                      .name = name,
                                      .process_set = process_set,
                                      .root = root_rank,
                                      .splits = splits},
                                     tensor, detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Gives `splits` rows of `tensor` to each rank of the process set; without splits equal parts.
/// Returns what all ranks gave this one.
template <Input I>
Received<Result<I>> alltoall(const I& tensor, const std::vector<int64_t>& splits = {},
                             const std::string& name = "",
                             ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Received<Result<I>>>(
      {.kind = RUEDA_ALLTOALL, .name = name, .process_set = process_set, .splits = splits}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Received<Result<I>>> alltoall_async(
    const I& tensor, const std::vector<int64_t>& splits = {}, const std::string& name = "",
    ProcessSet process_set = global_process_set) {
  return detail::StartOne<Received<Result<I>>>(
      {.kind = RUEDA_ALLTOALL, .name = name, .process_set = process_set, .splits = splits}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Gives `tensor` to the rank `destination`, which receives it in the same shape, under the same
/// name (or both without one, in order). Waits until it has.
template <Input I>
void send(const I& tensor, int destination, const std::string& name = "",
          ProcessSet process_set = global_process_set) {
  const TensorView view = detail::ViewOf(tensor);
  detail::Execute(
      {.kind = RUEDA_SEND, .name = name, .process_set = process_set, .root = destination}, &view);
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<> send_async(const I& tensor, int destination, const std::string& name = "",
                                  ProcessSet process_set = global_process_set) {
  return detail::StartOne<void>(
      {.kind = RUEDA_SEND, .name = name, .process_set = process_set, .root = destination}, tensor,
      detail::Memory::kReadOnly, detail::When::kInBackground);
}

/// Fills `tensor` with what the rank `source` sends.
inline void recv(const TensorView& tensor, int source, const std::string& name = "",
                 ProcessSet process_set = global_process_set) {
  detail::Execute({.kind = RUEDA_RECV, .name = name, .process_set = process_set, .root = source},
                  &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> recv_async(const TensorView& tensor, int source,
                                         const std::string& name = "",
                                         ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {.kind = RUEDA_RECV, .name = name, .process_set = process_set, .root = source}, {&tensor, 1},
      detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> recv_async(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return recv_async(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    recv_async(R&& temporary, const More&... more)
= delete;

/// @}

// Objects --------------------------------------------------------------------------------------
/// \addtogroup cpp_objects
/// @{

namespace detail {

struct Bytes {
  rueda_result result = RUEDA_RESULT_INIT;

  Bytes() = default;
  Bytes(const Bytes&) = delete;
  ~Bytes() { rueda_result_free(&result); }
  const char* data() const { return static_cast<const char*>(result.tensor.data); }
};

}  // namespace detail

/// Returns the `object` of `root_rank` on every rank: any string of bytes, such as something
/// serialised. Elsewhere it is not looked at.
inline std::string broadcast_object(const std::string& object, int root_rank,
                                    const std::string& name = "",
                                    ProcessSet process_set = global_process_set) {
  detail::Bytes bytes;
  detail::Check(rueda_broadcast_bytes(detail::Current(), process_set.id, detail::NameOf(name),
                                      root_rank, object.data(), object.size(), &bytes.result));
  return std::string(bytes.data(), static_cast<size_t>(bytes.result.tensor.shape[0]));
}

/// All ranks' objects, in rank order.
inline std::vector<std::string> allgather_object(const std::string& object,
                                                 const std::string& name = "",
                                                 ProcessSet process_set = global_process_set) {
  detail::Bytes bytes;
  std::vector<int64_t> sizes(static_cast<size_t>(process_set.size()));
  detail::Check(rueda_allgather_bytes(detail::Current(), process_set.id, detail::NameOf(name),
                                      object.data(), object.size(), &bytes.result, sizes.data()));
  std::vector<std::string> objects;
  const char* next = bytes.data();
  for (const int64_t size : sizes) {
    objects.emplace_back(next, static_cast<size_t>(size));
    next += size;
  }
  return objects;
}

/// @}

// Meeting --------------------------------------------------------------------------------------
/// \addtogroup cpp_meeting
/// @{

/// Waits until all ranks of the process set are here.
inline void barrier(ProcessSet process_set = global_process_set) {
  detail::Execute({.kind = RUEDA_BARRIER, .name = "", .process_set = process_set}, nullptr);
}

/// The same, in the background: the operation ends when all ranks are there.
[[nodiscard]] inline Handle<> barrier_async(ProcessSet process_set = global_process_set) {
  auto state = detail::MakeCargo<detail::State<void>>();
  const rueda_operation operation =
      detail::COperation({.kind = RUEDA_BARRIER, .name = "", .process_set = process_set});
  state->flight.Start({&operation, 1}, detail::When::kInBackground);
  return Handle<>(std::move(state));
}

/// Says that this rank has no more data: the others' allreduces in the process set go on without it
/// (rueda_join). Waits until all ranks have joined; returns the one that joined last.
inline int join(ProcessSet process_set = global_process_set) {
  int32_t last_rank = -1;
  detail::Check(rueda_join(detail::Current(), process_set.id, RUEDA_FOREVER, &last_rank));
  return last_rank;
}

/// @}

}  // namespace rueda

#endif  // RUEDA_RUEDA_HPP_
