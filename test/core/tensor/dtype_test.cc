// Element types. Each test's own thread.
#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <climits>
#include <set>
#include <string>

namespace rueda {
namespace {

TEST(DType, TheNumbersOnTheWireNeverChange) {
  const struct {
    DType dtype;
    int number;
    const char* name;
    size_t bytes;
    bool floating;
  } kRows[] = {
      {DType::kUInt8, 0, "uint8", 1, false},    {DType::kInt8, 1, "int8", 1, false},
      {DType::kInt32, 2, "int32", 4, false},    {DType::kInt64, 3, "int64", 8, false},
      {DType::kFloat16, 4, "float16", 2, true}, {DType::kBFloat16, 5, "bfloat16", 2, true},
      {DType::kFloat32, 6, "float32", 4, true}, {DType::kFloat64, 7, "float64", 8, true},
      {DType::kBool, 8, "bool", 1, false},
  };
  static_assert(std::size(kRows) == kDTypeCount);
  for (const auto& row : kRows) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.number) << row.name;
    EXPECT_EQ(DTypeName(row.dtype), row.name);
    EXPECT_EQ(DTypeSize(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(IsFloating(row.dtype), row.floating) << row.name;
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
