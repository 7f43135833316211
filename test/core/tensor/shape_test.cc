// Shapes and their bounds. Each test's own thread.
#include "core/tensor/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/hash/hash.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const std::vector<int64_t>& dims) {
  const absl::Status status = Shape::Validate(dims);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape().elements(), 1) << "a scalar";
  EXPECT_EQ(Shape({3, 4}).elements(), 12);
  EXPECT_EQ(Shape({3, 0, 4}).elements(), 0);
  EXPECT_EQ(Shape({int64_t{1} << 33, 2}).elements(), int64_t{1} << 34);
}

TEST(Shape, Prints) {
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ(Shape({3}).ToString(), "[3]");
  EXPECT_EQ(Shape({3, 0, 4}).ToString(), "[3, 0, 4]");
}

TEST(Shape, ARowLacksTheFirstDimension) {
  EXPECT_EQ(Shape({3, 4, 5}).Row(), Shape({4, 5}));
  EXPECT_EQ(Shape({3}).Row(), Shape());
}

TEST(Shape, EqualityIsByEveryDimension) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_NE(Shape(), Shape({1}));
  const std::vector<Shape> all = {Shape(),
                                  Shape({0}),
                                  Shape({1}),
                                  Shape({1, 1}),
                                  Shape({2, 3}),
                                  Shape({3, 2}),
                                  Shape({1, 2, 3, 4, 5, 6})};
  for (const Shape& a : all) {
    for (const Shape& b : all) EXPECT_EQ(absl::HashOf(a) == absl::HashOf(b), a == b);
  }
}

TEST(Shape, TakesUpTo32Dimensions) {
  EXPECT_EQ(Refusal(std::vector<int64_t>(kDimsMax, 1)), "");
  EXPECT_EQ(Refusal(std::vector<int64_t>(kDimsMax + 1, 1)),
            "a tensor has 33 dimensions; at most 32 are supported");
}

TEST(Shape, RefusesNegativeDimensions) {
  EXPECT_EQ(Refusal({3, -1}), "negative dimension in shape [3, -1]");
  EXPECT_EQ(Refusal({INT64_MIN}), "negative dimension in shape [-9223372036854775808]");
  EXPECT_THAT(Refusal({0, -1}), HasSubstr("negative"));
}

TEST(Shape, RefusesMoreBytesThanInt64Counts) {
  EXPECT_EQ(Refusal({INT64_MAX / 16}), "");
  EXPECT_THAT(Refusal({INT64_MAX / 16 + 1}), HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(Refusal({int64_t{1} << 32, int64_t{1} << 31}), HasSubstr("more than 2^63 elements"));
  EXPECT_THAT(Refusal({INT64_MAX, INT64_MAX}), HasSubstr("more than 2^63 elements"));
}

// Neither order of the dimensions lets an overflow hide behind a zero.
TEST(Shape, AZeroExcusesNoOverflow) {
  EXPECT_THAT(Refusal({0, INT64_MAX, 2}), HasSubstr("more than 2^63"));
  EXPECT_THAT(Refusal({INT64_MAX, 2, 0}), HasSubstr("more than 2^63"));
  EXPECT_EQ(Refusal({0, 1000}), "");
}

}  // namespace
}  // namespace rueda
