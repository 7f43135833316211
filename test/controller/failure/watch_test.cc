#include "controller/failure/watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "controller/failure/verdict_board.h"
#include "core/base/process.h"

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

// A process that takes its time to free its memory, and says when it has it.
pid_t StartHeavy(int there[2]) {
  EXPECT_EQ(pipe(there), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<char> memory(size_t{512} << 20, 1);
    (void)!write(there[1], memory.data(), 1);
    pause();
  }
  char byte;
  EXPECT_EQ(read(there[0], &byte, 1), 1);
  return child;
}

// Whether it was seen before its end, which a busy machine may not have let us.
bool SeesItDie() {
  int there[2];
  const pid_t child = StartHeavy(there);
  std::vector<RoleLink> links(1);
  links[0].role = LinkRole::kNeighbour;
  links[0].pid = child;
  links[0].link = Link::Client(UniqueFd(there[0]), SessionScope(), 0, 7);
  Watch watch(&links, 0, 0);
  const bool waiting = true;
  Nanos now = 0;
  EXPECT_EQ(watch.look_who_dies(!waiting), kForever);
  EXPECT_EQ(watch.look_who_dies(waiting), now);
  EXPECT_FALSE(watch.WhoDies(now).has_value());
  EXPECT_GT(watch.look_who_dies(waiting), now);
  kill(child, SIGKILL);
  std::optional<Watch::Lost> lost;
  while (!lost.has_value() && !HasEnded(child)) {
    now = watch.look_who_dies(waiting);
    lost = watch.WhoDies(now);
  }
  siginfo_t info;
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(watch.WhoDies(now).has_value()) << "the connection has told";
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(there[1]);
  if (!lost.has_value()) return false;
  EXPECT_EQ(lost->rank, 7);
  EXPECT_EQ(lost->how, "killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(lost->has_just_ended);
  return true;
}

TEST(Watch, WhoWaitsSeesANeighborDie) {
  int trials = 1;
  while (trials < 20 && !SeesItDie()) ++trials;
  EXPECT_LT(trials, 20);
}

}  // namespace
}  // namespace rueda
