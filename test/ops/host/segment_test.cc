// The control segment: its layout, and the membership's one failure.
#include "ops/host/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "core/base/limits.h"

namespace rueda {
namespace {

TEST(Segment, PartsDoNotOverlap) {
  constexpr int kRanks = 5;
  constexpr size_t kLogBytes = 10'000;
  const std::unique_ptr<Segment> segment = *Segment::Create(kRanks, kLogBytes);
  struct Part {
    const char* begin;
    size_t bytes;
  };
  std::vector<Part> parts = {{segment->log(), kLogBytes}};
  for (int i = 0; i < kRanks; ++i) {
    parts.push_back({reinterpret_cast<const char*>(&segment->page(i)), sizeof(RankPage)});
    for (SetId set = 0; set < kProcessSetsMax; ++set) {
      const Area& area = segment->area(set, i);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(&area) % alignof(Area), 0u);
      parts.push_back({reinterpret_cast<const char*>(&area), sizeof(Area)});
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  EXPECT_GE(parts.front().begin, segment->memory()->data() + Segment::kFailureBytesMax);
  for (size_t i = 1; i < parts.size(); ++i) {
    ASSERT_LE(parts[i - 1].begin + parts[i - 1].bytes, parts[i].begin) << i;
  }
  EXPECT_LE(parts.back().begin + parts.back().bytes,
            segment->memory()->data() + Segment::BytesFor(kRanks, kLogBytes));
  EXPECT_EQ(segment->memory()->bytes(), Segment::BytesFor(kRanks, kLogBytes));
}

TEST(Segment, ANeighbourSeesTheSame) {
  const std::unique_ptr<Segment> ours = *Segment::Create(2, 64);
  const std::unique_ptr<Segment> theirs = *Segment::Map(ours->memory(), 2, 64);
  theirs->area(3, 1).slot[1][5] = 'x';
  theirs->page(1).left.store(1);
  theirs->log()[7] = 'y';
  EXPECT_EQ(ours->area(3, 1).slot[1][5], 'x');
  EXPECT_EQ(ours->page(1).left.load(), 1u);
  EXPECT_EQ(ours->log()[7], 'y');
  EXPECT_EQ(ours->page(0).left.load(), 0u);
}

TEST(Segment, OneThatIsTooSmallIsRefused) {
  const std::unique_ptr<Segment> segment = *Segment::Create(2, 64);
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Map(segment->memory(), 3, 64).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Map(segment->memory(), 2, 1 << 20).status()));
}

TEST(Segment, TheFirstFailureStays) {
  const std::unique_ptr<Segment> segment = *Segment::Create(1, 64);
  EXPECT_FALSE(segment->failed());
  EXPECT_EQ(segment->failure(), "");
  const std::string first("one\0two", 7);
  segment->Fail(first);
  segment->Fail("later");
  EXPECT_TRUE(segment->failed());
  EXPECT_EQ(segment->failure(), first);
}

TEST(Segment, AFailureIsCutToItsPlace) {
  const std::unique_ptr<Segment> segment = *Segment::Create(1, 64);
  segment->Fail(std::string(10 * Segment::kFailureBytesMax, 'x'));
  EXPECT_EQ(segment->failure(), std::string(Segment::kFailureBytesMax, 'x'));
  EXPECT_EQ(segment->page(0).sleep.load(), 0u) << "what lies behind it is untouched";
}

// Many ranks fail at once: one record, whole, the same for all.
TEST(Segment, OfManyFailuresOneIsKeptWhole) {
  for (int round = 0; round < 50; ++round) {
    const std::unique_ptr<Segment> segment = *Segment::Create(1, 64);
    std::vector<std::string> seen(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < seen.size(); ++i) {
      threads.emplace_back([&, i] {
        segment->Fail(std::string(1'000 + i, static_cast<char>('a' + i)));
        while (seen[i].empty()) seen[i] = segment->failure();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto winner = static_cast<size_t>(seen[0][0] - 'a');
    for (const std::string& each : seen) {
      ASSERT_EQ(each, std::string(1'000 + winner, static_cast<char>('a' + winner)));
    }
  }
}

}  // namespace
}  // namespace rueda
