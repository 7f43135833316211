#include "ops/hierarchical/inline_operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "test/support/float16.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Members 0 and 2 are on one host, 1 on another.
const std::vector<std::vector<int>> kHosts = {{0, 2}, {1}};

template <typename T>
std::string Bytes(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// What `self` gets of `elements`, where it gives `brought[self]`.
template <typename T>
std::vector<T> Result(BucketOperation operation, int self, const std::vector<std::string>& brought,
                      size_t elements, bool narrow = true) {
  std::vector<T> output(elements, T{7});
  const Piece piece = {brought[static_cast<size_t>(self)].data(), output.data(),
                       static_cast<int64_t>(elements)};
  operation.pieces = {&piece, 1};
  EXPECT_TRUE(ExecuteInline(operation, kHosts, self, narrow, brought).ok());
  return output;
}

BucketOperation Of(OpKind kind, DType dtype, int64_t elements, int root = -1) {
  BucketOperation operation;
  operation.kind = kind;
  operation.dtype = dtype;
  operation.elements = elements;
  operation.root = root;
  return operation;
}

TEST(Inline, SumsGoHostByHostAndAreRoundedOnce) {
  BucketOperation operation = Of(OpKind::kAllreduce, DType::kFloat32, 1);
  operation.reduce_op = ReduceOp::kSum;
  const float large = 1e8f;
  // In rank order it would be 0: the 1 is lost beside the large number.
  const std::vector<std::string> brought = {Bytes<float>({large}), Bytes<float>({1}),
                                            Bytes<float>({-large})};
  for (int self = 0; self < 3; ++self) {
    EXPECT_THAT(Result<float>(operation, self, brought, 1), ElementsAre(1)) << self;
  }
  operation.kind = OpKind::kReduce;
  operation.root = 1;
  EXPECT_THAT(Result<float>(operation, 1, brought, 1), ElementsAre(1));
  EXPECT_THAT(Result<float>(operation, 0, brought, 1), ElementsAre(7)) << "the root's alone";
}

// 2048 + 1 is half-way between two float16, and the even one is below.
TEST(Inline, SumsOfAHostAreRoundedWhereElementsTravelInTheirType) {
  BucketOperation operation = Of(OpKind::kAllreduce, DType::kFloat16, 1);
  operation.reduce_op = ReduceOp::kSum;
  const auto of = [](float value) {
    return Bytes<testing::Float16>({static_cast<testing::Float16>(value)});
  };
  const std::vector<std::string> brought = {of(2048), of(1), of(1)};
  EXPECT_EQ(static_cast<float>(Result<testing::Float16>(operation, 0, brought, 1)[0]), 2048);
  EXPECT_EQ(static_cast<float>(Result<testing::Float16>(operation, 0, brought, 1, false)[0]), 2050);
}

TEST(Inline, AveragesOfIntegersAreExact) {
  BucketOperation operation = Of(OpKind::kAllreduce, DType::kInt8, 2);
  operation.reduce_op = ReduceOp::kAverage;
  operation.scaling.divisor = 3;
  const std::vector<std::string> brought = {Bytes<int8_t>({100, -1}), Bytes<int8_t>({100, -1}),
                                            Bytes<int8_t>({101, 0})};
  EXPECT_THAT(Result<int8_t>(operation, 0, brought, 2), ElementsAre(100, 0));
}

TEST(Inline, ScaleFactorsApplyBeforeAndAfter) {
  BucketOperation operation = Of(OpKind::kAllreduce, DType::kFloat32, 1);
  operation.reduce_op = ReduceOp::kMax;
  operation.scaling.prescale = -1;
  operation.scaling.postscale = 10;
  const std::vector<std::string> brought = {Bytes<float>({1}), Bytes<float>({2}),
                                            Bytes<float>({3})};
  EXPECT_THAT(Result<float>(operation, 2, brought, 1), ElementsAre(-10));
}

TEST(Inline, AReducescatterIsOnesShareOfTheSum) {
  BucketOperation operation = Of(OpKind::kReducescatter, DType::kFloat16, 0);
  operation.reduce_op = ReduceOp::kAverage;
  operation.scaling.divisor = 3;
  const std::vector<int64_t> counts = {2, 0, 1};
  operation.counts = counts;
  const auto of = [](float a, float b, float c) {
    return Bytes<testing::Float16>({static_cast<testing::Float16>(a),
                                    static_cast<testing::Float16>(b),
                                    static_cast<testing::Float16>(c)});
  };
  const std::vector<std::string> brought = {of(1, 60'000, 3), of(2, 60'000, 3), of(3, 60'000, 6)};
  for (const bool narrow : {true, false}) {
    const auto first = Result<testing::Float16>(operation, 0, brought, 2, narrow);
    EXPECT_EQ(static_cast<float>(first[0]), 2);
    EXPECT_EQ(first[1], static_cast<testing::Float16>(60'000)) << "not infinite on its way";
    EXPECT_EQ(static_cast<float>(Result<testing::Float16>(operation, 2, brought, 1, narrow)[0]), 4);
  }
}

TEST(Inline, ABroadcastIsTheRoots) {
  const BucketOperation operation = Of(OpKind::kBroadcast, DType::kUInt8, 3, 1);
  const std::vector<std::string> brought = {"", "abc", ""};
  EXPECT_THAT(Result<char>(operation, 2, brought, 3), ElementsAre('a', 'b', 'c'));
}

TEST(Inline, AnAllgatherIsAllBehindEachOther) {
  BucketOperation operation = Of(OpKind::kAllgather, DType::kInt16, 4);
  const std::vector<int64_t> counts = {1, 0, 3};
  operation.counts = counts;
  const std::vector<std::string> brought = {Bytes<int16_t>({1}), "", Bytes<int16_t>({2, 3, 4})};
  EXPECT_THAT(Result<int16_t>(operation, 1, brought, 4), ElementsAre(1, 2, 3, 4));
  operation.kind = OpKind::kGather;
  operation.root = 2;
  EXPECT_THAT(Result<int16_t>(operation, 2, brought, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Result<int16_t>(operation, 0, brought, 1), ElementsAre(7));
}

TEST(Inline, AScatterIsTheRootsShares) {
  BucketOperation operation = Of(OpKind::kScatter, DType::kUInt8, 6, 1);
  const std::vector<int64_t> counts = {1, 2, 3};
  operation.counts = counts;
  const std::vector<std::string> brought = {"", "abcdef", ""};
  EXPECT_THAT(Result<char>(operation, 0, brought, 1), ElementsAre('a'));
  EXPECT_THAT(Result<char>(operation, 1, brought, 2), ElementsAre('b', 'c'));
  EXPECT_THAT(Result<char>(operation, 2, brought, 3), ElementsAre('d', 'e', 'f'));
}

TEST(Inline, AnAlltoallIsEverybodysShare) {
  BucketOperation operation = Of(OpKind::kAlltoall, DType::kUInt8, 0);
  const std::vector<int64_t> counts = {1, 0, 2, 0, 0, 0, 1, 1, 1};  // by giver, then by taker
  operation.counts = counts;
  const std::vector<std::string> brought = {"abc", "", "def"};
  EXPECT_THAT(Result<char>(operation, 0, brought, 2), ElementsAre('a', 'd'));
  EXPECT_THAT(Result<char>(operation, 1, brought, 1), ElementsAre('e'));
  EXPECT_THAT(Result<char>(operation, 2, brought, 3), ElementsAre('b', 'c', 'f'));
}

TEST(Inline, ABarrierNeedsNothing) {
  const std::vector<std::string> brought(3);
  EXPECT_TRUE(ExecuteInline(Of(OpKind::kBarrier, DType::kUInt8, 0), kHosts, 0, true, brought).ok());
}

TEST(Inline, DataOfAnotherSizeIsRefused) {
  BucketOperation operation = Of(OpKind::kAllreduce, DType::kFloat32, 1);
  operation.reduce_op = ReduceOp::kSum;
  const std::vector<std::string> brought = {std::string(4, '\0'), std::string(3, '\0'),
                                            std::string(4, '\0')};
  const absl::Status status = ExecuteInline(operation, kHosts, 0, true, brought);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 bytes of member 1 where it brings 4"));
  operation = Of(OpKind::kAllgather, DType::kFloat32, 1);  // without counts
  EXPECT_FALSE(ExecuteInline(operation, kHosts, 0, true, brought).ok());
}

}  // namespace
}  // namespace rueda
