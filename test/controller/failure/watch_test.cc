#include "controller/failure/watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "controller/failure/verdict_board.h"

namespace rueda {
namespace {

TEST(Watch, ARankHasEndedWhenTheLauncherSaysSoOfItsProcess) {
  const RankInfo infos[] = {{10, "here"}, {11, "here"}};
  std::set<Rank> left;
  EndedRanks ended;
  const auto look = [&](const VerdictBoard* board) {
    return ended.Look(board, infos, [&](Rank rank) { return left.contains(rank); });
  };
  EXPECT_FALSE(look(nullptr).has_value());
  const std::unique_ptr<VerdictBoard> board = *VerdictBoard::Create(2);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(look(board.get()).has_value());
  board->Write(1, {99, 0});  // of a process that was rank 1 before
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(look(board.get()).has_value());
  board->Write(1, {11, 0});
  EXPECT_FALSE(look(board.get()).has_value()) << "it may have left";
  const std::optional<Watch::Lost> lost = look(board.get());
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->rank, 1);
  // One that has left does not hide one that was lost.
  left = {1};
  board->Write(0, {10, 9});
  EXPECT_FALSE(look(board.get()).has_value());
  EXPECT_EQ(look(board.get())->rank, 0);
}

}  // namespace
}  // namespace rueda
