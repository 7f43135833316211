// One board, as the launcher has it and as ranks of the job have it.
#include "controller/failure/verdict_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "controller/protocol/lost.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

using Board = std::unique_ptr<VerdictBoard>;

// The same board as `board`, as a rank has it that is told of these slots.
Board OpenedBy(const VerdictBoard& board, std::vector<int32_t> slots) {
  return *VerdictBoard::Open(board.fd(), board.bell_fd(), std::move(slots));
}

TEST(VerdictBoard, GoesByRanksWhereTheJobIsNotElastic) {
  const Board launcher = *VerdictBoard::Create(3);
  const Board rank = OpenedBy(*launcher, {});
  launcher->Write(2, {77, W_EXITCODE(0, SIGKILL)});
  ASSERT_TRUE(rank->Read(2).has_value());
  EXPECT_EQ(rank->Read(2)->pid, 77);
  EXPECT_EQ(rank->Read(2)->wait_status, W_EXITCODE(0, SIGKILL));
  for (const Rank other : {-1, 0, 1, 3, 1'000'000}) EXPECT_FALSE(rank->Read(other).has_value());
  rank->Blame(1, 2);
  EXPECT_EQ(launcher->BlamedBy(1), 2);
  EXPECT_EQ(launcher->BlamedBy(0), -1);
  rank->Blame(1, -1);
  EXPECT_EQ(launcher->BlamedBy(1), -1);
}

TEST(VerdictBoard, FindsTheVerdictOfARankInItsSlot) {
  const Board launcher = *VerdictBoard::Create(8);
  const Board board = OpenedBy(*launcher, {6, 0, 3});
  launcher->Write(6, {60, W_EXITCODE(3, 0)});
  launcher->Write(1, {10, W_EXITCODE(9, 0)});  // is not in the membership
  ASSERT_TRUE(board->Read(0).has_value());
  EXPECT_EQ(board->Read(0)->pid, 60);
  EXPECT_THAT(board->HowItEnded(0).value_or(""), HasSubstr("3"));
  EXPECT_FALSE(board->HowItEnded(1).has_value());
  EXPECT_FALSE(board->HowItEnded(2).has_value());
  launcher->Write(3, {30, 0});
  EXPECT_EQ(board->Read(2)->pid, 30);
  launcher->Write(7, {70, 0});
  for (const Rank none : {-1, 3, 6, 7}) EXPECT_FALSE(board->Read(none).has_value()) << none;
}

TEST(VerdictBoard, KnowsTheProgramOfARankByItsSlot) {
  const Board launcher = *VerdictBoard::Create(4);
  const Board own = OpenedBy(*launcher, {3, 1});
  own->TakePart(0);
  EXPECT_EQ(launcher->ProgramOf(3), getpid());
  EXPECT_EQ(launcher->ProgramOf(0), 0);
  EXPECT_EQ(own->ProgramOf(0), getpid());
  EXPECT_EQ(own->ProgramOf(1), 0);
  // After others have gone, the same process in the same slot has another rank.
  const Board later = OpenedBy(*launcher, {1, 3});
  EXPECT_EQ(later->ProgramOf(1), getpid());
  EXPECT_EQ(later->ProgramOf(0), 0);
  own->TakePart(2);  // of nobody
  own->TakePart(-1);
  for (const Slot slot : {0, 1, 2}) EXPECT_EQ(launcher->ProgramOf(slot), 0) << slot;
}

TEST(VerdictBoard, BlamesASlotAndNamesARank) {
  const Board launcher = *VerdictBoard::Create(8);
  const Board board = OpenedBy(*launcher, {5, 2, 7});
  board->Blame(1, 2);
  EXPECT_EQ(board->BlamedBy(1), 2);
  EXPECT_EQ(launcher->BlamedBy(2), 7) << "for the launcher ranks are slots";
  EXPECT_EQ(board->BlamedBy(0), -1);
  EXPECT_EQ(board->BlamedBy(2), -1);
  launcher->Blame(7, 5);  // as another host's launcher tells of it
  EXPECT_EQ(board->BlamedBy(2), 0);
  board->Blame(0, 0);
  EXPECT_EQ(launcher->BlamedBy(5), 5);
}

TEST(VerdictBoard, ACulpritWhoIsInNoSlotOfTheMembershipIsNobody) {
  const Board launcher = *VerdictBoard::Create(8);
  const Board board = OpenedBy(*launcher, {5, 2});
  for (const Slot stranger : {0, 1, 6, 7}) {
    launcher->Blame(2, stranger);
    EXPECT_EQ(launcher->BlamedBy(2), stranger);
    EXPECT_EQ(board->BlamedBy(1), -1) << stranger;
  }
  board->Blame(0, 2);  // no such rank
  EXPECT_EQ(launcher->BlamedBy(5), -1);
}

TEST(VerdictBoard, AStartNamesTheOneWhoseFaultItIs) {
  const Board launcher = *VerdictBoard::Create(8);
  const Board board = OpenedBy(*launcher, {5, 2});
  EXPECT_TRUE(board->CheckThere(0).ok());
  EXPECT_TRUE(board->CheckThere(7).ok()) << "nobody";
  launcher->Write(5, {50, W_EXITCODE(1, 0)});
  EXPECT_THAT(std::string(board->CheckThere(0).message()), HasSubstr("rank 0 (pid 50)"));
  EXPECT_TRUE(board->CheckThere(1).ok());
  launcher->Blame(5, 2);
  EXPECT_THAT(std::string(board->CheckThere(0).message()), HasSubstr("rank 0 (pid 50)"))
      << "rank 1 lives";
  launcher->Write(2, {20, W_EXITCODE(0, SIGKILL)});
  EXPECT_THAT(std::string(board->CheckThere(0).message()), HasSubstr("rank 1 (pid 20)"));
  launcher->Write(6, {60, 0});
  launcher->Blame(5, 6);
  EXPECT_THAT(std::string(board->CheckThere(0).message()), HasSubstr("rank 0 (pid 50)"))
      << "who is in slot 6 has no rank";
}

TEST(VerdictBoard, ASlotIsClearedForTheNextProcess) {
  const Board launcher = *VerdictBoard::Create(4);
  const Board board = OpenedBy(*launcher, {2, 1});
  board->TakePart(0);
  board->TakePart(1);
  board->Blame(0, 1);
  board->Blame(1, 1);
  launcher->Write(2, {20, 9});
  launcher->Write(1, {10, 9});
  launcher->Clear(2);
  EXPECT_FALSE(board->Read(0).has_value());
  EXPECT_EQ(board->ProgramOf(0), 0);
  EXPECT_EQ(board->BlamedBy(0), -1);
  EXPECT_TRUE(board->Read(1).has_value()) << "no other slot";
  EXPECT_EQ(board->ProgramOf(1), getpid());
  EXPECT_EQ(board->BlamedBy(1), 1);
  const absl::Status gone = board->CheckThere(0);
  EXPECT_EQ(LostRank(gone), 0) << "another process is in its slot: " << gone;
  EXPECT_TRUE(OpenedBy(*launcher, {2, 1})->CheckThere(0).ok()) << "whose start this one is";
  launcher->Clear(-1);  // none
  launcher->Clear(1'000'000);
  launcher->Write(2, {21, 0});
  EXPECT_EQ(board->Read(0)->pid, 21);
}

}  // namespace
}  // namespace rueda
