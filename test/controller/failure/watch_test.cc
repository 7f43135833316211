#include "controller/failure/watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <vector>

#include "controller/failure/verdict_board.h"

namespace rueda {
namespace {

TEST(Watch, ARankHasEndedWhenTheLauncherSaysSoOfItsProcess) {
  const RankInfo infos[] = {{10, "here"}, {11, "here"}};
  std::set<Rank> left;
  EndedRanks ended;
  Nanos now = 1;
  const auto look = [&](const VerdictBoard* board) {
    const std::optional<Watch::Lost> lost = ended.Check(
        board, infos, [&](Rank rank) { return left.contains(rank); }, now);
    return lost.has_value() ? lost->rank : -1;
  };
  EXPECT_EQ(look(nullptr), -1);
  const std::unique_ptr<VerdictBoard> board = *VerdictBoard::Create(2);
  EXPECT_EQ(look(board.get()), -1);
  board->Write(1, {99, 0});  // of a process that was rank 1 before
  EXPECT_EQ(look(board.get()), -1);
  board->Write(1, {11, 9});
  EXPECT_EQ(look(board.get()), 1);
  // One that ended its part itself, in peace or because of another, may have said so.
  board->Blame(1, 1);
  EXPECT_EQ(look(board.get()), -1);
  now += EndedRanks::kPatience - 1;
  EXPECT_EQ(look(board.get()), -1);
  ++now;
  EXPECT_EQ(look(board.get()), 1);
  // A script started it, and ended after it.
  board->Write(1, {99, 9});
  EXPECT_EQ(look(board.get()), -1);
  now += EndedRanks::kPatience;
  EXPECT_EQ(look(board.get()), 1);
  board->Write(1, {11, 9});
  // It does not hide one that was lost; nor does one that has left.
  board->Write(0, {10, 9});
  EXPECT_EQ(look(board.get()), 0);
  left = {1};
  EXPECT_EQ(look(board.get()), 0);
}

// A process has many contexts, and few descriptors.
TEST(Watch, ContextsShareTheDescriptorOfAProcess) {
  int gone[2];
  ASSERT_EQ(pipe(gone), 0);
  const pid_t child = fork();
  if (child == 0) {
    char word;
    close(gone[1]);
    (void)!read(gone[0], &word, 1);
    _exit(0);
  }
  std::vector<RoleLink> links(2);
  for (RoleLink& each : links) {
    each.role = LinkRole::kNeighbour;
    each.pid = child;
    each.link = Link::Client(UniqueFd(dup(gone[0])), SessionScope(), 0, 1);
  }
  const Watch one(&links, 0, 0), other(&links, 0, 0);
  EXPECT_GE(one.EndOf(links[0]), 0);
  EXPECT_EQ(one.EndOf(links[0]), other.EndOf(links[0]));
  EXPECT_NE(one.EndOf(links[0]), one.EndOf(links[1])) << "a context watches each on its own";
  close(gone[0]);
  close(gone[1]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const Watch late(&links, 0, 0);
  EXPECT_EQ(late.EndOf(links[0]), -1) << "another process may have its number";
}

}  // namespace
}  // namespace rueda
