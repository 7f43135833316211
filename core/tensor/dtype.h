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
};

inline constexpr int kDTypeCount = 9;

// Bytes of one element.
size_t DTypeSize(DType dtype);
// "float32".
absl::string_view DTypeName(DType dtype);
bool IsFloating(DType dtype);
// Whether `value`, read from a wire, is one of the above.
bool IsDType(int value);

}  // namespace rueda
