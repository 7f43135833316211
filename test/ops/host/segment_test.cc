// The control segment: its layout, and the membership's one failure.
#include "ops/host/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "core/base/memory_limits.h"

namespace rueda {
namespace {

// Every part's first and last bytes hold what was written there, whatever was written elsewhere.
TEST(Segment, PartsDoNotOverlap) {
  constexpr int kRanks = 5;
  constexpr size_t kLogBytes = 10'000;
  const std::unique_ptr<Segment> segment = *Segment::Create(kRanks, kLogBytes);
  segment->Fail(std::string(Segment::kFailureBytesMax, 'x'));
  std::vector<std::pair<char*, size_t>> parts = {{segment->log(), kLogBytes}};
  for (int i = 0; i < kRanks; ++i) {
    parts.push_back({reinterpret_cast<char*>(&segment->page(i)), sizeof(RankPage)});
  }
  for (SetId set = 0; set < kProcessSetsMax; ++set) {
    Area* const areas = *segment->Areas(set);
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(&areas[i]) % alignof(Area), 0u);
      parts.push_back({reinterpret_cast<char*>(&areas[i]), sizeof(Area)});
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [at, bytes] = parts[i];
    memcpy(at, &i, sizeof i);
    memcpy(at + bytes - sizeof i, &i, sizeof i);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [at, bytes] = parts[i];
    ASSERT_EQ(memcmp(at, &i, sizeof i), 0) << i;
    ASSERT_EQ(memcmp(at + bytes - sizeof i, &i, sizeof i), 0) << i;
  }
  EXPECT_EQ(segment->failure(), std::string(Segment::kFailureBytesMax, 'x'));
  EXPECT_EQ(segment->memory()->bytes(), Segment::BytesFor(kRanks, kLogBytes));
}

// As of a job's process sets only some are used, and address space may be limited.
TEST(Segment, MapsAreasOfTheSetsThatAreUsed) {
  const auto mapped = [] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * PageBytes();
  };
  const size_t before = mapped();
  const std::unique_ptr<Segment> segment = *Segment::Create(64, 64);
  EXPECT_LT(mapped() - before, 32 * sizeof(Area));
  Area* const areas = *segment->Areas(200);
  EXPECT_LT(mapped() - before, 100 * sizeof(Area));
  EXPECT_EQ(*segment->Areas(200), areas);
  Area* const behind = *segment->Areas(200, /*low_priority=*/true);
  EXPECT_TRUE(behind + 64 <= areas || areas + 64 <= behind)
      << "a communicator has areas of its own";
  EXPECT_EQ(*(*Segment::Map(segment->memory(), 64, 64))->Areas(200), areas) << "one process";
}

// A part is mapped by itself, at a multiple of the kernel's page, which may be 64 KiB on arm64.
TEST(Segment, AreasOfASetAreWholePagesOfAnyKernel) {
  for (const int ranks : {1, 2, 3, 7, 64}) {
    for (const size_t log_bytes : {64, 10'000}) {
      for (int sets = 0; sets < 5; ++sets) {
        EXPECT_EQ(Segment::MappedBytesFor(ranks, log_bytes, sets) % kPageBytesMax, 0u)
            << ranks << " ranks, " << log_bytes << " bytes of log, " << sets << " sets";
      }
    }
  }
}

TEST(Segment, ANeighbourSeesTheSame) {
  const std::unique_ptr<Segment> ours = *Segment::Create(2, 64);
  const std::unique_ptr<Segment> theirs = *Segment::Map(ours->memory(), 2, 64);
  (*theirs->Areas(3))[1].slot[1][5] = 'x';
  theirs->page(1).left.store(1);
  theirs->log()[7] = 'y';
  EXPECT_EQ((*ours->Areas(3))[1].slot[1][5], 'x');
  EXPECT_EQ(ours->page(1).left.load(), 1u);
  EXPECT_EQ(ours->log()[7], 'y');
  EXPECT_EQ(ours->page(0).left.load(), 0u);
}

TEST(Segment, OneThatIsTooSmallIsRefused) {
  const std::unique_ptr<Segment> segment = *Segment::Create(2, 64);
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Map(segment->memory(), 5'000, 64).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Map(segment->memory(), 2, 1 << 30).status()));
}

TEST(Segment, OneForOtherRanksIsRefused) {
  const std::unique_ptr<Segment> segment = *Segment::Create(3, 128);
  const auto map = [&](int ranks, size_t log_bytes) {
    return Segment::Map(segment->memory(), ranks, log_bytes).status();
  };
  EXPECT_TRUE(map(3, 128).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(map(2, 128)));
  EXPECT_EQ(map(3, 64).message(),
            "the leader's control segment is for 3 ranks and 128 bytes of log, and this host has 3 "
            "and needs 64");
}

TEST(Segment, HasFewerProcessSetsUnderALimitOnFiles) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = Segment::MappedBytesFor(2, 64, 3) + 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::StatusOr<std::unique_ptr<Segment>> ours = Segment::Create(2, 64);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(ours.ok()) << ours.status();
  const std::unique_ptr<Segment> theirs = *Segment::Map((*ours)->memory(), 2, 64);
  for (const Segment* segment : {ours->get(), theirs.get()}) {
    EXPECT_TRUE(segment->Areas(2).ok());
    EXPECT_TRUE(segment->Areas(2, /*low_priority=*/true).ok());
    const absl::Status status = segment->Areas(3).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("room for 3 process sets"));
  }
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
