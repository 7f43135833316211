#include "ops/hierarchical/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace rueda {
namespace {

// Segments of hosts {0, 1}, {2}, {3, 4}, as host `self` has them.
Segments SegmentsOf(OpKind kind, const std::vector<int64_t>& counts, int self, size_t block_bytes,
                    int root = 3) {
  HostSplit split;
  split.members = {{0, 1}, {2}, {3, 4}};
  split.host = self;
  BucketOperation operation;
  operation.kind = kind;
  operation.root = root;
  const Piece piece;
  operation.pieces = {&piece, 1};
  operation.counts = counts;
  operation.elements = kind == OpKind::kBroadcast ? 1'000'000 : 0;
  Segments segments;
  segments.Reset(operation, split, LimitsFor(3, 1, block_bytes), 4);
  return segments;
}

std::vector<std::tuple<int, int, int64_t>> Spans(const std::vector<Segments::Span>& spans) {
  std::vector<std::tuple<int, int, int64_t>> all;
  for (const auto& [giver, taker, range] : spans) all.emplace_back(giver, taker, range.size());
  return all;
}

TEST(Segments, HaveWhatOneHostsMembersHaveForAnothers) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  using S = std::tuple<int, int, int64_t>;
  const std::vector<int64_t> five = {10, 0, 30, 40, 50};
  Segments segments = SegmentsOf(OpKind::kBroadcast, {}, 2, 0);
  EXPECT_THAT(Spans(segments.To(0)), ElementsAre(S(3, -1, 1'000'000)));
  EXPECT_THAT(Spans(segments.From(0)), IsEmpty());
  EXPECT_THAT(Spans(segments.From(2)), ElementsAre(S(3, -1, 1'000'000)));
  segments = SegmentsOf(OpKind::kAllgather, five, 0, 0);
  EXPECT_THAT(Spans(segments.To(1)), ElementsAre(S(0, -1, 10)));
  EXPECT_THAT(Spans(segments.From(2)), ElementsAre(S(3, -1, 40), S(4, -1, 50)));
  segments = SegmentsOf(OpKind::kGather, five, 0, 0);
  EXPECT_THAT(Spans(segments.To(2)), ElementsAre(S(0, -1, 10)));
  EXPECT_THAT(Spans(segments.To(1)), IsEmpty());
  EXPECT_THAT(Spans(segments.From(2)), IsEmpty());
  segments = SegmentsOf(OpKind::kScatter, five, 2, 0);
  EXPECT_THAT(Spans(segments.To(0)), ElementsAre(S(3, 0, 10)));
  EXPECT_THAT(Spans(segments.To(2)), ElementsAre(S(3, 3, 40), S(3, 4, 50)));
  EXPECT_THAT(Spans(segments.From(0)), IsEmpty());
  segments = SegmentsOf(OpKind::kReducescatter, five, 1, 0);
  EXPECT_THAT(Spans(segments.To(2)), ElementsAre(S(-1, 3, 40), S(-1, 4, 50)));
  EXPECT_THAT(Spans(segments.From(0)), ElementsAre(S(-1, 2, 30)));
  std::vector<int64_t> pairs;
  for (int64_t i = 0; i < 25; ++i) pairs.push_back(i);  // giver * 5 + taker
  segments = SegmentsOf(OpKind::kAlltoall, pairs, 0, 0);
  EXPECT_THAT(Spans(segments.To(0)), ElementsAre(S(0, 1, 1), S(1, 0, 5), S(1, 1, 6)));
  EXPECT_THAT(Spans(segments.From(2)),
              ElementsAre(S(3, 0, 15), S(3, 1, 16), S(4, 0, 20), S(4, 1, 21)));
}

// All hosts cut alike, and what is cut fits the memory that CutLimits describe.
TEST(Segments, AreCutIntoBlocksThatFit) {
  for (const size_t block_bytes : {0, 4'096, 100'000}) {
    const CutLimits limits = LimitsFor(3, 1, block_bytes);
    for (const int64_t most : {0, 1, 16, 700, 30'000, 3'000'000}) {
      const std::vector<int64_t> counts = {most, 1, 0, most / 2, most / 3};
      for (const OpKind kind :
           {OpKind::kAllgather, OpKind::kGather, OpKind::kScatter, OpKind::kReducescatter}) {
        const Segments first = SegmentsOf(kind, counts, 0, block_bytes);
        for (int self = 0; self < 3; ++self) {
          const Segments segments = SegmentsOf(kind, counts, self, block_bytes);
          ASSERT_EQ(segments.blocks(), first.blocks());
          ASSERT_EQ(segments.stripes(), first.stripes());
          ASSERT_LE(3 * segments.block_bytes(), limits.block_bytes);
          ASSERT_LE(3 * segments.stripe_bytes(), limits.stripe_bytes);
          ASSERT_LE(segments.stripe_bytes(), limits.part_bytes);
          for (int host = 0; host < 3; ++host) {
            int64_t sent = 0;
            for (int64_t block = 0; block < segments.blocks(); ++block) {
              const Range range = segments.Block(block, self, host);
              ASSERT_EQ(range.begin, sent);
              sent = range.end;
            }
            const std::vector<Segments::Span>& spans = segments.To(host);
            ASSERT_EQ(sent, spans.empty() ? 0 : spans.back().range.end);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace rueda
