// Buckets out of batches: values in, values out. Each test's own thread.
#include "controller/lanes/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rueda {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kBucketBytes = 1'024;

// Operations of one process set, and what they point to.
class Batch {
 public:
  explicit Batch(std::vector<Rank> ranks = {0, 1, 2, 3}) { set_.ranks = std::move(ranks); }

  // A tensor of this rank's; `dims` as planned, for ragged kinds.
  Request* Add(std::string name, Signature signature, std::vector<int64_t> dims = {}) {
    requests_.emplace_back();
    AddFor(&requests_.back(), std::move(name), std::move(signature), std::move(dims));
    return &requests_.back();
  }
  // Of others, while this rank has joined.
  void AddOfOthers(std::string name, Signature signature) {
    AddFor(nullptr, std::move(name), std::move(signature), {});
  }
  void SetReady(size_t i, DeviceEvent ready) { batch.operations[i].ready = std::move(ready); }

  std::vector<LaneBucket> Buckets(absl::Span<const PartCompression> compression = {}) const {
    LaneBuckets buckets = MakeBuckets(batch, set_, kBucketBytes, compression);
    return {std::make_move_iterator(buckets.begin()), std::make_move_iterator(buckets.end())};
  }

  LaneBatch batch;

 private:
  void AddFor(Request* request, std::string name, Signature signature, std::vector<int64_t> dims) {
    specs_.push_back(MakeSpec(kWorldSet, std::move(name), std::move(signature)));
    dims_.push_back(std::move(dims));
    parts_.emplace_back();
    for (const PartSignature& part : specs_.back()->signature.parts) {
      PartArgs& args = parts_.back().emplace_back();
      args.dtype = part.dtype;
      args.shape = part.shape;
      if (request != nullptr) args.input = args.output = &memory_;
    }
    batch.operations.push_back(
        {request, TensorId{0}, specs_.back().get(), parts_.back(), dims_.back(), nullptr});
  }

  ProcessSet set_;
  char memory_ = 0;
  std::deque<Request> requests_;
  std::deque<SpecPtr> specs_;
  std::deque<std::vector<PartArgs>> parts_;
  std::deque<std::vector<int64_t>> dims_;
};

Signature Of(OpKind kind, std::vector<std::vector<int64_t>> shapes, ReduceOp op = ReduceOp::kNone) {
  Signature signature;
  signature.kind = kind;
  signature.reduce_op = op;
  for (const std::vector<int64_t>& shape : shapes) {
    signature.parts.push_back({DType::kFloat32, Shape(shape)});
  }
  if (signature.parts.size() > 1) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      signature.part_names.push_back(std::string("part") + static_cast<char>('0' + i));
    }
  }
  return signature;
}

Signature Sum(int64_t elements) {
  return Of(OpKind::kAllreduce, {{elements}}, ReduceOp::kSum);
}

PartCompression Chosen(Compressor compressor, bool agrees = false) {
  static CompressionState* const kState = reinterpret_cast<CompressionState*>(0x40);
  return {.compression = {compressor}, .state = kState, .automatic = true, .agrees = agrees};
}

TEST(Buckets, AlikeNeighboursMeetInPlanOrderUpToTheLimit) {
  Batch batch;
  Request* const a = batch.Add("a", Sum(100));
  Request* const b = batch.Add("b", Sum(100));
  Request* const c = batch.Add("c", Sum(100));
  const std::vector<LaneBucket> buckets = batch.Buckets();
  ASSERT_THAT(buckets, SizeIs(2));
  EXPECT_THAT(buckets[0].requests, ElementsAre(a, b));
  EXPECT_EQ(buckets[0].operation.elements, 200);
  EXPECT_THAT(buckets[0].pieces, SizeIs(2));
  EXPECT_THAT(buckets[1].requests, ElementsAre(c));
}

TEST(Buckets, UnlikeTensorsNeverMeet) {
  const auto changed = [](auto change) {
    Signature signature = Sum(1);
    change(&signature);
    return signature;
  };
  const Signature others[] = {
      changed([](Signature* s) { s->kind = OpKind::kReduce; }),
      changed([](Signature* s) { s->reduce_op = ReduceOp::kMax; }),
      changed([](Signature* s) { s->root = 1; }),
      changed([](Signature* s) { s->device = DeviceType::kCuda; }),
      changed([](Signature* s) { s->priority = Priority::kLow; }),
      changed([](Signature* s) { s->compression.compressor = Compressor::kInt8; }),
      changed([](Signature* s) { s->parts[0].dtype = DType::kInt32; }),
  };
  for (const Signature& other : others) {
    Batch batch;
    batch.Add("a", Sum(1));
    batch.Add("b", other);
    EXPECT_THAT(batch.Buckets(), SizeIs(2)) << other.ToString();
  }
}

TEST(Buckets, RanksBecomeMemberIndices) {
  Batch batch({1, 4, 6});
  Signature send = Of(OpKind::kSendRecv, {{2}});
  send.root = 6;
  send.peer = 4;
  batch.Add("a", send);
  const std::vector<LaneBucket> buckets = batch.Buckets();
  ASSERT_THAT(buckets, SizeIs(1));
  EXPECT_EQ(buckets[0].operation.root, 2);
  EXPECT_EQ(buckets[0].operation.peer, 1);
}

TEST(Buckets, AnAverageIsDividedByAllAndAnAverageOfTheLiveByThose) {
  for (const auto& [op, divisor] : {std::pair(ReduceOp::kSum, 1), std::pair(ReduceOp::kAverage, 4),
                                    std::pair(ReduceOp::kAverageLive, 3)}) {
    Batch batch;
    batch.batch.absent = {2};
    batch.Add("a", Of(OpKind::kAllreduce, {{5}}, op));
    const std::vector<LaneBucket> buckets = batch.Buckets();
    ASSERT_THAT(buckets, SizeIs(1));
    EXPECT_EQ(buckets[0].operation.scaling.divisor, divisor);
    EXPECT_THAT(buckets[0].absent, ElementsAre(2));
  }
}

// One dimension by member and part: counts are by piece, then by member.
TEST(Buckets, AnAllgatherCountsWhatEachMemberGives) {
  Batch batch;
  batch.Add("a", Of(OpKind::kAllgather, {{2}, {10}}), {1, 5, 0, 6, 3, 7, 4, 8});
  int64_t elements = 0;
  std::vector<int64_t> counts;
  for (const LaneBucket& bucket : batch.Buckets()) {
    elements += bucket.operation.elements;
    counts.insert(counts.end(), bucket.counts.begin(), bucket.counts.end());
  }
  EXPECT_THAT(counts, ElementsAre(2, 0, 6, 8, 50, 60, 70, 80));
  EXPECT_EQ(elements, 2 * 8 + 10 * 26);
}

TEST(Buckets, AnAlltoallCountsByGiverAndTaker) {
  Batch equal({0, 1});
  equal.Add("a", Of(OpKind::kAlltoall, {{3}}), {4, 2});
  EXPECT_THAT(equal.Buckets().at(0).counts, ElementsAre(6, 6, 3, 3));
  Batch unequal({0, 1});
  unequal.Add("a", Of(OpKind::kAlltoall, {{3}}), {1, 2, 0, 5});
  EXPECT_THAT(unequal.Buckets().at(0).counts, ElementsAre(3, 6, 0, 15));
}

TEST(Buckets, AReducescatterGivesTheLowestMembersWhatRemains) {
  Batch batch;
  batch.Add("a", Of(OpKind::kReducescatter, {{6, 10}}, ReduceOp::kSum));
  EXPECT_THAT(batch.Buckets().at(0).counts, ElementsAre(20, 20, 10, 10));
}

// It would keep the rest from being reduced where it lies.
TEST(Buckets, AnEmptyTensorIsNoPieceButIsCompletedWithTheRest) {
  Batch batch;
  Request* const empty = batch.Add("a", Sum(0));
  Request* const full = batch.Add("b", Sum(3));
  const std::vector<LaneBucket> buckets = batch.Buckets();
  ASSERT_THAT(buckets, SizeIs(1));
  EXPECT_THAT(buckets[0].requests, ElementsAre(empty, full));
  ASSERT_THAT(buckets[0].pieces, SizeIs(1));
  EXPECT_EQ(buckets[0].pieces[0].elements, 3);
}

// Lane::Prepare begins early with the bucket that it foresees: the peers compare digests.
TEST(Buckets, ALoneOperationHasTheDigestThatIsForeseen) {
  for (const Signature& signature : {Sum(9), Of(OpKind::kBarrier, {})}) {
    Batch batch;
    Request* const request = batch.Add("a", signature);
    const TensorSpec& spec = *batch.batch.operations[0].spec;
    const std::vector<LaneBucket> buckets = batch.Buckets();
    ASSERT_THAT(buckets, SizeIs(1));
    EXPECT_THAT(buckets[0].requests, ElementsAre(request));
    const bool barrier = signature.parts.empty();
    EXPECT_THAT(buckets[0].pieces, SizeIs(barrier ? 0 : 1));
    EXPECT_EQ(buckets[0].operation.digest,
              DigestOf(InputOf(spec, barrier ? -1 : 0, 0, buckets[0].operation.elements)));
  }
}

TEST(Buckets, WhoHasJoinedMakesTheSameBucketsWithoutRequests) {
  Batch member, joined;
  for (const char* const name : {"a", "b", "c"}) {
    member.Add(name, Sum(100));
    joined.AddOfOthers(name, Sum(100));
  }
  const std::vector<LaneBucket> with = member.Buckets(), without = joined.Buckets();
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(with[i].operation.digest, without[i].operation.digest);
    EXPECT_EQ(with[i].operation.elements, without[i].operation.elements);
    ASSERT_EQ(with[i].pieces.size(), without[i].pieces.size());
    for (const Piece& piece : without[i].pieces) EXPECT_EQ(piece.input, nullptr);
    for (const Request* request : without[i].requests) EXPECT_EQ(request, nullptr);
  }
}

TEST(Buckets, TheSameEventIsAwaitedOnce) {
  Batch batch;
  const auto first = std::make_shared<int>(), second = std::make_shared<int>();
  for (const auto& event : {first, first, second}) {
    batch.Add("a", Sum(1));
    batch.SetReady(batch.batch.operations.size() - 1, event);
  }
  EXPECT_THAT(batch.Buckets().at(0).ready, ElementsAre(DeviceEvent(first), DeviceEvent(second)));
}

// What compression remembers of a tensor is found by it, whatever group the tensor comes in.
TEST(Buckets, ATensorHasOneIdentityAloneAndInAGroup) {
  Batch alone, group;
  alone.Add("part1", Sum(7));
  group.Add("g", Of(OpKind::kAllreduce, {{4}, {7}}, ReduceOp::kSum));
  const std::vector<LaneBucket> buckets = group.Buckets();
  ASSERT_THAT(buckets, SizeIs(1));
  ASSERT_THAT(buckets[0].pieces, SizeIs(2));
  EXPECT_EQ(buckets[0].pieces[1].identity, alone.Buckets().at(0).pieces.at(0).identity);
  EXPECT_NE(buckets[0].pieces[1].identity, buckets[0].pieces[0].identity);
}

class AutomaticBuckets : public ::testing::Test {
 protected:
  AutomaticBuckets() {
    Signature signature = Sum(10);
    signature.compression.compressor = Compressor::kAuto;
    for (const char* const name : {"a", "b", "c", "d"})
      requests_.push_back(batch_.Add(name, signature));
  }
  Batch batch_;
  std::vector<Request*> requests_;
};

// Each of the four alone would be a bucket.
TEST_F(AutomaticBuckets, TensorsOfOneChoiceComeTogether) {
  const PartCompression int8 = Chosen(Compressor::kInt8), none = Chosen(Compressor::kNone);
  const std::vector<LaneBucket> buckets = batch_.Buckets({int8, none, int8, none});
  ASSERT_THAT(buckets, SizeIs(2));
  EXPECT_THAT(buckets[0].requests, ElementsAre(requests_[1], requests_[3]));
  EXPECT_EQ(buckets[0].operation.compression.compressor, Compressor::kNone);
  EXPECT_THAT(buckets[1].requests, ElementsAre(requests_[0], requests_[2]));
  EXPECT_EQ(buckets[1].operation.compression.compressor, Compressor::kInt8);
  for (const LaneBucket& bucket : buckets) {
    EXPECT_TRUE(bucket.operation.automatic && bucket.operation.compressed());
    for (const Piece& piece : bucket.pieces) EXPECT_EQ(piece.state, int8.state);
  }
}

TEST_F(AutomaticBuckets, WhatNobodyMeasuresIsNotCompressed) {
  const std::vector<LaneBucket> buckets = batch_.Buckets(std::vector<PartCompression>(4));
  ASSERT_THAT(buckets, SizeIs(1));
  EXPECT_FALSE(buckets[0].operation.compressed());
}

// A rank that chose otherwise waits for other bytes: the digests tell, before any are taken.
TEST_F(AutomaticBuckets, EveryChoiceHasItsOwnDigest) {
  std::vector<uint32_t> digests;
  for (const PartCompression& how :
       {Chosen(Compressor::kNone), Chosen(Compressor::kInt8), Chosen(Compressor::kBfloat16),
        Chosen(Compressor::kNone, true)}) {
    const std::vector<LaneBucket> buckets = batch_.Buckets(std::vector<PartCompression>(4, how));
    ASSERT_THAT(buckets, SizeIs(1));
    EXPECT_THAT(digests, Not(Contains(buckets[0].operation.digest)));
    EXPECT_EQ(buckets[0].operation.digest & 1, 1u) << "0 is a digest that nobody has written yet";
    digests.push_back(buckets[0].operation.digest);
  }
}

}  // namespace
}  // namespace rueda
