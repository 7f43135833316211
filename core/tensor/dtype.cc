// PURE
#include "core/tensor/dtype.h"

namespace rueda {
namespace {

struct Row {
  const char* name;
  size_t size;
  bool floating;
};

// By the enum's number.
constexpr Row kRows[kDTypeCount] = {
    {"uint8", 1, false},  {"int8", 1, false},   {"int32", 4, false},
    {"int64", 8, false},  {"float16", 2, true}, {"bfloat16", 2, true},
    {"float32", 4, true}, {"float64", 8, true}, {"bool", 1, false},
};

const Row& RowOf(DType dtype) {
  return kRows[static_cast<int>(dtype)];
}

}  // namespace

size_t DTypeSize(DType dtype) {
  return RowOf(dtype).size;
}
absl::string_view DTypeName(DType dtype) {
  return RowOf(dtype).name;
}
bool IsFloating(DType dtype) {
  return RowOf(dtype).floating;
}
bool IsDType(int value) {
  return value >= 0 && value < kDTypeCount;
}

}  // namespace rueda
