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
  segments.Reset(operation, split, LimitsFor(3, 1, {block_bytes, block_bytes, 1 << 20}), 4);
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
void CheckFits(OpKind kind, int hosts, int local, size_t block_bytes, int64_t most, size_t bytes) {
  HostSplit split;
  std::vector<int64_t> counts;
  for (int host = 0; host < hosts; ++host) {
    split.members.emplace_back();
    for (int i = 0; i < local; ++i) {
      split.members.back().push_back(static_cast<int>(counts.size()));
      counts.push_back(most / (host % 3 + 1) / (i + 1));
    }
  }
  const CutLimits limits =
      LimitsFor(hosts, std::min(local, 16), {block_bytes, block_bytes, 1 << 20});
  const Piece piece;
  BucketOperation operation;
  operation.kind = kind;
  operation.root = 0;
  operation.pieces = {&piece, 1};
  operation.counts = counts;
  operation.elements = most;
  const auto n = static_cast<size_t>(hosts);
  Segments first;
  first.Reset(operation, split, limits, bytes);
  for (split.host = 0; split.host < std::min(hosts, 3); ++split.host) {
    Segments segments;
    segments.Reset(operation, split, limits, bytes);
    ASSERT_EQ(segments.blocks(), first.blocks());
    ASSERT_EQ(segments.stripes(), first.stripes());
    ASSERT_LE(segments.stripes(), limits.stripes);
    ASSERT_LE(n * segments.block_bytes(), limits.block_bytes);
    ASSERT_LE(n * segments.stripe_bytes(), limits.stripe_bytes);
    ASSERT_LE(segments.stripe_bytes(), limits.part_bytes);
    for (int host = 0; host < std::min(hosts, 3); ++host) {
      int64_t sent = 0;
      for (int64_t block = 0; block < segments.blocks(); ++block) {
        const Range range = segments.Block(block, split.host, host);
        ASSERT_EQ(range.begin, sent);
        sent = range.end;
        for (int i = 0; i < segments.stripes(); ++i) {
          const Range stripe = segments.Stripe(block, split.host, host, i);
          ASSERT_LE(static_cast<size_t>(stripe.size()) * bytes, segments.stripe_bytes());
        }
      }
      const std::vector<Segments::Span>& spans = segments.To(host);
      ASSERT_EQ(sent, spans.empty() ? 0 : spans.back().range.end);
    }
  }
}

TEST(Segments, AreCutIntoBlocksThatFit) {
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kAllgather, OpKind::kGather,
                            OpKind::kScatter, OpKind::kReducescatter}) {
    for (const auto& [hosts, local] :
         {std::pair{2, 1}, {2, 16}, {3, 2}, {5, 3}, {7, 16}, {13, 2}, {17, 1}, {34, 2}}) {
      for (const size_t block_bytes : {0, 4'096, 8'192, 100'000}) {
        for (const int64_t most : {0, 1, 16, 315, 819, 2'730, 30'000}) {
          for (const size_t bytes : {1, 4, 16}) {
            CheckFits(kind, hosts, local, block_bytes, most, bytes);
            ASSERT_FALSE(HasFatalFailure())
                << OpKindName(kind) << " of " << most << " elements of " << bytes << " bytes, "
                << hosts << " hosts of " << local << ", blocks of " << block_bytes;
          }
        }
      }
    }
  }
  CheckFits(OpKind::kAllgather, 2'050, 16, 0, 3, 4);
}

}  // namespace
}  // namespace rueda
