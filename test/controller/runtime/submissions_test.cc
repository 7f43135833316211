// The queue between the threads that submit and the engine, and what a submission is refused for.
#include "controller/runtime/submissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/lanes/outputs.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

class SubmissionsTest : public ::testing::Test {
 protected:
  SubmissionsTest() {
    part_.input = input_;
    part_.output = output_;
    part_.dtype = DType::kFloat32;
    part_.shape = {2};
  }
  OperationArgs Sum(const absl::string_view& name) {
    OperationArgs args;
    args.kind = OpKind::kAllreduce;
    args.reduce_op = ReduceOp::kSum;
    args.parts = {&part_, 1};
    args.names = {&name, 1};
    return args;
  }
  std::string Refusal(const OperationArgs& args) {
    return std::string(submissions_.Submit(args).status().message());
  }
  // What the engine does with all that is queued.
  std::vector<Request*> Take() {
    std::vector<Request*> submitted, waited;
    submissions_.Take(&submitted, &waited);
    return submitted;
  }

  float input_[2] = {1, 2};
  float output_[2] = {};
  PartArgs part_;
  Submissions submissions_{0, 2};
};

TEST_F(SubmissionsTest, WhatIsQueuedIsTakenOnce) {
  const absl::string_view a = "a", b = "b";
  const absl::StatusOr<Submitted> first = submissions_.Submit(Sum(a));
  const absl::StatusOr<Submitted> second = submissions_.Submit(Sum(b));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->must_wake_engine);
  EXPECT_FALSE(second->must_wake_engine) << "the engine knows already";
  EXPECT_TRUE(submissions_.HasWork());
  EXPECT_EQ(submissions_.in_flight(), 2);
  EXPECT_EQ(Take().size(), 2u);
  EXPECT_FALSE(submissions_.HasWork());
  EXPECT_TRUE(Take().empty());
}

TEST_F(SubmissionsTest, ANameIsUsedAgainWhenItsOperationHasEnded) {
  const absl::string_view name = "a";
  ASSERT_TRUE(submissions_.Submit(Sum(name)).ok());
  EXPECT_THAT(Refusal(Sum(name)), HasSubstr("'a'"));
  EXPECT_EQ(submissions_.in_flight(), 1) << "a refusal leaves nothing behind";
  Request* const request = Take().at(0);
  submissions_.Ended(*request);
  EXPECT_EQ(submissions_.in_flight(), 0);
  EXPECT_TRUE(submissions_.Submit(Sum(name)).ok());
}

TEST_F(SubmissionsTest, WhatIsWrongByItselfIsRefusedByName) {
  const absl::string_view name = "a";
  part_.input = nullptr;
  EXPECT_THAT(Refusal(Sum(name)), HasSubstr("allreduce 'a': the input's data pointer is null"));
  part_.input = input_;
  part_.output = input_ + 1;
  EXPECT_THAT(Refusal(Sum(name)), HasSubstr("overlap in part"));
  part_.output = output_;
  OperationArgs args = Sum(name);
  args.set = 7;
  EXPECT_THAT(Refusal(args), HasSubstr("7"));
  EXPECT_FALSE(submissions_.HasWork());
}

TEST_F(SubmissionsTest, TheFirstReasonForClosingStays) {
  submissions_.Close(absl::AbortedError("lost"));
  submissions_.Close(absl::FailedPreconditionError("shut down"));
  const absl::string_view name = "a";
  EXPECT_EQ(submissions_.Submit(Sum(name)).status(), absl::AbortedError("lost"));
}

TEST_F(SubmissionsTest, ProcessSetsAreThoseThatThePlanHasMade) {
  EXPECT_EQ(submissions_.FindSet({1}), -1);
  submissions_.AddSet({1});
  const SetId set = submissions_.FindSet({1});
  EXPECT_GT(set, 0);
  EXPECT_THAT(submissions_.RanksOf(set), ::testing::ElementsAre(1));
  submissions_.RemoveSet(set);
  EXPECT_TRUE(submissions_.RanksOf(set).empty());
}

// An allgather of ranks that give 1 and 2 rows: the output has three, in memory of the library's.
TEST_F(SubmissionsTest, OutputsGetTheSizeThatThePlanTells) {
  Request request;
  Signature signature;
  signature.kind = OpKind::kAllgather;
  signature.parts.push_back({DType::kFloat32, {2}});  // but for the first dimension
  request.spec = MakeSpec(kWorldSet, "rows", signature);
  request.parts.push_back(part_);
  request.parts[0].output = nullptr;
  request.parts[0].shape = {1, 2};
  const ProcessSet set = {.ranks = {0, 1}};
  size_t asked = 0;
  const auto allocate = [&](size_t bytes) -> absl::StatusOr<std::shared_ptr<void>> {
    asked = bytes;
    return std::shared_ptr<void>(malloc(bytes), &free);
  };
  const int64_t dims[] = {1, 2};
  ASSERT_TRUE(PrepareOutputs(&request, dims, set, 0, allocate).ok());
  EXPECT_EQ(asked, 3 * 2 * sizeof(float));
  ASSERT_EQ(request.output_shapes.size(), 1u);
  EXPECT_EQ(request.output_shapes[0], Shape({3, 2}));
}

}  // namespace
}  // namespace rueda
