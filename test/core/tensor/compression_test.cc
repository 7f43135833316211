#include "core/tensor/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Compression, IsParsedAndWrittenAlike) {
  for (const char* text : {"none", "fp16", "bf16", "fp8", "int8", "1bit", "topk:0.01", "topk:1",
                           "topk:0.000001", "powersgd:1", "powersgd:64", "auto", "int8,no_feedback",
                           "topk:0.5,no_feedback", "auto,no_feedback"}) {
    const absl::StatusOr<Compression> compression = ParseCompression(text);
    ASSERT_TRUE(compression.ok()) << compression.status();
    EXPECT_TRUE(IsValid(*compression)) << text;
    EXPECT_EQ(compression->none(), text == absl::string_view("none"));
    EXPECT_EQ(*ParseCompression(compression->ToString()), *compression) << text;
  }
  EXPECT_TRUE(ParseCompression("")->none());
  EXPECT_EQ(ParseCompression("none,no_feedback")->ToString(), "none");
  EXPECT_EQ(ParseCompression("topk")->ToString(), "topk:0.01");
  EXPECT_EQ(ParseCompression("powersgd")->ToString(), "powersgd:1");
  EXPECT_EQ(ParseCompression("fp8,no_feedback")->ToString(), "fp8,no_feedback");
}

TEST(Compression, SaysWhatIsWrongAndWhatThereIs) {
  for (const char* text :
       {"zip", "int8:3", "fp16:", ",no_feedback", "int8,feedback", "topk:0", "topk:1.5", "topk:nan",
        "topk:x", "powersgd:0", "powersgd:65", "powersgd:1.5", "int8 ", "INT8"}) {
    const absl::StatusOr<Compression> compression = ParseCompression(text);
    ASSERT_EQ(compression.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(compression.status().message()),
                AllOf(HasSubstr(text), HasSubstr("powersgd:RANK")));
  }
}

TEST(Compression, IsOfSumsAndAveragesOfFloatsAlone) {
  const Compression int8 = *ParseCompression("int8");
  const auto check = [&](OpKind kind, ReduceOp op, DType dtype) {
    return CheckCompressible(int8, kind, op, dtype).ok();
  };
  EXPECT_TRUE(check(OpKind::kAllreduce, ReduceOp::kSum, DType::kFloat32));
  EXPECT_TRUE(check(OpKind::kReducescatter, ReduceOp::kAverageLive, DType::kBFloat16));
  EXPECT_FALSE(check(OpKind::kReduce, ReduceOp::kSum, DType::kFloat32));
  EXPECT_FALSE(check(OpKind::kAllreduce, ReduceOp::kMax, DType::kFloat32));
  EXPECT_FALSE(check(OpKind::kAllreduce, ReduceOp::kAdasum, DType::kFloat32));
  EXPECT_FALSE(check(OpKind::kAllreduce, ReduceOp::kSum, DType::kFloat64));
  EXPECT_TRUE(CheckCompressible({}, OpKind::kBarrier, ReduceOp::kNone, DType::kUInt8).ok());
}

TEST(Compression, FromTheWireIsLimited) {
  EXPECT_FALSE(IsValid({Compressor::kNone, 0, true}));
  EXPECT_FALSE(IsValid({Compressor::kInt8, 1, true}));
  EXPECT_FALSE(IsValid({Compressor::kTopK, 0, true}));
  EXPECT_FALSE(IsValid({Compressor::kTopK, 1'000'001, true}));
  EXPECT_FALSE(IsValid({Compressor::kPowerSgd, 65, false}));
}

}  // namespace
}  // namespace rueda
