// Arenas: memory that is handed out, found again, and given back. Each test's own thread.
#include "ops/host/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace rueda {
namespace {

using ::testing::HasSubstr;

const size_t kPage = PageBytes();

class ArenaTest : public ::testing::Test {
 protected:
  char* New(size_t bytes) {
    const absl::StatusOr<void*> memory = arena_->Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return static_cast<char*>(*memory);
  }
  const std::shared_ptr<Arena> arena_ = *Arena::Create();
};

TEST(ArenaBytes, LeaveHalfOfTheRoomToTheProgram) {
  constexpr size_t kGiB = size_t{1} << 30;
  EXPECT_EQ(ArenaBytesMax(kNoLimit, kGiB, 4), kNoLimit);
  EXPECT_EQ(ArenaBytesMax(9 * kGiB, kGiB, 4), kGiB);
  EXPECT_EQ(ArenaBytesMax(kGiB, kGiB, 4), kArenaBytesMin);
  EXPECT_EQ(ArenaBytesMax(0, kGiB, 4), kArenaBytesMin);
  EXPECT_EQ((*Arena::Create(kGiB + 1))->memory()->bytes(), kGiB);
  EXPECT_EQ((*Arena::Create(1))->memory()->bytes(), kArenaBytesMin);
}

TEST_F(ArenaTest, HandsOutZeroedPagesThatDoNotOverlap) {
  std::vector<std::pair<char*, size_t>> pieces;
  for (const size_t bytes : {size_t{0}, size_t{1}, kPage - 1, kPage, kPage + 1, 10 * kPage}) {
    char* memory = New(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kPage, 0u);
    EXPECT_TRUE(std::all_of(memory, memory + bytes, [](char c) { return c == 0; })) << bytes;
    memset(memory, static_cast<int>(pieces.size()) + 1, bytes);
    pieces.emplace_back(memory, bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [memory, bytes] = pieces[i];
    EXPECT_TRUE(
        std::all_of(memory, memory + bytes, [&](char c) { return c == static_cast<char>(i + 1); }));
  }
}

TEST_F(ArenaTest, WhatWasFreedIsZeroedAndUsedAgain) {
  char* first = New(3 * kPage);
  memset(first, 1, 3 * kPage);
  ASSERT_TRUE(arena_->Free(first).ok());
  char* again = New(3 * kPage);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(std::all_of(again, again + 3 * kPage, [](char c) { return c == 0; }));
}

TEST_F(ArenaTest, FreedNeighboursBecomeOnePieceInWhateverOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    std::vector<char*> pieces;
    for (int i = 0; i < 4; ++i) pieces.push_back(New(kPage));
    for (const int i : order) ASSERT_TRUE(arena_->Free(pieces[static_cast<size_t>(i)]).ok());
    char* whole = New(4 * kPage);
    ASSERT_EQ(whole, pieces[0]);
    ASSERT_TRUE(arena_->Free(whole).ok());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ArenaTest, AHoleIsFilledAndTheRestOfItKept) {
  char* first = New(4 * kPage);
  char* second = New(kPage);
  ASSERT_TRUE(arena_->Free(first).ok());
  EXPECT_EQ(New(kPage), first);
  EXPECT_EQ(New(3 * kPage), first + kPage);
  EXPECT_GT(New(kPage), second);
}

TEST_F(ArenaTest, RefusesToFreeWhatIsNotItsOwn) {
  char* memory = New(2 * kPage);
  int elsewhere = 0;
  for (void* pointer : {static_cast<void*>(nullptr), static_cast<void*>(&elsewhere),
                        static_cast<void*>(memory + 1), static_cast<void*>(memory + kPage),
                        static_cast<void*>(arena_->memory()->data() + arena_->memory()->bytes())}) {
    EXPECT_TRUE(absl::IsNotFound(arena_->Free(pointer)));
  }
  EXPECT_TRUE(arena_->Free(memory).ok());
  EXPECT_TRUE(absl::IsNotFound(arena_->Free(memory))) << "twice";
}

TEST_F(ArenaTest, RefusesMoreThanThereIs) {
  EXPECT_TRUE(absl::IsResourceExhausted(arena_->Allocate(SIZE_MAX).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(arena_->Allocate(arena_->memory()->bytes() + 1).status()));
  New(1);
  EXPECT_TRUE(absl::IsResourceExhausted(arena_->Allocate(arena_->memory()->bytes()).status()))
      << "a page is taken";
}

TEST_F(ArenaTest, KnowsWhatLiesInItWholly) {
  char* begin = arena_->memory()->data();
  const size_t bytes = arena_->memory()->bytes();
  EXPECT_EQ(arena_->OffsetOf(begin, 0), 0);
  EXPECT_EQ(arena_->OffsetOf(begin, bytes), 0);
  EXPECT_EQ(arena_->OffsetOf(begin + 5, 7), 5);
  EXPECT_EQ(arena_->OffsetOf(begin + bytes - 7, 7), static_cast<int64_t>(bytes) - 7);
  EXPECT_EQ(arena_->OffsetOf(begin + bytes - 7, 8), -1);
  EXPECT_EQ(arena_->OffsetOf(begin + 1, bytes), -1);
  EXPECT_EQ(arena_->OffsetOf(begin + 1, SIZE_MAX), -1);
  EXPECT_EQ(arena_->OffsetOf(begin - 1, 1), -1);
  EXPECT_EQ(arena_->OffsetOf(nullptr, 1), -1);
  EXPECT_EQ(arena_->OffsetOf(begin + bytes + 100, 1), -1);
}

TEST_F(ArenaTest, IsInUseUntilAllIsFreed) {
  EXPECT_FALSE(arena_->InUse());
  char* first = New(1);
  char* second = New(1);
  ASSERT_TRUE(arena_->Free(first).ok());
  EXPECT_TRUE(arena_->InUse());
  ASSERT_TRUE(arena_->Free(second).ok());
  EXPECT_FALSE(arena_->InUse());
}

TEST_F(ArenaTest, IsSafeOnceEveryGuardIsContent) {
  int asked = 0;
  arena_->AddGuard([] { return ""; });
  arena_->AddGuard([&]() -> std::string { return ++asked < 4 ? "rank 1" : ""; });
  EXPECT_TRUE(arena_->WaitUntilSafe(kForever).ok());
  EXPECT_EQ(asked, 4);
  EXPECT_TRUE(arena_->WaitUntilSafe(0).ok());
  EXPECT_EQ(asked, 4) << "a guard that was content is gone";
}

TEST_F(ArenaTest, WhoIsInTheWayIsNamed) {
  arena_->AddGuard([] { return "rank 7 has not left"; });
  const absl::Status status = arena_->WaitUntilSafe(MonotonicNow());
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 7 has not left"));
}

}  // namespace
}  // namespace rueda
