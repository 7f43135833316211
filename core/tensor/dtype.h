// Element types. The numbers go over the wire and never change. PURE
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace rueda {

enum class DType : uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat16 = 4,
  kBFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 8,  // one byte; anything but 0 is true, and results are 0 or 1
  kInt16 = 9,
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kComplex64 = 13,  // real and imaginary part, a float32 each
  kComplex128 = 14,
  kFloat8E4M3FN = 15,  // 4 bits of exponent, 3 of mantissa, no infinity, one NaN of each sign
  kFloat8E5M2 = 16,    // the upper half of a float16
};

inline constexpr int kDTypeCount = 17;

// Bytes of one element.
size_t DTypeSize(DType dtype);
// "float32".
absl::string_view DTypeName(DType dtype);
// Real floating-point numbers of any width.
bool IsFloating(DType dtype);
bool IsComplex(DType dtype);
// Floating types narrower than float32: their elements are combined in float32 and rounded once.
bool SumsInFloat32(DType dtype);
// Whether `value`, read from a wire, is one of the above.
bool IsDType(int value);

}  // namespace rueda
