// What ranks must agree on, and the words for where they don't. Each test's own thread.
#include "core/tensor/signature.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/hash/hash.h"

namespace rueda {
namespace {

Signature Allreduce(DType dtype, Shape shape) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kSum;
  signature.parts.push_back({dtype, std::move(shape)});
  return signature;
}

Signature Group() {
  Signature signature = Allreduce(DType::kFloat32, {2});
  signature.parts.push_back({DType::kFloat32, {3}});
  signature.part_names = {"a", "b"};
  return signature;
}

TEST(Signature, TheNumbersOnTheWireNeverChange) {
  const char* const kKinds[] = {
      "allreduce",         "broadcast",     "allgather", "barrier",
      "alltoall",          "reducescatter", "reduce",    "gather",
      "scatter",           "send/recv",     "join",      "add_process_set",
      "remove_process_set"};
  const char* const kOps[] = {"sum", "average", "min",    "max",          "product", "band",
                              "bor", "bxor",    "adasum", "average_live", "none"};
  static_assert(std::size(kKinds) == kOpKindCount && std::size(kOps) == kReduceOpCount);
  for (int i = 0; i < kOpKindCount; ++i) EXPECT_EQ(OpKindName(static_cast<OpKind>(i)), kKinds[i]);
  for (int i = 0; i < kReduceOpCount; ++i) {
    EXPECT_EQ(ReduceOpName(static_cast<ReduceOp>(i)), kOps[i]);
  }
}

TEST(Signature, BothAveragesAreOnesAndNothingElse) {
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    EXPECT_EQ(IsAverage(op), op == ReduceOp::kAverage || op == ReduceOp::kAverageLive) << i;
  }
}

TEST(Signature, PrintsEachKindInAUsersWords) {
  EXPECT_EQ(Signature().ToString(), "barrier");
  EXPECT_EQ(Allreduce(DType::kFloat32, {1000}).ToString(), "allreduce(sum) float32[1000]");
  EXPECT_EQ(Allreduce(DType::kBool, {}).ToString(), "allreduce(sum) bool[]");

  Signature broadcast;
  broadcast.kind = OpKind::kBroadcast;
  broadcast.root = 3;
  broadcast.parts.push_back({DType::kInt64, {2, 5}});
  EXPECT_EQ(broadcast.ToString(), "broadcast(root 3) int64[2, 5]");

  Signature allgather;
  allgather.kind = OpKind::kAllgather;
  allgather.parts.push_back({DType::kUInt8, {4, 5}});
  EXPECT_EQ(allgather.ToString(), "allgather uint8[*, 4, 5]");
  const Shape scalar;
  allgather.parts[0].shape = scalar;
  EXPECT_EQ(allgather.ToString(), "allgather uint8[*]");

  Signature set;
  set.kind = OpKind::kAddProcessSet;
  set.ranks = {0, 2};
  EXPECT_EQ(set.ToString(), "add_process_set {0, 2}");
  EXPECT_EQ(Group().ToString(), "allreduce(sum) float32[2] 'a', float32[3] 'b'");
}

TEST(Signature, OfALargeGroupIsCutShort) {
  Signature group;
  group.kind = OpKind::kAllreduce;
  group.reduce_op = ReduceOp::kMax;
  for (int i = 0; i < 1'000; ++i) {
    group.parts.push_back({DType::kInt8, {i}});
    group.part_names.push_back("n");
  }
  const std::string text = group.ToString();
  EXPECT_NE(text.find("int8[7] 'n', and 992 more"), std::string::npos) << text;
  EXPECT_EQ(text.find("int8[8]"), std::string::npos) << text;
  EXPECT_NE(group.ToString(500).find(" 500 tensors, int8[500] 'n', "), std::string::npos);
  EXPECT_NE(group.ToString(500).find("int8[507] 'n', and 492 more"), std::string::npos);
  EXPECT_NE(group.ToString(999).find(" 999 tensors, int8[999] 'n'"), std::string::npos);
  EXPECT_NE(group.ToString(1'000).find(" 1000 tensors"), std::string::npos);
  Signature other = group;
  EXPECT_EQ(Signature::FirstDifference(group, other), 1'000u);
  other.parts.pop_back();
  EXPECT_EQ(Signature::FirstDifference(group, other), 999u);
  other.part_names[700] = "m";
  EXPECT_EQ(Signature::FirstDifference(group, other), 700u);
  other.parts[600].dtype = DType::kInt16;
  EXPECT_EQ(Signature::FirstDifference(group, other), 600u);
}

TEST(Signature, TheFirstDifferenceIsNamed) {
  const struct {
    const char* word;
    std::function<void(Signature*)> change;
  } kChanges[] = {
      {"kind of operation", [](Signature* s) { s->kind = OpKind::kBroadcast; }},
      {"reduce operation", [](Signature* s) { s->reduce_op = ReduceOp::kMin; }},
      {"root", [](Signature* s) { s->root = 0; }},
      {"receiver", [](Signature* s) { s->peer = 0; }},
      {"device", [](Signature* s) { s->device = DeviceType::kCuda; }},
      {"priority", [](Signature* s) { s->priority = Priority::kUrgent; }},
      {"compressor", [](Signature* s) { s->compression.compressor = Compressor::kInt8; }},
      {"number of tensors in the group", [](Signature* s) { s->parts.pop_back(); }},
      {"names of the tensors in the group", [](Signature* s) { s->part_names[1] += "!"; }},
      {"dtype", [](Signature* s) { s->parts[1].dtype = DType::kInt32; }},
      {"shape",
       [](Signature* s) {
         s->parts[1].shape = Shape({3, 1});
       }},
      {"list of ranks", [](Signature* s) { s->ranks = {1}; }},
  };
  const Signature group = Group();
  EXPECT_EQ(Signature::Difference(group, group), "");
  std::vector<Signature> all = {group};
  for (const auto& [word, change] : kChanges) {
    Signature changed = group;
    change(&changed);
    EXPECT_EQ(Signature::Difference(group, changed), word);
    EXPECT_EQ(Signature::Difference(changed, group), word);
    EXPECT_NE(changed, group) << word;
    all.push_back(std::move(changed));
  }
  for (const Signature& a : all) {
    for (const Signature& b : all) EXPECT_EQ(absl::HashOf(a) == absl::HashOf(b), a == b);
  }
}

// "dtype" is the more telling word of the two, whichever part it is in.
TEST(Signature, DtypesAreComparedBeforeShapes) {
  Signature changed = Group();
  changed.parts[0].shape = Shape({9});
  changed.parts[1].dtype = DType::kInt32;
  EXPECT_EQ(Signature::Difference(Group(), changed), "dtype");
}

}  // namespace
}  // namespace rueda
