// What reduce.h promises around the vectorised loops: refusals, plain copies, scaling of integers,
// neutral elements.
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/vectors.h"

namespace rueda::kernels {
namespace {

absl::Status NotDefined(DType dtype, ReduceOp op, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(ReduceOpName(op), " of ", DTypeName(dtype), " is not defined: ", why));
}

// Calls `f` with a zero of the C++ type of a dtype that is one: integers, bool, float32, float64.
template <class F>
void WithType(DType dtype, F f) {
  switch (dtype) {
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    default:
      RUEDA_CHECK(false) << DTypeName(dtype);
  }
}

// ---- integers with factors: block by block, scalar arithmetic around the vectorised reduction
// ----

constexpr size_t kBlockBytes = 4096;

template <class T>
T Scale(T value, double factor) {
  const double product = static_cast<double>(value) * factor;
  constexpr T kLowest = std::numeric_limits<T>::min();
  constexpr T kHighest = std::numeric_limits<T>::max();
  if (product >= static_cast<double>(kHighest)) return kHighest;
  if (product <= static_cast<double>(kLowest)) return kLowest;
  if (product != product) return 0;  // a factor was not finite
  return static_cast<T>(product);
}

template <class T>
void ScaleBlock(T* block, size_t count, double factor) {
  if (factor == 1) return;
  for (size_t i = 0; i < count; ++i) block[i] = Scale(block[i], factor);
}

template <class T>
void DivideBlock(T* block, size_t count, int64_t divisor) {
  if (divisor == 1) return;
  for (size_t i = 0; i < count; ++i) block[i] = static_cast<T>(block[i] / divisor);
}

template <class T>
void ReduceScaled(DType dtype, ReduceOp op, const ReduceArgs& args) {
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  T sum[kBlock];
  T operand[kBlock];
  const void* const both[] = {sum, operand};
  for (size_t at = 0; at < args.count; at += kBlock) {
    const size_t count = std::min(kBlock, args.count - at);
    for (size_t k = 0; k < args.source_count; ++k) {
      T* const block = k == 0 ? sum : operand;
      const char* const source = static_cast<const char*>(args.sources[k]) + at * sizeof(T);
      std::memcpy(block, source, count * sizeof(T));
      ScaleBlock(block, count, args.scaling.prescale);
      if (k > 0) ReduceVectors(dtype, op, {both, 2, sum, count, Scaling()});
    }
    DivideBlock(sum, count, args.scaling.divisor);
    ScaleBlock(sum, count, args.scaling.postscale);
    std::memcpy(static_cast<char*>(args.destination) + at * sizeof(T), sum, count * sizeof(T));
  }
}

// The sum is exact: there are less than 2^31 operands of at most 32 bits.
template <class T>
void ReduceExactAverage(const ReduceArgs& args) {
  constexpr size_t kBlock = kBlockBytes / sizeof(int64_t);
  int64_t sum[kBlock];
  T block[kBlock];
  for (size_t at = 0; at < args.count; at += kBlock) {
    const size_t count = std::min(kBlock, args.count - at);
    std::fill_n(sum, count, 0);
    for (size_t k = 0; k < args.source_count; ++k) {
      const char* const source = static_cast<const char*>(args.sources[k]) + at * sizeof(T);
      std::memcpy(block, source, count * sizeof(T));
      ScaleBlock(block, count, args.scaling.prescale);
      for (size_t i = 0; i < count; ++i) sum[i] += block[i];
    }
    DivideBlock(sum, count, args.scaling.divisor);
    for (size_t i = 0; i < count; ++i) block[i] = static_cast<T>(sum[i]);
    ScaleBlock(block, count, args.scaling.postscale);
    std::memcpy(static_cast<char*>(args.destination) + at * sizeof(T), block, count * sizeof(T));
  }
}

// ---- what travels ----

DType ExactSumType(DType dtype, int64_t operands) {
  switch (dtype) {
    case DType::kInt8:
      return operands <= 1 << 8 ? DType::kInt16 : DType::kInt32;
    case DType::kUInt8:
      return operands <= (1 << 8) + 1 ? DType::kUInt16 : DType::kUInt32;
    case DType::kInt16:
      return operands <= 1 << 16 ? DType::kInt32 : DType::kInt64;
    case DType::kUInt16:
      return operands <= (1 << 16) + 1 ? DType::kUInt32 : DType::kUInt64;
    case DType::kInt32:
      return DType::kInt64;
    case DType::kUInt32:
      return DType::kUInt64;
    default:
      RUEDA_CHECK(false) << DTypeName(dtype);
      return dtype;
  }
}

template <class From, class To>
void ConvertBlocks(const void* source, void* destination, size_t count, double first, double last) {
  constexpr size_t kBlock = kBlockBytes / sizeof(int64_t);
  From from[kBlock];
  To to[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t size = std::min(kBlock, count - at);
    std::memcpy(from, static_cast<const char*>(source) + at * sizeof(From), size * sizeof(From));
    ScaleBlock(from, size, first);
    for (size_t i = 0; i < size; ++i) to[i] = static_cast<To>(from[i]);
    ScaleBlock(to, size, last);
    std::memcpy(static_cast<char*>(destination) + at * sizeof(To), to, size * sizeof(To));
  }
}

// Calls `f` with zeros of the C++ types of an integer and of the wider one that it travels as.
template <class F>
void WithTypes(const Wire& wire, F f) {
  WithType(wire.dtype, [&]<typename T>(T narrow) {
    WithType(wire.type, [&]<typename W>(W wide) {
      if constexpr (std::is_integral_v<T> && std::is_integral_v<W> && sizeof(T) < sizeof(W) &&
                    std::is_signed_v<T> == std::is_signed_v<W>) {
        f(narrow, wide);
      }
    });
  });
}

// What is converted, or combined and then converted, at a time.
constexpr int64_t kCombinedAtATime = 2 << 10;
constexpr size_t kWireBytesMax = sizeof(uint64_t);  // of an element that travels

// From one narrow floating type to another one that holds all its values.
void ConvertFloats(const Wire& wire, const void* source, void* destination, int64_t count) {
  float wide[kCombinedAtATime];
  for (int64_t begin = 0; begin < count; begin += kCombinedAtATime) {
    const int64_t size = std::min<int64_t>(kCombinedAtATime, count - begin);
    ToFloat32(wire.dtype,
              static_cast<const char*>(source) + static_cast<size_t>(begin) * DTypeSize(wire.dtype),
              wide, size);
    FromFloat32(wire.type, wide,
                static_cast<char*>(destination) + static_cast<size_t>(begin) * DTypeSize(wire.type),
                size);
  }
}

// What Combine has summed, to the tensors' type. Behind its divisor an average always fits.
void Narrow(const Wire& wire, const void* source, void* destination, int64_t count) {
  if (SumsInFloat32(wire.dtype)) {
    return FromFloat32(wire.dtype, static_cast<const float*>(source), destination, count);
  }
  WithTypes(wire, [&]<typename T, typename W>(T, W) {
    ConvertBlocks<W, T>(source, destination, static_cast<size_t>(count), 1, wire.last);
  });
}

// ---- what changes nothing ----

template <class T>
T Neutral(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kBitAnd:
      return static_cast<T>(-1);
    default:
      return 0;
  }
}

// Writes one element.
void NeutralElement(DType dtype, ReduceOp op, void* to) {
  if (SumsInFloat32(dtype)) {
    float wide = Neutral<float>(op);
    constexpr float kE4M3FNMax = 448;  // it has no infinity
    if (dtype == DType::kFloat8E4M3FN) wide = std::clamp(wide, -kE4M3FNMax, kE4M3FNMax);
    return FromFloat32(dtype, &wide, to, 1);
  }
  if (IsComplex(dtype)) {
    std::memset(to, 0, DTypeSize(dtype));
    dtype = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;  // the real part
  }
  WithType(dtype, [&]<typename T>(T) {
    const T value = Neutral<T>(op);
    std::memcpy(to, &value, sizeof value);
  });
}

}  // namespace

absl::Status CheckReducible(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return absl::OkStatus();
    case ReduceOp::kAverage:
    case ReduceOp::kAverageLive:
      if (dtype != DType::kBool) return absl::OkStatus();
      return NotDefined(dtype, op,
                        "use max for `or`, min for `and`, or convert to float32 to average");
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (!IsComplex(dtype)) return absl::OkStatus();
      return NotDefined(
          dtype, op, "complex numbers have no order; reduce their absolute values or their parts");
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      if (!IsFloating(dtype) && !IsComplex(dtype)) return absl::OkStatus();
      return NotDefined(dtype, op, "bitwise operations are for integers and bool");
    case ReduceOp::kAdasum:
      if (dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
          dtype == DType::kFloat64) {
        return absl::OkStatus();
      }
      return NotDefined(dtype, op, "it is for float16, bfloat16, float32 and float64");
    case ReduceOp::kNone:
      break;
  }
  return absl::InvalidArgumentError(
      "no reduce operation given: choose sum, average, min, max, product, band, bor, bxor, adasum "
      "or average_live");
}

bool IsExactAverage(DType dtype, ReduceOp op) {
  return IsAverage(op) && dtype != DType::kBool && !IsFloating(dtype) && !IsComplex(dtype) &&
         DTypeSize(dtype) < sizeof(int64_t);
}

void Reduce(DType dtype, ReduceOp op, absl::Span<const void* const> sources, void* destination,
            int64_t count, const Scaling& scaling) {
  RUEDA_CHECK(op != ReduceOp::kAdasum && CheckReducible(dtype, op).ok())
      << ReduceOpName(op) << " of " << DTypeName(dtype);
  RUEDA_CHECK(!sources.empty());
  RUEDA_CHECK(count >= 0) << count;
  RUEDA_CHECK(scaling.divisor >= 1) << scaling.divisor;
  if (count == 0) return;
  const ReduceArgs args{sources.data(), sources.size(), destination, static_cast<size_t>(count),
                        scaling};
  if (dtype == DType::kBool) return ReduceVectors(dtype, op, args);
  if (scaling.none() && sources.size() == 1) {
    if (destination != sources[0]) {
      Copy(destination, sources[0], args.count * DTypeSize(dtype));
    }
    return;
  }
  if (scaling.none() || IsFloating(dtype) || IsComplex(dtype)) {
    return ReduceVectors(dtype, op, args);
  }
  const bool exact = scaling.divisor != 1 && IsExactAverage(dtype, op);
  WithType(dtype, [&]<typename T>(T) {
    if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(int64_t)) {
      if (exact) return ReduceExactAverage<T>(args);
    }
    if constexpr (std::is_integral_v<T>) ReduceScaled<T>(dtype, op, args);
  });
}

void FillNeutral(DType dtype, ReduceOp op, void* destination, int64_t count) {
  RUEDA_CHECK(CheckReducible(dtype, op).ok()) << ReduceOpName(op) << " of " << DTypeName(dtype);
  RUEDA_CHECK(count >= 0) << count;
  if (count == 0) return;
  NeutralElement(dtype, op, destination);
  char* const to = static_cast<char*>(destination);
  const size_t bytes = static_cast<size_t>(count) * DTypeSize(dtype);
  for (size_t done = DTypeSize(dtype), more; done < bytes; done += more) {
    more = std::min(done, bytes - done);
    std::memcpy(to + done, to, more);
  }
}

void ToFloat32(DType from, const void* source, float* destination, int64_t count) {
  RUEDA_CHECK(SumsInFloat32(from)) << DTypeName(from);
  RUEDA_CHECK(count >= 0) << count;
  WidenVectors(from, source, destination, static_cast<size_t>(count));
}

void FromFloat32(DType to, const float* source, void* destination, int64_t count) {
  RUEDA_CHECK(SumsInFloat32(to)) << DTypeName(to);
  RUEDA_CHECK(count >= 0) << count;
  NarrowVectors(to, source, destination, static_cast<size_t>(count));
}

Wire WireOf(DType dtype, ReduceOp op, const Scaling& scaling, int64_t operands) {
  if (IsExactAverage(dtype, op)) {
    const Scaling divided = {1, 1, scaling.divisor};
    return {dtype,
            ExactSumType(dtype, operands),
            Scaling(),
            divided,
            scaling.prescale,
            scaling.postscale};
  }
  const DType type = SumsInFloat32(dtype) ? DType::kFloat32 : dtype;
  return {dtype, type, scaling.before(), scaling.after()};
}

Wire NarrowWireOf(DType dtype, ReduceOp op, const Scaling& scaling, int64_t operands,
                  int64_t together) {
  if (!SumsInFloat32(dtype)) return WireOf(dtype, op, scaling, operands);
  const DType type = DTypeSize(dtype) == 1 ? DType::kBFloat16 : dtype;
  if (together == 1) return {dtype, type, Scaling(), scaling};
  Wire wire = {dtype, type, scaling.before(), scaling.after()};
  if (IsAverage(op)) {
    wire.before.divisor = together;
    wire.after.prescale = static_cast<double>(together);
  }
  return wire;
}

void Widen(const Wire& wire, const void* source, void* destination, int64_t count) {
  RUEDA_CHECK(wire.widens()) << DTypeName(wire.dtype);
  if (wire.type == DType::kFloat32) {
    return ToFloat32(wire.dtype, source, static_cast<float*>(destination), count);
  }
  if (SumsInFloat32(wire.dtype)) return ConvertFloats(wire, source, destination, count);
  WithTypes(wire, [&]<typename T, typename W>(T, W) {
    ConvertBlocks<T, W>(source, destination, static_cast<size_t>(count), wire.first, 1);
  });
}

void Combine(const Wire& wire, ReduceOp op, absl::Span<const void* const> partials,
             void* destination, int64_t count) {
  if (!wire.widens()) return Reduce(wire.type, op, partials, destination, count, wire.after);
  const bool in_float32 = SumsInFloat32(wire.type);
  std::vector<float> widened(in_float32 ? partials.size() * kCombinedAtATime : 0);
  std::vector<const void*> sources(partials.size());
  alignas(kWireBytesMax) char results[kCombinedAtATime * kWireBytesMax];
  for (int64_t begin = 0; begin < count; begin += kCombinedAtATime) {
    const int64_t size = std::min<int64_t>(kCombinedAtATime, count - begin);
    for (size_t i = 0; i < partials.size(); ++i) {
      sources[i] =
          static_cast<const char*>(partials[i]) + static_cast<size_t>(begin) * DTypeSize(wire.type);
      if (!in_float32) continue;
      float* const wide = widened.data() + i * kCombinedAtATime;
      ToFloat32(wire.type, sources[i], wide, size);
      sources[i] = wide;
    }
    Reduce(in_float32 ? DType::kFloat32 : wire.type, op, sources, results, size, wire.after);
    Narrow(wire, results,
           static_cast<char*>(destination) + static_cast<size_t>(begin) * DTypeSize(wire.dtype),
           size);
  }
}

}  // namespace rueda::kernels
