// The authority over an elastic job's memberships: by hand, and against seeded worlds in which
// processes die, come, dawdle and leave.
#include "controller/membership/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using Kind = Authority::ActionKind;

class Job {
 public:
  explicit Job(Authority::Options options = {2, 4}) : authority_(options) {}

  void Start(std::vector<Slot> slots) {
    for (const Slot slot : slots) authority_.OnStarted(slot, slot / 2, now);
  }
  void Ask(Slot slot, uint64_t membership, uint64_t commits = 0, Slot blames = kNoSlot) {
    authority_.OnAsk(slot, {membership, commits, blames}, now, &actions);
  }
  void End(Slot slot, bool well = false) { authority_.OnEnded(slot, well, now, &actions); }
  void Die(Slot slot) { authority_.OnDying(slot, now, &actions); }
  void Return(Slot slot) { authority_.OnReturned(slot, now, &actions); }
  void Keep(std::vector<Slot> slots) {
    for (const Slot slot : slots) authority_.OnKeeps(slot, &actions);
  }
  void LoseHost(int host) { authority_.OnHostGone(host, now, &actions); }
  void Withdraw(Slot slot) { authority_.OnWithdrawn(slot, now, &actions); }
  // To the deadline, which there is.
  void Wait() {
    ASSERT_NE(authority_.deadline(), kForever);
    now = authority_.deadline();
    authority_.OnTime(now, &actions);
  }
  // What has been done since the last time.
  std::vector<std::string> Done() {
    static const std::map<Kind, std::string> kWords = {
        {Kind::kCommit, "commit"},           {Kind::kRepeat, "repeat"},
        {Kind::kTellOfChange, "tell"},       {Kind::kDismiss, "dismiss"},
        {Kind::kRemove, "remove"},           {Kind::kEndJob, "end"},
        {Kind::kNothingKept, "nothing kept"}};
    std::vector<std::string> words;
    for (const Authority::Action& action : actions) {
      std::string word = kWords.at(action.kind);
      if (action.slot != kNoSlot) word += " " + std::to_string(action.slot);
      if (action.added) word += " added";
      if (!action.leaving.empty()) word += " leaving";
      for (const Slot slot : action.leaving) word += " " + std::to_string(slot);
      if (action.kind == Kind::kEndJob) word += ": " + action.text;
      words.push_back(word);
    }
    actions.clear();
    return words;
  }
  const MembershipRecord& record() const { return authority_.record(); }
  const Authority& authority() const { return authority_; }

  // Membership 1 of slots 0 to `count` - 1.
  void Begin(int count) {
    for (Slot slot = 0; slot < count; ++slot) authority_.OnStarted(slot, slot / 2, now);
    for (Slot slot = 0; slot < count; ++slot) Ask(slot, 0);
    ASSERT_EQ(Done(), std::vector<std::string>{"commit"});
  }

  Nanos now = kSecond;
  Authority::Actions actions;

 private:
  Authority authority_;
};

TEST(Authority, TheFirstMembershipIsOfAllThatWereStarted) {
  Job job;
  job.Start({0, 1, 2});
  job.Ask(2, 0);
  job.Ask(0, 0);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.Ask(1, 0);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_EQ(job.record().number, 1u);
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 2));
  EXPECT_EQ(job.record().survivors, 0);
  EXPECT_EQ(job.record().source, 0);
}

TEST(Authority, TheFirstMembershipDoesNotWaitForWhoHasEnded) {
  Job job;
  job.Start({0, 1, 2});
  job.Ask(0, 0);
  job.Ask(1, 0);
  job.End(2);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
}

TEST(Authority, SurvivorsKeepTheirOrderAndTheNewestStateIsTheSource) {
  Job job;
  job.Begin(4);
  job.End(0);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.Ask(3, 1, 7);
  job.Ask(1, 1, 6);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.Ask(2, 1, 7);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_EQ(job.record().number, 2u);
  EXPECT_THAT(job.record().slots, ElementsAre(1, 2, 3));
  EXPECT_EQ(job.record().survivors, 3);
  EXPECT_EQ(job.record().source, 1);  // slot 2
}

TEST(Authority, ANewcomerJoinsAtACommitAndIsNeverTheSource) {
  Job job;
  job.Begin(2);
  job.Start({2});
  job.Ask(2, 0, 99);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  job.Ask(0, 1, 3);
  job.Ask(1, 1, 3);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 2));
  EXPECT_EQ(job.record().survivors, 2);
  EXPECT_EQ(job.record().source, 0);
}

TEST(Authority, NobodyWaitsForAProcessThatIsBeingStarted) {
  Job job;
  job.Begin(3);
  job.End(1);
  job.Start({1});  // in the slot of the one that is gone
  job.Ask(0, 1);
  job.Ask(2, 1);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 2));
  job.Ask(1, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  EXPECT_FALSE(job.authority().IsMember(1));
}

TEST(Authority, ASecondDeathInARegroupStartsTheNext) {
  Job job;
  job.Begin(4);
  job.End(3);
  job.Ask(0, 1);
  job.Ask(1, 1);
  job.End(2);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.End(1);  // before it has begun
  job.Ask(0, 2);
  EXPECT_THAT(job.Done(), ElementsAre());  // one is fewer than two
  job.Start({1});
  job.Ask(1, 0);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
  EXPECT_EQ(job.record().survivors, 1);
}

TEST(Authority, AMemberThatDoesNotAskIsRemovedAndWaitedForUntilItHasEnded) {
  Job job;
  job.Begin(4);
  job.End(0);
  job.Ask(1, 1);
  job.now += kSecond;
  job.Ask(2, 1);
  EXPECT_EQ(job.authority().deadline(), 11 * kSecond);
  job.Wait();
  EXPECT_THAT(job.Done(), ElementsAre("remove 3"));
  job.End(3);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(1, 2));
}

TEST(Authority, AMemberThatIsRemovedAndOutOfReachIsNotWaitedForLong) {
  Job job;
  job.Begin(3);
  job.Ask(0, 1);
  job.Ask(1, 1);
  job.Wait();
  EXPECT_THAT(job.Done(), ElementsAre("remove 2"));
  job.Wait();
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.Ask(2, 1);  // it comes to itself
  EXPECT_THAT(job.Done(), ElementsAre("dismiss 2"));
}

TEST(Authority, WhoIsTakenForLostByTheOthersIsNotWaitedForLong) {
  Job job;
  job.Begin(3);
  job.Ask(0, 1, 0, 2);
  job.Ask(1, 1, 0, 2);
  const Nanos asked = job.now;
  job.Wait();
  EXPECT_EQ(job.now, asked + 300 * kMillisecond);
  EXPECT_THAT(job.Done(), ElementsAre("remove 2"));
}

TEST(Authority, TheEndOfOneThatDiesIsNotWaitedFor) {
  Job job;
  job.Begin(3);
  job.Ask(0, 1, 0, 2);
  job.Die(2);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.Ask(1, 1, 0, 2);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
  job.End(2);
  EXPECT_THAT(job.Done(), ElementsAre()) << "no member has ended";
  job.Start({2});
  job.Ask(2, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
}

TEST(Authority, NewcomersAloneAreNoMembership) {
  Job job({1, 4});
  job.Begin(3);
  job.Start({3});
  job.Ask(3, 0);
  job.Ask(0, 1, 0, 1);
  job.Die(1);
  job.End(0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  job.End(2);
  EXPECT_THAT(job.Done(), ElementsAre("end: all ranks of membership 1 have failed"));
  EXPECT_TRUE(job.authority().over());
}

TEST(Authority, OneThatCameAndDidNotGetTheStateIsNobodyToGoOnFrom) {
  for (const uint64_t commits : {0, 5}) {
    Job job({1, 4});
    job.Begin(2);
    job.End(1);
    job.Ask(0, 1, 5);
    EXPECT_THAT(job.Done(), ElementsAre("commit"));
    job.Start({2});
    job.Ask(2, 0);
    job.Ask(0, 2, 5);
    EXPECT_THAT(job.Done(), ElementsAre("tell added", "commit"));
    job.End(0);
    job.Ask(2, 3, commits);
    if (commits == 5) {
      EXPECT_THAT(job.Done(), ElementsAre("commit"));
    } else {
      EXPECT_THAT(job.Done(), ElementsAre("end: all ranks of membership 3 that had the state "
                                          "have failed"));
    }
  }
}

TEST(Authority, TheLastMemberThatDiesEndsTheJob) {
  Job job({2, 4});
  job.Begin(2);
  job.End(1);
  job.Ask(0, 1, 0, 1);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.Start({2, 3});
  job.Die(0);
  EXPECT_THAT(job.Done(), ElementsAre("end: all ranks of membership 1 have failed"));
}

TEST(Authority, WhoDiesBlamesNobodyAnyMore) {
  Job job;
  job.Begin(4);
  job.Ask(1, 1, 0, 3);
  job.Die(1);
  job.End(3);
  job.Ask(0, 1, 0, 3);
  job.Ask(2, 1, 0, 3);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.Start({3});
  job.Ask(3, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  for (const Slot slot : {0, 2}) job.Ask(slot, 2);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.Ask(0, 3);
  job.Ask(2, 3);
  const Nanos asked = job.now;
  job.Wait();
  EXPECT_EQ(job.now, asked + 10 * kSecond) << "nobody who lives blames it";
}

TEST(Authority, OneThatHasAskedAndDiesIsNoMember) {
  Job job;
  job.Begin(4);
  job.Ask(1, 1, 0, 3);
  job.Ask(2, 1, 0, 3);
  job.Die(3);
  job.Die(2);
  job.Ask(0, 1, 0, 3);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
}

TEST(Authority, AHostThatIsTakenForLostIsNotWaitedForLong) {
  Job job({2, 8});
  job.Begin(6);
  for (const Slot slot : {0, 1, 2, 3}) job.Ask(slot, 1, 0, 4);  // by the host's first
  const Nanos asked = job.now;
  job.Wait();
  EXPECT_EQ(job.now, asked + 500 * kMillisecond);
  EXPECT_THAT(job.Done(), ElementsAre("remove 4", "remove 5"));
}

TEST(Authority, ItsNeighborIsWaitedForAsLongAsOthersIfOneOfTheHostAsks) {
  Job job({2, 8});
  job.Begin(5);
  job.Start({5});
  job.Ask(5, 0);  // a newcomer on the host of 4: the launcher reaches it
  job.Done();
  for (const Slot slot : {0, 1, 2}) job.Ask(slot, 1, 0, 4);
  EXPECT_GE(job.authority().deadline(), job.now + 10 * kSecond) << "3 is on another host";
}

TEST(Authority, WhoIsTakenForLostAndAsksStays) {
  Job job;
  job.Begin(3);
  job.Ask(0, 1, 0, 2);
  job.Ask(1, 1, 0, 2);
  job.Ask(2, 1, 0, 0);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 2));
}

// Each takes the other for lost, and the launcher reaches both.
TEST(Authority, AHostThatAnotherDoesNotReachIsRemoved) {
  Job job({2, 8});
  job.Begin(6);
  const auto ask = [&](uint64_t membership, uint64_t commits) {
    for (const Slot slot : {0, 1}) job.Ask(slot, membership, commits);
    for (const Slot slot : {2, 3}) job.Ask(slot, membership, commits, 4);
    for (const Slot slot : {4, 5}) job.Ask(slot, membership, commits, 2);
  };
  ask(1, 0);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  ask(2, 1);  // they have come on
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  ask(3, 1);
  EXPECT_THAT(job.Done(), ElementsAre("remove 4", "remove 5"));
  job.End(4);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.End(5);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 2, 3));
}

TEST(Authority, AHostThatDoesNotReachTheFirstMemberIsRemoved) {
  Job job({2, 8});
  job.Begin(4);
  for (const uint64_t membership : {1, 2}) {
    for (const Slot slot : {0, 1}) job.Ask(slot, membership);
    for (const Slot slot : {2, 3}) job.Ask(slot, membership, 0, 0);
  }
  EXPECT_THAT(job.Done(), ElementsAre("commit", "remove 2", "remove 3"));
}

TEST(Authority, MembershipsThatFailForAnotherReasonGoOn) {
  Job job({2, 8});
  job.Begin(4);
  for (uint64_t membership = 1; membership < 9; ++membership) {
    for (const Slot slot : {0, 1, 2, 3}) job.Ask(slot, membership);
  }
  EXPECT_THAT(job.Done(), testing::Each("commit"));
}

TEST(Authority, WhoIsWithdrawnLeavesInOrder) {
  Job job;
  job.Begin(3);
  job.Withdraw(1);
  EXPECT_THAT(job.Done(), ElementsAre("tell leaving 1"));
  for (const Slot slot : {0, 1, 2}) job.Ask(slot, 1, 5);
  EXPECT_THAT(job.Done(), ElementsAre("dismiss 1", "commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 2));
}

TEST(Authority, OneWhoseSlotIsThereAgainStays) {
  Job job({2, 4});
  job.Begin(2);
  job.Withdraw(1);
  EXPECT_THAT(job.Done(), ElementsAre("tell leaving 1"));
  job.Ask(0, 1);
  job.Ask(1, 1);
  EXPECT_THAT(job.Done(), ElementsAre()) << "too few would stay";
  EXPECT_TRUE(job.authority().is_short());
  job.Return(1);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_FALSE(job.authority().is_short());
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
}

TEST(Authority, NobodyWaitsForMoreWhenNobodyIsStartedAnyMore) {
  Job job({2, 4});
  job.Begin(3);
  job.End(2, /*well=*/true);
  job.Ask(0, 1);
  job.Ask(1, 1);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.End(1, /*well=*/true);
  job.Ask(0, 2);
  EXPECT_THAT(job.Done(),
              ElementsAre("end: a rank has ended with status 0, and of the others there is 1 "
                          "process, fewer than the 2 of --min-np"));
}

TEST(Authority, NobodyLeavesWithAMembershipThatOthersDidNotExpect) {
  Job job;
  job.Begin(4);
  job.Withdraw(1);
  job.Withdraw(1);
  job.Withdraw(3);
  EXPECT_THAT(job.Done(), ElementsAre("tell leaving 1", "tell leaving 1 3"));
  job.End(2);  // so that they ask before they have handed over anything
  for (const Slot slot : {0, 1, 3}) job.Ask(slot, 1, 5);
  EXPECT_THAT(job.Done(), ElementsAre("commit", "tell leaving 1 3"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 3));
  job.Ask(0, 2, 6);
  job.Ask(3, 2, 6);
  job.Withdraw(0);  // nobody has been told
  job.Ask(1, 2, 6);
  EXPECT_THAT(job.Done(), ElementsAre());
}

TEST(Authority, OneStaysUntilAnotherHasTheState) {
  Job job({2, 2});
  job.Begin(2);
  job.Withdraw(0);
  EXPECT_THAT(job.Done(), ElementsAre("tell leaving 0"));
  job.Withdraw(1);
  EXPECT_THAT(job.Done(), ElementsAre()) << "nobody would be left";
  job.Start({2, 3});
  job.Ask(2, 0);
  job.Ask(3, 0);
  for (const Slot slot : {0, 1}) job.Ask(slot, 1, 5);
  EXPECT_THAT(job.Done(), ElementsAre("dismiss 0", "commit", "tell leaving 1"));
  EXPECT_THAT(job.record().slots, ElementsAre(1, 2));
  EXPECT_EQ(job.record().survivors, 1);
}

TEST(Authority, AllHostsAreOthers) {
  Job job({2, 4});
  job.Begin(2);
  for (const Slot slot : {0, 1}) job.Withdraw(slot);
  (void)job.Done();
  job.Start({2, 3});
  for (const Slot slot : {2, 3}) job.Ask(slot, 0);
  for (const Slot slot : {0, 1}) job.Ask(slot, 1, 5);
  EXPECT_EQ(job.record().survivors, 1);
  ASSERT_EQ(job.record().slots.size(), 3u);
  const Slot last = job.record().slots[0];
  EXPECT_EQ(job.record().source, 0) << "who has it";
  (void)job.Done();
  job.Ask(last, 2, 6);
  for (const Slot slot : {2, 3}) job.Ask(slot, 2, 6);
  EXPECT_THAT(job.record().slots, ElementsAre(2, 3));
  EXPECT_EQ(job.record().survivors, 2);
}

TEST(Authority, TwoChangesBeforeACommitBothCount) {
  Job job;
  job.Begin(2);
  job.Start({2, 3});
  job.Ask(2, 0);
  job.Withdraw(1);
  job.Ask(3, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added", "tell added leaving 1"));
  job.Ask(0, 1);
  job.Ask(1, 1);
  EXPECT_THAT(job.Done(), ElementsAre("dismiss 1", "commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 2, 3));
}

TEST(Authority, ASpareWaitsUntilThereIsRoom) {
  Job job({2, 2});
  job.Begin(2);
  job.Start({2});
  job.Ask(2, 0);
  EXPECT_THAT(job.Done(), ElementsAre());
  job.End(0);
  job.Ask(1, 1);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(1, 2));
  EXPECT_EQ(job.record().survivors, 1);
}

TEST(Authority, TooFewForTooLongEndTheJob) {
  Job job({2, 4, 10 * kSecond, 60 * kSecond});
  job.Begin(2);
  job.End(0);
  job.Ask(1, 1);
  const Nanos since = job.now;
  job.Wait();
  EXPECT_EQ(job.now, since + 60 * kSecond);
  EXPECT_THAT(job.Done(), ElementsAre("end: for 60.0 s there was 1 process, fewer than the 2 of "
                                      "--min-np"));
}

TEST(Authority, EndsWhenAllMembersHaveFailed) {
  Job job;
  job.Begin(2);
  job.Start({2});
  job.Ask(2, 0);
  job.Done();
  job.End(0);
  job.End(1);
  EXPECT_THAT(job.Done(), ElementsAre("end: all ranks of membership 1 have failed"));
  EXPECT_TRUE(job.authority().over());
}

TEST(Authority, EndsWhenAllHaveFailedBeforeTheyMet) {
  Job job;
  job.Start({0, 1});
  job.End(0);
  job.End(1);
  EXPECT_THAT(job.Done(), ElementsAre("end: all processes have failed before they met"));
}

TEST(Authority, EndsWithoutAWordWhenAllAreDone) {
  Job job;
  job.Begin(2);
  job.Start({2});
  job.Ask(2, 0);
  job.Done();
  job.End(0, true);
  EXPECT_TRUE(job.authority().finishing());
  job.End(1, true);
  EXPECT_THAT(job.Done(), ElementsAre("dismiss 2"));
  EXPECT_TRUE(job.authority().over());
}

TEST(Authority, ResetsHaveALimit) {
  Job job({1, 4, 10 * kSecond, 60 * kSecond, 1});
  job.Begin(3);
  job.End(0);
  job.Ask(1, 1);
  job.Ask(2, 1);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  job.End(1);
  job.Ask(2, 2);
  EXPECT_THAT(job.Done(), ElementsAre("end: more than 1 reset (--reset-limit)"));
}

TEST(Authority, WhoAsksTwiceGetsTheRecordTwice) {
  Job job;
  job.Begin(2);
  job.Ask(1, 0);
  EXPECT_THAT(job.Done(), ElementsAre("repeat 1"));
}

// Of membership 1 of slots 0 to 3, those of host 1 are lost, and their host keeps what they had.
Job WithALostHost(Authority::Options options) {
  Job job(options);
  job.Begin(4);
  job.Keep({0, 1, 2, 3});
  job.End(2);
  job.End(3);
  return job;
}

TEST(Authority, OnePlaceIsForAHostThatKeepsWhatItsRanksHad) {
  Job job = WithALostHost({2, 4});
  job.Start({4, 5});  // elsewhere
  job.Ask(4, 0);
  job.Ask(5, 0);
  job.Ask(0, 1);
  job.Ask(1, 1);
  EXPECT_THAT(job.Done(), ElementsAre("tell added", "commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 4)) << "5 would have the last place";
  EXPECT_EQ(job.record().keeping, 1);
  EXPECT_THAT(job.authority().Awaited(), ElementsAre(1));
  job.Start({2});
  job.Ask(2, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  for (const Slot slot : {0, 1, 4}) job.Ask(slot, 2);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 4, 2));
  EXPECT_EQ(job.record().keeping, 0);
  job.End(2);  // before it has anything: its host has it yet
  for (const Slot slot : {0, 1, 4}) job.Ask(slot, 3);
  EXPECT_EQ(job.record().keeping, 1);
  job.Start({3});
  job.Ask(3, 0);
  for (const Slot slot : {0, 1, 4}) job.Ask(slot, 4);
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 4, 3));
  job.Keep({3});
  job.Done();
  job.LoseHost(1);
  job.End(3);
  for (const Slot slot : {0, 1, 4}) job.Ask(slot, 5);
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 4, 5)) << "there is nothing to wait for";
  EXPECT_EQ(job.record().keeping, 0);
}

TEST(Authority, NobodyElseMakesUpForAHostThatKeeps) {
  Job job = WithALostHost({4, 4});
  job.Start({4, 5});
  for (const Slot slot : {4, 5}) job.Ask(slot, 0);
  for (const Slot slot : {0, 1}) job.Ask(slot, 1);
  EXPECT_THAT(job.Done(), ElementsAre("tell added")) << "three would be too few";
  job.Start({3});
  job.Ask(3, 0);
  EXPECT_THAT(job.Done(), ElementsAre("commit"));
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 3, 4));
}

TEST(Authority, OthersHaveThePlaceOnceTheHostIsGone) {
  for (const bool is_lost : {false, true}) {
    Job job = WithALostHost({4, 4});
    job.Start({4, 5});
    for (const Slot slot : {4, 5}) job.Ask(slot, 0);
    for (const Slot slot : {0, 1}) job.Ask(slot, 1);
    job.Done();
    if (is_lost) {
      job.LoseHost(1);
    } else {
      job.Wait();
    }
    EXPECT_THAT(job.Done(), ElementsAre("commit"));
    EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 4, 5));
    EXPECT_EQ(job.record().keeping, 0);
  }
}

TEST(Authority, AHostWithARankThatLivesIsNotWaitedFor) {
  Job job({2, 4});
  job.Begin(4);
  job.Keep({0, 1, 2, 3});
  job.End(3);
  for (const Slot slot : {0, 1, 2}) job.Ask(slot, 1);
  EXPECT_EQ(job.record().keeping, 0);
  EXPECT_THAT(job.authority().Awaited(), ElementsAre());
}

TEST(Authority, WhatEndsTheWaitForAHost) {
  for (const bool is_lost : {false, true}) {
    Job job = WithALostHost({2, 4, 10 * kSecond, 60 * kSecond});
    const Nanos until = job.now + 60 * kSecond;
    for (const Slot slot : {0, 1}) job.Ask(slot, 1);
    job.Done();
    EXPECT_EQ(job.record().keeping, 1);
    if (is_lost) {
      job.LoseHost(1);
    } else {
      job.Wait();
      EXPECT_EQ(job.now, until);
    }
    EXPECT_THAT(job.Done(), ElementsAre("nothing kept"));
    EXPECT_EQ(job.record().keeping, 0);
    EXPECT_EQ(job.authority().deadline(), kForever);
  }
}

TEST(Authority, NobodyLeavesWhileAHostIsWaitedFor) {
  Job job = WithALostHost({1, 6});
  job.Withdraw(1);
  EXPECT_THAT(job.Done(), ElementsAre());
  for (const Slot slot : {0, 1}) job.Ask(slot, 1);
  EXPECT_THAT(job.Done(), ElementsAre("commit")) << "what it has alone may be needed";
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1));
  job.Start({2});
  job.Ask(2, 0);
  EXPECT_THAT(job.Done(), ElementsAre("tell added"));
  for (const Slot slot : {0, 1}) job.Ask(slot, 2);
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1, 2));
  EXPECT_THAT(job.Done(), ElementsAre("commit", "tell leaving 1")) << "when all have the state";
  job.End(2);
  for (const Slot slot : {0, 1}) job.Ask(slot, 3);
  EXPECT_THAT(job.record().slots, ElementsAre(0, 1)) << "they do not have it";
}

TEST(Authority, WhatANewcomerKeepsBeforeItIsInCountsNot) {
  Job job = WithALostHost({2, 4});
  job.Start({2});
  job.Keep({2});
  for (const Slot slot : {0, 1}) job.Ask(slot, 1);
  EXPECT_EQ(job.record().keeping, 1);
}

// A world of processes that follow the rules, on a clock of its own. One lineage of memberships,
// equal views, nobody waits for ever, nobody who lives and asks is left out, `min` is kept.
class World {
 public:
  World(uint64_t seed, Authority::Options options)
      : random_(seed), options_(options), authority_(options) {}

  void Run() {
    for (Slot slot = 0; slot < options_.max; ++slot) Start(slot);
    for (int i = 0; i < 400 && !authority_.over(); ++i) {
      Advance();
      Mischief();
    }
    // From here on nothing goes wrong any more: the job has to come to work.
    calm_ = true;
    const bool nobody_runs = std::all_of(
        processes_.begin(), processes_.end(),
        [](const auto& each) { return each.second.membership == 0 || each.second.stopped(); });
    for (auto& [slot, process] : processes_) {
      if (nobody_runs) process.stopped_since = kForever;  // nobody could notice
    }
    const auto is_done = [&] { return AllAtWork() && authority_.record().keeping == 0; };
    for (int i = 0; i < 3'000 && !authority_.over() && !is_done(); ++i) Advance();
    if (authority_.over()) return;
    EXPECT_EQ(authority_.record().keeping, 0) << Text();
    ASSERT_TRUE(AllAtWork()) << "membership " << authority_.record().number << " at " << now_
                             << ::testing::PrintToString(authority_.record().slots) << Text();
  }

 private:
  struct Process {
    bool waits = false;  // for an answer
    uint64_t membership = 0;
    uint64_t commits = 0;
    Nanos asks_at = kForever;
    Nanos stopped_since = kForever;
    bool withdrawn = false;
    bool told_to_leave = false;  // all were
    bool keeps = false;
    Slot blames = kNoSlot;

    bool stopped() const { return stopped_since != kForever; }
  };

  std::string Text() const {
    std::string text;
    for (const auto& [slot, process] : processes_) {
      text += "; slot " + std::to_string(slot) + " of membership " +
              std::to_string(process.membership) + (process.waits ? ", waits" : "") +
              (process.stopped() ? ", stopped" : "") + (process.withdrawn ? ", withdrawn" : "");
    }
    return text;
  }
  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  Nanos Moment(Nanos most) { return static_cast<Nanos>(random_() % static_cast<uint64_t>(most)); }

  void Start(Slot slot) {
    processes_[slot] = Process();
    processes_[slot].asks_at = now_ + Moment(3 * kSecond);
    authority_.OnStarted(slot, slot / 2, now_);
  }

  void Die(Slot slot, bool well = false) {
    lost_some_ |= processes_[slot].membership > 0 && !well;
    // One that waits may be in the next membership all the same, if nobody has seen it by then.
    if (processes_[slot].keeps && !well) kept_[slot / 2] = now_ + options_.shortage_timeout;
    const bool slowly = !well && !processes_[slot].waits && Chance(30);
    processes_.erase(slot);
    if (slowly) {
      dying_[slot] = now_ + Moment(kSecond);
    } else {
      End(slot, well);
    }
    // The others notice, sooner or later.
    for (auto& [other, process] : processes_) {
      if (process.membership > 0 && !process.waits) Notice(&process);
    }
  }
  void End(Slot slot, bool well) {
    Authority::Actions actions;
    authority_.OnEnded(slot, well, now_, &actions);
    Do(actions);
  }
  void EndTheDying() {
    std::vector<Slot> ended;
    for (const auto& [slot, at] : dying_) {
      if (at <= now_) ended.push_back(slot);
    }
    for (const Slot slot : ended) {
      dying_.erase(slot);
      End(slot, /*well=*/false);
    }
  }
  bool IsFree(Slot slot) const { return !processes_.contains(slot) && !dying_.contains(slot); }
  void Notice(Process* process) {
    process->asks_at = std::min(process->asks_at, now_ + Moment(100 * kMillisecond));
  }

  // As heartbeats do.
  void NoticeTheStopped() {
    for (const auto& [slot, stopped] : processes_) {
      if (stopped.membership == 0 || stopped.waits || !stopped.stopped()) continue;
      if (now_ - stopped.stopped_since < 4 * kSecond) continue;
      for (auto& [other, process] : processes_) {
        if (other == slot || process.membership == 0 || process.waits) continue;
        process.blames = slot;
        Notice(&process);
      }
    }
  }

  void Advance() {
    Nanos next = std::min(authority_.deadline(), now_ + 500 * kMillisecond);
    for (const auto& [slot, process] : processes_) {
      if (!process.stopped()) next = std::min(next, std::max(process.asks_at, now_));
    }
    for (const auto& [slot, at] : dying_) next = std::min(next, std::max(at, now_));
    now_ = next;
    EndTheDying();
    NoticeTheStopped();
    NoticeTheCut();
    Authority::Actions actions;
    if (now_ >= authority_.deadline()) authority_.OnTime(now_, &actions);
    Do(std::exchange(actions, {}));
    std::vector<Slot> asking;
    for (auto& [slot, process] : processes_) {
      if (!process.stopped() && process.asks_at <= now_) asking.push_back(slot);
    }
    if (!asking.empty()) {  // whoever looks after them sees it when one speaks
      for (const auto& [slot, at] : dying_) authority_.OnDying(slot, now_, &actions);
      Do(std::exchange(actions, {}));
      std::erase_if(asking, [&](Slot slot) { return !processes_.contains(slot); });
    }
    for (const Slot slot : asking) {
      Process& process = processes_[slot];
      process.asks_at = kForever;
      process.waits = true;
      authority_.OnAsk(slot, {process.membership, process.commits, process.blames}, now_, &actions);
    }
    Do(actions);
    Keep();
    // Who waits for another's part goes on as soon as one has come.
    if (authority_.record().keeping > 0 && change_due_ && AllAtWork()) {
      for (auto& [slot, process] : processes_) {
        if (process.membership > 0) Notice(&process);
      }
    }
    if (calm_ && !authority_.finishing()) {
      for (Slot slot = 0; slot < options_.max; ++slot) {
        if (IsFree(slot) && !IsCut(slot)) Start(slot);  // their hosts cool down
      }
    }
  }

  // Members, once all have the state.
  void Keep() {
    std::vector<Slot> keeping;
    for (auto& [slot, process] : processes_) {
      const bool is_at_work = process.membership > 0 && process.membership == number_ &&
                              !process.waits && !process.stopped();
      if (is_at_work && !process.keeps && (calm_ || Chance(30))) keeping.push_back(slot);
    }
    Authority::Actions actions;
    for (const Slot slot : keeping) {
      processes_[slot].keeps = true;
      kept_.erase(slot / 2);
      authority_.OnKeeps(slot, &actions);
    }
    Do(actions);
  }
  // Whether the host keeps something that no rank of these has.
  bool IsAwaited(int host, const std::vector<Slot>& members) const {
    const auto it = kept_.find(host);
    return it != kept_.end() && now_ < it->second &&
           std::none_of(members.begin(), members.end(),
                        [&](Slot slot) { return slot / 2 == host; });
  }

  void Mischief() {
    if (processes_.empty()) return;
    const auto pick =
        std::next(processes_.begin(), static_cast<int>(random_() % processes_.size()));
    if (Chance(5)) return Die(pick->first);
    if (Chance(3)) pick->second.stopped_since = pick->second.stopped() ? kForever : now_;
    if (Chance(1) && !pick->second.withdrawn) {
      pick->second.withdrawn = true;
      Authority::Actions actions;
      authority_.OnWithdrawn(pick->first, now_, &actions);
      return Do(actions);
    }
    if (Chance(3) && pick->second.withdrawn && pick->second.membership > 0) {
      pick->second.withdrawn = false;
      Authority::Actions actions;
      authority_.OnReturned(pick->first, now_, &actions);
      return Do(actions);
    }
    if (Chance(2)) cut_ = cut_ < 0 ? static_cast<int>(random_() % 4) : -1;
    if (Chance(20)) {
      const Slot slot = static_cast<Slot>(random_() % static_cast<uint64_t>(options_.max));
      if (IsFree(slot)) Start(slot);
    }
    // A commit of all, where they are in step.
    if (Chance(30) && AllAtWork()) {
      for (auto& [slot, process] : processes_) process.commits += process.membership > 0;
      if (change_due_) {
        for (auto& [slot, process] : processes_) {
          if (process.membership > 0 && !process.waits) Notice(&process);
        }
      }
    }
  }

  bool IsCut(Slot slot) const { return cut_ >= 0 && (slot / 2 == cut_ || slot / 2 == cut_ + 1); }
  // The hosts `cut_` and the next one don't reach each other.
  void NoticeTheCut() {
    for (auto& [slot, process] : processes_) {
      if (!IsCut(slot) || process.waits || process.stopped()) continue;
      for (const Slot other : slots_) {
        if (!IsCut(other) || other / 2 == slot / 2 || process.membership != number_) continue;
        process.blames = other;
        Notice(&process);
      }
    }
  }

  bool AllAtWork() const {
    const MembershipRecord& record = authority_.record();
    return record.number > 0 && std::all_of(record.slots.begin(), record.slots.end(), [&](Slot s) {
             const auto it = processes_.find(s);
             return it != processes_.end() && !it->second.waits && !it->second.stopped() &&
                    it->second.membership == record.number && it->second.asks_at == kForever;
           });
  }

  void Do(const Authority::Actions& actions) {
    for (const Authority::Action& action : actions) {
      switch (action.kind) {
        case Kind::kCommit:
          OnCommit();
          break;
        case Kind::kRepeat:
          ADD_FAILURE() << "nobody asks twice here";
          break;
        case Kind::kTellOfChange:
          change_due_ = true;
          for (const Slot slot : action.leaving) {
            ASSERT_TRUE(processes_.contains(slot));
            processes_[slot].told_to_leave = true;
          }
          break;
        case Kind::kDismiss:
          if (processes_.contains(action.slot)) Die(action.slot, true);
          break;
        case Kind::kRemove:
          if (dying_.contains(action.slot) || authority_.over()) break;
          EXPECT_TRUE(processes_.contains(action.slot));
          EXPECT_EQ(processes_[action.slot].waits, action.text.starts_with("in 2 memberships"))
              << "it has asked, and can't be reached";
          Die(action.slot);
          break;
        case Kind::kNothingKept:
          EXPECT_EQ(authority_.record().keeping, 0);
          break;
        case Kind::kEndJob:
          break;
      }
    }
  }

  void OnCommit() {
    const MembershipRecord& record = authority_.record();
    EXPECT_EQ(record.number, number_ + 1) << "one lineage";
    EXPECT_GE(static_cast<int>(record.slots.size()), options_.min);
    EXPECT_LE(static_cast<int>(record.slots.size()), options_.max);
    std::vector<Slot> survivors;
    const auto end = record.slots.begin() + record.survivors;
    for (const Slot slot : slots_) {
      if (!processes_.contains(slot)) continue;
      const Process& process = processes_[slot];
      if (process.membership == 0 || !process.waits) continue;
      const bool may_leave = !lost_some_ && process.withdrawn && process.told_to_leave;
      const bool is_in = std::find(record.slots.begin(), end, slot) != end;
      if (may_leave && is_in) {
        EXPECT_FALSE(kept_.empty()) << "nobody waits for what it has";
      }
      if (!may_leave || is_in) survivors.push_back(slot);
    }
    int keeping = 0;
    for (const auto& [host, until] : kept_) {
      if (!IsAwaited(host, survivors) || authority_.finishing()) continue;
      const bool one_came =
          std::any_of(processes_.begin(), processes_.end(), [&](const auto& each) {
            return each.first / 2 == host && each.second.waits && !each.second.withdrawn;
          });
      EXPECT_NE(one_came, IsAwaited(host, record.slots)) << "one of its next ranks has a place";
      keeping += one_came ? 0 : 1;
    }
    EXPECT_EQ(record.keeping, keeping);
    EXPECT_LE(static_cast<int>(record.slots.size()) + keeping, options_.max);
    ASSERT_EQ(static_cast<int>(survivors.size()), record.survivors);
    EXPECT_TRUE(std::equal(survivors.begin(), survivors.end(), record.slots.begin()))
        << "survivors keep their order, and have the lowest ranks";
    uint64_t newest = 0;
    for (const Slot slot : survivors) newest = std::max(newest, processes_[slot].commits);
    if (record.number > 1) {
      EXPECT_GT(record.survivors, 0) << "newcomers alone have no state";
    }
    if (record.survivors > 0) {
      ASSERT_LT(record.source, record.survivors);
      EXPECT_EQ(processes_[record.slots[record.source]].commits, newest) << "no commit is lost";
    }
    for (const Slot slot : record.slots) {
      ASSERT_TRUE(processes_.contains(slot));
      EXPECT_TRUE(processes_[slot].waits) << "nobody is in who has not asked";
      processes_[slot].waits = false;
      processes_[slot].blames = kNoSlot;
      processes_[slot].told_to_leave = false;
      processes_[slot].membership = record.number;
      processes_[slot].commits = newest;
    }
    for (const auto& [slot, process] : processes_) {
      EXPECT_TRUE(process.membership == 0 || process.membership == record.number ||
                  process.withdrawn)
          << "slot " << slot << " is in an old membership, and lives";
    }
    number_ = record.number;
    slots_ = record.slots;
    change_due_ = lost_some_ = false;
  }

  std::mt19937_64 random_;
  const Authority::Options options_;
  Authority authority_;
  std::map<Slot, Process> processes_;
  std::map<Slot, Nanos> dying_;  // and when each has ended
  std::map<int, Nanos> kept_;    // by host: until when what its lost ranks had alone is waited for
  Nanos now_ = kSecond;
  uint64_t number_ = 0;
  std::vector<Slot> slots_;
  bool change_due_ = false;
  bool lost_some_ = false;  // since the last commit
  bool calm_ = false;
  int cut_ = -1;  // a host; -1: all reach each other
};

TEST(Authority, SeededWorlds) {
  for (uint64_t seed = 0; seed < 20'000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int max = 1 + static_cast<int>(random() % 8);
    const int min = 1 + static_cast<int>(random() % static_cast<uint64_t>(max));
    World(seed, {min, max, 10 * kSecond, 600 * kSecond}).Run();
  }
}

}  // namespace
}  // namespace rueda
