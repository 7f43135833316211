// PURE
#include "core/tensor/dtype.h"

namespace rueda {
namespace {

enum class Kind { kInteger, kBool, kFloating, kComplex };

struct Row {
  const char* name;
  size_t size;
  Kind kind;
};

// By the enum's number.
constexpr Row kRows[kDTypeCount] = {
    {"uint8", 1, Kind::kInteger},
    {"int8", 1, Kind::kInteger},
    {"int32", 4, Kind::kInteger},
    {"int64", 8, Kind::kInteger},
    {"float16", 2, Kind::kFloating},
    {"bfloat16", 2, Kind::kFloating},
    {"float32", 4, Kind::kFloating},
    {"float64", 8, Kind::kFloating},
    {"bool", 1, Kind::kBool},
    {"int16", 2, Kind::kInteger},
    {"uint16", 2, Kind::kInteger},
    {"uint32", 4, Kind::kInteger},
    {"uint64", 8, Kind::kInteger},
    {"complex64", 8, Kind::kComplex},
    {"complex128", 16, Kind::kComplex},
    {"float8_e4m3fn", 1, Kind::kFloating},
    {"float8_e5m2", 1, Kind::kFloating},
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
  return RowOf(dtype).kind == Kind::kFloating;
}
bool IsComplex(DType dtype) {
  return RowOf(dtype).kind == Kind::kComplex;
}
bool SumsInFloat32(DType dtype) {
  return IsFloating(dtype) && DTypeSize(dtype) < sizeof(float);
}
bool IsDType(int value) {
  return value >= 0 && value < kDTypeCount;
}

}  // namespace rueda
