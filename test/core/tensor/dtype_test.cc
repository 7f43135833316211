// Element types. Each test's own thread.
#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <climits>
#include <set>
#include <string>

namespace rueda {
namespace {

TEST(DType, TheNumbersOnTheWireNeverChange) {
  enum Kind { kOther, kFloating, kComplex };
  const struct {
    DType dtype;
    int number;
    const char* name;
    size_t bytes;
    Kind kind;
    bool sums_in_float32;
  } kRows[] = {
      {DType::kUInt8, 0, "uint8", 1, kOther, false},
      {DType::kInt8, 1, "int8", 1, kOther, false},
      {DType::kInt32, 2, "int32", 4, kOther, false},
      {DType::kInt64, 3, "int64", 8, kOther, false},
      {DType::kFloat16, 4, "float16", 2, kFloating, true},
      {DType::kBFloat16, 5, "bfloat16", 2, kFloating, true},
      {DType::kFloat32, 6, "float32", 4, kFloating, false},
      {DType::kFloat64, 7, "float64", 8, kFloating, false},
      {DType::kBool, 8, "bool", 1, kOther, false},
      {DType::kInt16, 9, "int16", 2, kOther, false},
      {DType::kUInt16, 10, "uint16", 2, kOther, false},
      {DType::kUInt32, 11, "uint32", 4, kOther, false},
      {DType::kUInt64, 12, "uint64", 8, kOther, false},
      {DType::kComplex64, 13, "complex64", 8, kComplex, false},
      {DType::kComplex128, 14, "complex128", 16, kComplex, false},
      {DType::kFloat8E4M3FN, 15, "float8_e4m3fn", 1, kFloating, true},
      {DType::kFloat8E5M2, 16, "float8_e5m2", 1, kFloating, true},
  };
  static_assert(std::size(kRows) == kDTypeCount);
  for (const auto& row : kRows) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.number) << row.name;
    EXPECT_EQ(DTypeName(row.dtype), row.name);
    EXPECT_EQ(DTypeSize(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(IsFloating(row.dtype), row.kind == kFloating) << row.name;
    EXPECT_EQ(IsComplex(row.dtype), row.kind == kComplex) << row.name;
    EXPECT_EQ(SumsInFloat32(row.dtype), row.sums_in_float32) << row.name;
    EXPECT_TRUE(IsDType(row.number));
  }
}

TEST(DType, OtherNumbersAreNone) {
  for (const int number : {-1, kDTypeCount, 255, 256, INT_MAX, INT_MIN}) {
    EXPECT_FALSE(IsDType(number)) << number;
  }
}

}  // namespace
}  // namespace rueda
