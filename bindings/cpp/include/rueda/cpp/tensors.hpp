// Rueda's C++ API: what operations read, change and return. Included by rueda/rueda.hpp, which says
// how to use it.
#ifndef RUEDA_CPP_TENSORS_HPP_
#define RUEDA_CPP_TENSORS_HPP_

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/rueda.h"

// Before a parameter that the result must not outlive, for compilers that warn then (Clang).
#if __has_cpp_attribute(clang::lifetimebound)
#define RUEDA_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define RUEDA_LIFETIMEBOUND
#endif

namespace rueda {

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

/// The dtype of an element type. Specialize it for types of your own, such as another library's
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
// A number is a tensor of no dimension.
template <typename T>
concept Number = Element<std::remove_cvref_t<T>>;

// A tensor whose memory goes with it: a number, a container, an array, a Tensor; no view.
template <typename R>
concept Owner = Number<R> || std::same_as<std::remove_cvref_t<R>, Tensor> ||
    (TensorRange<std::remove_reference_t<R>> &&
     !std::ranges::enable_borrowed_range<std::remove_cvref_t<R>>);

// What the compiler says of a temporary one that an operation would outlive.
struct KeepTheTensorUntilTheOperationHasEnded {};

// One that can be changed.
template <typename R>
concept Changeable =
    TensorRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
}  // namespace detail

/// Borrowed memory with a shape: contiguous, row-major. Ranges and numbers that outlive the call
/// and can be changed become one by themselves. Memory on a CUDA device is named by on_cuda; the
/// in-place operations take it. In a group all views have one device and one stream.
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
  /// The number's memory, without a dimension.
  template <Element T>
  requires(!std::is_const_v<T>) TensorView(T& number RUEDA_LIFETIMEBOUND)
      : TensorView(&number, std::vector<int64_t>()) {}
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

/// What operations on rows read: a range, a TensorView or a Tensor.
template <typename I>
concept RowInput = TensorRange<const I> || std::same_as<I, TensorView> || std::same_as<I, Tensor>;

/// What operations read: such a thing, or a number, which is a tensor of no dimension: of float32
/// for a float, of float64 for a double, of int32 for an int (dtype_of).
template <typename I>
concept Input = RowInput<I> || detail::Number<I>;

namespace detail {
template <typename I>
struct ResultOf {
  using type = Tensor;
};
template <Number I>
struct ResultOf<I> {
  using type = I;
};
template <TensorRange I>
requires(!std::same_as<std::ranges::range_value_t<I>, bool>) struct ResultOf<I> {
  using type = std::vector<std::ranges::range_value_t<I>>;
};
}  // namespace detail

/// What an operation on an input of type `I` returns: a number for a number, a std::vector for a
/// range, a Tensor for a TensorView or a Tensor (and for a range of bool, which no std::vector
/// holds).
template <typename I>
using Result = typename detail::ResultOf<I>::type;

namespace detail {
template <typename I>
struct JoinedOf : ResultOf<I> {};
template <Number I>
struct JoinedOf<I> : ResultOf<std::span<I>> {};
}  // namespace detail

/// What an operation that joins rows returns: the same, and of numbers, which are a row each, a
/// std::vector (of bool: a Tensor).
template <typename I>
using Joined = typename detail::JoinedOf<I>::type;

/// The result of alltoall.
template <typename R>
struct Received {
  R tensor;                     ///< what all ranks sent, in rank order
  std::vector<int64_t> splits;  ///< how many rows of it came from each rank
};

namespace detail {

// Frees what rueda_mem_alloc gave. A rank of a failed membership that is stopped may still write to
// it: then it is kept, with a warning the first time, and freed with what is freed later.
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
  /// Frees it; no operation may be using it. After a failed membership a stopped rank may keep it
  /// from being freed (see rueda_mem_free): then a later deallocation frees it.
  void deallocate(T* memory, size_t) noexcept { detail::FreeShared(memory); }
  bool operator==(const SharedAllocator&) const { return true; }
};

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_TENSORS_HPP_
