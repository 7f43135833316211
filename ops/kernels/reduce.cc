// What reduce.h promises around the vectorised loops: refusals, plain copies, scaling of integers.
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "ops/kernels/vectors.h"

namespace rueda::kernels {
namespace {

bool IsReducible(DType dtype, ReduceOp op) {
  if (dtype > DType::kBool) return false;
  if (op > ReduceOp::kProduct && op != ReduceOp::kAverageLive) return false;
  return !(dtype == DType::kBool && (op == ReduceOp::kAverage || op == ReduceOp::kAverageLive));
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

}  // namespace

absl::Status CheckReducible(DType dtype, ReduceOp op) {
  if (IsReducible(dtype, op)) return absl::OkStatus();
  if (op == ReduceOp::kNone) {
    return absl::InvalidArgumentError(
        "no reduce operation given: choose sum, average, min, max or product");
  }
  if (dtype != DType::kBool || op > ReduceOp::kProduct) {
    return absl::UnimplementedError(
        absl::StrCat(ReduceOpName(op), " of ", DTypeName(dtype), " is not there yet"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "average of ", DTypeName(dtype),
      " is not defined: use max for `or`, min for `and`, or convert to float32 to average"));
}

void Reduce(DType dtype, ReduceOp op, absl::Span<const void* const> sources, void* destination,
            int64_t count, const Scaling& scaling) {
  RUEDA_CHECK(IsReducible(dtype, op)) << ReduceOpName(op) << " of " << DTypeName(dtype);
  RUEDA_CHECK(!sources.empty());
  RUEDA_CHECK(count >= 0) << count;
  RUEDA_CHECK(scaling.divisor >= 1) << scaling.divisor;
  if (count == 0) return;
  const ReduceArgs args{sources.data(), sources.size(), destination, static_cast<size_t>(count),
                        scaling};
  if (dtype == DType::kBool) return ReduceVectors(dtype, op, args);
  if (scaling.none() && sources.size() == 1) {
    if (destination != sources[0]) {
      std::memcpy(destination, sources[0], args.count * DTypeSize(dtype));
    }
    return;
  }
  if (scaling.none() || IsFloating(dtype)) return ReduceVectors(dtype, op, args);
  switch (dtype) {
    case DType::kUInt8:
      return ReduceScaled<uint8_t>(dtype, op, args);
    case DType::kInt8:
      return ReduceScaled<int8_t>(dtype, op, args);
    case DType::kInt32:
      return ReduceScaled<int32_t>(dtype, op, args);
    case DType::kInt64:
      return ReduceScaled<int64_t>(dtype, op, args);
    default:
      RUEDA_CHECK(false) << DTypeName(dtype);
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

}  // namespace rueda::kernels
