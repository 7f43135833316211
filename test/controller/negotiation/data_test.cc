// Data that comes with announcements: the plan brings it to all ranks where all have said what they
// bring, and there is room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/limits.h"
#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointee;

CallExtras Bringing(std::string data) {
  CallExtras extras;
  extras.SayData(std::move(data));
  return extras;
}

SpecPtr Of(OpKind kind, std::initializer_list<int64_t> dims, Rank root = -1) {
  Signature signature = OfKind(kind);
  signature.root = root;
  signature.parts.push_back({DType::kInt8, Shape(dims)});
  if (kind == OpKind::kReduce) signature.reduce_op = ReduceOp::kSum;
  return MakeSpec(kWorldSet, "x", signature);
}

TEST(PlannedData, IsThatOfAllRanksByMember) {
  Job job(2);
  const SpecPtr spec = Of(OpKind::kReduce, {3}, 1);
  job.Announce(1, spec, true, Bringing("one"));
  job.Announce(0, spec, true, Bringing("two"));
  for (const Rank rank : {0, 1}) {
    const std::vector<Launch> launches = job.Launches(rank);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_THAT(launches[0].data, Pointee(ElementsAre("two", "one")));
  }
}

TEST(PlannedData, IsNoneWhereARankHasNotSaidWhatItBrings) {
  Job job(2);
  const SpecPtr spec = Of(OpKind::kReduce, {3}, 1);
  job.Announce(1, spec, true, Bringing("one"));
  job.Announce(0, spec, false);
  const std::vector<Launch> launches = job.Launches(0);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].data, nullptr);
}

TEST(PlannedData, IsNoneWhereThePlanHasNoRoom) {
  Job job(2);
  const int64_t bytes = kInlineBytesMax / 2 + 1;
  const SpecPtr spec = Of(OpKind::kReduce, {bytes}, 1);
  for (const Rank rank : {0, 1}) {
    job.Announce(rank, spec, true, Bringing(std::string(static_cast<size_t>(bytes), 'x')));
  }
  const std::vector<Launch> launches = job.Launches(0);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].data, nullptr);
}

// What a batch has in common would not hold for it.
TEST(PlannedData, IsInABatchOfItsOwn) {
  Job job(2);
  const SpecPtr before = Named("before"), with = Named("with"), after = Named("after");
  for (const Rank rank : {0, 1}) job.Announce(rank, Named("first"), false);  // under way
  for (const Rank rank : {0, 1}) job.Announce(rank, before, false);
  for (const Rank rank : {0, 1}) job.Announce(rank, with, true, Bringing(std::string(16, 'x')));
  for (const Rank rank : {0, 1}) job.Announce(rank, after, true);
  std::vector<std::string> batches;
  for (const Launch& launch : job.Launches(1)) {
    batches.emplace_back();
    for (const LaunchItem& item : launch.items) {
      batches.back() += item.spec->name + (launch.data == nullptr ? " " : "! ");
    }
  }
  EXPECT_THAT(batches, ElementsAre("first ", "before ", "with! ", "after "));
}

TEST(PlannedData, OfAnotherSizeIsAPeersNonsense) {
  const absl::Status status = CheckExtras(*Of(OpKind::kReduce, {3}, 1), Bringing("four"), 2, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("came with 4 bytes of data"));
}

// Who executed it would look for data where there is none.
TEST(PlannedData, OfAnOperationThatNeedsNoneIsRefused) {
  const std::vector<std::string> two = {"ab", "cd"};
  for (const auto& [spec, data, why] :
       {std::tuple(Of(OpKind::kBarrier, {}), two, "which needs none"),
        std::tuple(Of(OpKind::kReduce, {2}, 1), std::vector<std::string>(3, "ab"), "data of 3")}) {
    Member member(0, 2, {});
    std::vector<Action> actions;
    member.Submit(0, spec, {}, true);
    ASSERT_NE(member.Next(), nullptr);
    member.Pop();
    const TensorId id = 1u << 16;
    ASSERT_TRUE(member.Apply(Define{id, spec}, &actions).ok());
    Order order;
    order.batch.push_back({id, 0, {}});
    order.data = std::make_shared<const std::vector<std::string>>(data);
    EXPECT_THAT(std::string(member.Apply(order, &actions).message()), HasSubstr(why));
  }
}

TEST(BytesBrought, IsWhatTheRankGives) {
  const auto brought = [](const SpecPtr& spec, std::vector<int64_t> dims, Rank rank) {
    return BytesBrought(spec->signature, dims, rank);
  };
  EXPECT_EQ(brought(Named("x", {3, 4}), {}, 1), 48);
  EXPECT_EQ(brought(Of(OpKind::kReducescatter, {7, 2}), {}, 1), 14);
  EXPECT_EQ(brought(Of(OpKind::kBroadcast, {5}, 1), {}, 1), 5);
  EXPECT_EQ(brought(Of(OpKind::kBroadcast, {5}, 1), {}, 0), 0);
  EXPECT_EQ(brought(Of(OpKind::kAllgather, {2}), {3}, 0), 6);
  EXPECT_EQ(brought(Of(OpKind::kGather, {2}, 0), {3}, 1), 6);
  EXPECT_EQ(brought(Of(OpKind::kAlltoall, {2}), {3, 0, 1}, 1), 8);
  EXPECT_EQ(brought(Of(OpKind::kScatter, {2}, 1), {3, 0, 1}, 1), 8);
  EXPECT_EQ(brought(Of(OpKind::kScatter, {2}, 1), {}, 0), 0);
}

TEST(BytesBrought, IsNothingThatThePlanCouldHaveOfOthers) {
  const auto refused = [](Signature signature, std::vector<int64_t> dims) {
    return BytesBrought(signature, dims, 0) == -1;
  };
  EXPECT_FALSE(refused(Float32({1}), {}));
  EXPECT_TRUE(refused(Float32({1}, ReduceOp::kAdasum), {}));
  Signature other = Float32({1});
  other.device = DeviceType::kCuda;
  EXPECT_TRUE(refused(other, {}));
  other = Float32({1});
  other.compression.compressor = Compressor::kInt8;
  EXPECT_TRUE(refused(other, {}));
  other = Float32({1});
  other.part_names = {"a"};
  EXPECT_TRUE(refused(other, {}));
  EXPECT_TRUE(refused(OfKind(OpKind::kBarrier), {})) << "that it is ordered says it all";
  EXPECT_TRUE(refused(Pair("x", 0, 1)->signature, {}));
  EXPECT_TRUE(refused(Of(OpKind::kAllgather, {2})->signature, {INT64_MAX}));
  EXPECT_TRUE(refused(Of(OpKind::kAlltoall, {1})->signature, {INT64_MAX, 1}));
}

}  // namespace
}  // namespace rueda::testing
