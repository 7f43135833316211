// Deadlocks: when the ranks' words make one, who is asked, and what ends. PURE
#include <gmock/gmock.h>

#include "test/controller/negotiation/job.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CoordinatorOptions WithALimit(int world_size) {
  CoordinatorOptions options = Job::Options(world_size);
  options.deadlock_timeout = 600 * kSecond;
  return options;
}

// Each rank waits for something that the other did not submit.
class Deadlock : public ::testing::Test {
 protected:
  Deadlock() {
    job_.Announce(0, Named("a"), /*waited=*/true);
    job_.Announce(1, Named("b"), /*waited=*/true);
  }
  void Say(Rank rank, Blocked::Level level, uint16_t question = 0) {
    job_.member(rank).Announce(Blocked{level, question});
    job_.Flush(rank);
  }
  std::vector<StillBlocked> Questions(Rank rank) {
    std::vector<StillBlocked> questions;
    for (const Action& action : job_.actions(rank)) {
      if (const auto* asked = std::get_if<StillBlocked>(&action)) questions.push_back(*asked);
    }
    job_.actions(rank).clear();
    return questions;
  }
  std::vector<std::string> Reports(Rank rank, Nanos now) {
    std::vector<std::string> reports;
    std::vector<Expire> expired;
    job_.coordinator(rank).CheckDeadlines(now, &reports, &expired, rank);
    return reports;
  }

  Job job_{WithALimit(2)};
};

TEST_F(Deadlock, IsReportedOnceByTheRankThatMadeItOne) {
  EXPECT_THAT(Reports(0, kSecond), IsEmpty()) << "waits alone are none";
  job_.now = kSecond;
  Say(0, Blocked::kForMoments);
  EXPECT_THAT(Reports(0, 2 * kSecond), IsEmpty()) << "not all are blocked";
  job_.now = 3 * kSecond;
  Say(1, Blocked::kForMoments);
  EXPECT_THAT(Reports(1, 3 * kSecond), IsEmpty());
  EXPECT_THAT(Reports(0, 4 * kSecond), IsEmpty()) << "it is the other's to say";
  const std::vector<std::string> reports = Reports(1, 3 * kSecond + kSecond / 10);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0], AllOf(HasSubstr("every rank waits"),
                                HasSubstr("rank 0 waits for allreduce 'a', which rank 1 did not "
                                          "submit; rank 1 waits for allreduce 'b', which rank 0 "
                                          "did not submit"),
                                HasSubstr("ended after 600.0 s")));
  EXPECT_THAT(Reports(1, 5 * kSecond), IsEmpty());
  Say(1, Blocked::kNot);
  Say(1, Blocked::kForMoments);
  EXPECT_THAT(Reports(1, 6 * kSecond), IsEmpty()) << "the same ranks wait for the same";
}

TEST_F(Deadlock, IsNoneAnyMoreWhenARankTakesItsWordBack) {
  Say(0, Blocked::kForMoments);
  Say(1, Blocked::kForMoments);
  Say(0, Blocked::kNot);
  EXPECT_THAT(Reports(1, kSecond), IsEmpty());
  Say(1, Blocked::kForTheLimit);
  Say(0, Blocked::kForMoments);
  EXPECT_THAT(Questions(0), IsEmpty()) << "rank 0 has not been blocked for the limit";
}

TEST_F(Deadlock, EndsTheSameOperationsWithTheSameWordsWhenAllSayThatItIsStillOne) {
  Say(0, Blocked::kForTheLimit);
  EXPECT_THAT(Questions(1), IsEmpty());
  Say(1, Blocked::kForTheLimit);
  for (const Rank rank : {0, 1}) {
    const std::vector<StillBlocked> questions = Questions(rank);
    ASSERT_THAT(questions, SizeIs(1));
    EXPECT_EQ(questions[0].question, 1);
  }
  Say(1, Blocked::kStill, 1);
  EXPECT_THAT(job_.Failures(1), IsEmpty()) << "rank 0 has not answered; it may be stopped";
  Say(0, Blocked::kStill, 1);
  const char* const mine[] = {"allreduce 'a' was ended", "allreduce 'b' was ended"};
  std::string words[2];
  for (const Rank rank : {0, 1}) {
    const std::vector<Rejected> failures = job_.Failures(rank);
    ASSERT_THAT(failures, SizeIs(1));
    EXPECT_TRUE(absl::IsCancelled(failures[0].status));
    const std::string message(failures[0].status.message());
    EXPECT_THAT(message, AllOf(HasSubstr(mine[rank]), HasSubstr("rank 0 waits for allreduce 'a'"),
                               HasSubstr("rank 1 waits for allreduce 'b'")));
    words[rank] = message.substr(message.find("was ended"));
  }
  EXPECT_EQ(words[0], words[1]);
  EXPECT_EQ(job_.coordinator(0).pending(), 0);
  job_.Announce(0, Named("c"));
  job_.Announce(1, Named("c"));
  EXPECT_THAT(job_.Batches(0), SizeIs(1)) << "the job goes on";
}

TEST_F(Deadlock, AnAnswerToAnOlderQuestionIsNone) {
  Say(0, Blocked::kForTheLimit);
  Say(1, Blocked::kForTheLimit);
  Say(0, Blocked::kStill, 1);
  Say(1, Blocked::kNot);
  Say(1, Blocked::kForTheLimit);
  EXPECT_EQ(Questions(0).back().question, 2);
  Say(1, Blocked::kStill, 2);
  Say(0, Blocked::kStill, 1);
  EXPECT_THAT(job_.Failures(0), IsEmpty()) << "rank 0 said so before rank 1 went on";
  Say(0, Blocked::kStill, 2);
  EXPECT_THAT(job_.Failures(0), SizeIs(1));
}

TEST_F(Deadlock, IsThatOfThoseWhoHaveNotLeft) {
  Job job(WithALimit(3));
  job.Announce(0, Pair("m", 0, 1), /*waited=*/true);
  job.Announce(1, Pair("n", 0, 1), /*waited=*/true);
  const auto say = [&](Rank rank, Blocked::Level level, uint16_t question = 0) {
    job.member(rank).Announce(Blocked{level, question});
    job.Flush(rank);
  };
  say(0, Blocked::kForTheLimit);
  say(1, Blocked::kForTheLimit);
  EXPECT_THAT(job.actions(0), IsEmpty()) << "rank 2 computes";
  job.member(2).AnnounceLeave();
  job.Flush(2);
  say(0, Blocked::kStill, 1);
  say(1, Blocked::kStill, 1);
  EXPECT_THAT(job.Failures(0), SizeIs(1));
  EXPECT_THAT(job.Failures(1), SizeIs(1));
}

TEST_F(Deadlock, AJoinThatIsPartOfItEndsToo) {
  Job job(WithALimit(2));
  job.Announce(0, MakeSpec(kWorldSet, "", OfKind(OpKind::kJoin)), /*waited=*/true);
  job.Announce(1, Pair("m", 0, 1), /*waited=*/true);
  for (const Blocked::Level level : {Blocked::kForTheLimit, Blocked::kStill}) {
    for (const Rank rank : {0, 1}) {
      job.member(rank).Announce(Blocked{level, 1});
      job.Flush(rank);
    }
  }
  EXPECT_THAT(job.Failures(0), SizeIs(1));
  EXPECT_THAT(job.Failures(1), SizeIs(1));
  EXPECT_EQ(job.coordinator(0).pending(), 0);
}

// What a host holds back, rank 0 must know to judge.
TEST_F(OnAHost, ABlockedRankMakesItPassOnWhatItHolds) {
  Step(2, Named("w"), /*now=*/0);
  EXPECT_THAT(PassedOn(), IsEmpty());
  Step({2, Blocked{Blocked::kForMoments}});
  ASSERT_THAT(out_, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<Announced>(out_[0].what));
  EXPECT_TRUE(std::holds_alternative<Blocked>(out_[1].what));
}

}  // namespace
}  // namespace rueda::testing
