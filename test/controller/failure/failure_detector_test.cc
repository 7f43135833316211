#include "controller/failure/failure_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <set>

#include "controller/failure/process_verdicts.h"

namespace rueda {
namespace {

constexpr int kSize = 5;
constexpr Rank kSelf = 0;
constexpr Rank kNeighbour = 1;  // the others are on other hosts
constexpr Nanos kStart = 1'000;
constexpr Nanos kLate = kStart + 60 * kSecond;

class Board : public Verdicts {
 public:
  std::optional<std::string> HowItEnded(Rank rank) const override {
    const auto it = ends.find(rank);
    return it == ends.end() ? std::nullopt : std::optional(it->second);
  }
  Rank BlamedBy(Rank rank) const override {
    const auto it = blames.find(rank);
    return it == blames.end() ? -1 : it->second;
  }
  bool elastic() const override { return is_elastic; }
  std::map<Rank, std::string> ends;
  std::map<Rank, Rank> blames;
  bool is_elastic = false;
};

struct Fixture {
  Board board;
  FailureDetector detector{kSelf, kSize, {kSelf, kNeighbour}, &board};
  std::set<Rank> left;

  std::optional<Failure> Decide(Nanos now) {
    return detector.Decide([this](Rank rank) { return left.contains(rank); }, now);
  }
};

TEST(FailureDetector, AccusesNobodyWithoutReason) {
  Fixture test;
  test.board.ends[3] = "killed by signal 9 (SIGKILL)";
  EXPECT_FALSE(test.detector.suspects());
  EXPECT_FALSE(test.Decide(kLate).has_value());
}

TEST(FailureDetector, OfOneThatDiesNothingMoreIsToBeLearned) {
  for (const bool hung_up : {false, true}) {
    Fixture test;
    if (hung_up) test.detector.OnLinkLost(kNeighbour, "hung up", true, kStart);
    EXPECT_FALSE(test.Decide(kStart).has_value());
    test.detector.OnLost(kNeighbour, "killed by signal 9 (SIGKILL)", kStart);
    const std::optional<Failure> failure = test.Decide(kStart);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, kNeighbour);
    EXPECT_EQ(failure->cause, "killed by signal 9 (SIGKILL)");
    EXPECT_TRUE(failure->recoverable);
  }
}

TEST(FailureDetector, WhoWasSuspectedFirstComesFirst) {
  Fixture test;
  test.detector.OnLinkLost(3, "hung up", false, kStart);
  test.detector.OnLost(kNeighbour, "killed by signal 9 (SIGKILL)", kStart);
  EXPECT_EQ(test.Decide(kLate)->rank, 3);
}

TEST(FailureDetector, ABrokenConnectionWaitsForTheVerdict) {
  Fixture test;
  test.detector.OnLinkLost(2, "hung up", true, kStart);
  EXPECT_TRUE(test.detector.suspects_a_rank());
  EXPECT_FALSE(test.Decide(kStart).has_value());
  test.board.ends[2] = "killed by signal 9 (SIGKILL)";
  const std::optional<Failure> failure = test.Decide(kStart + 1);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->cause, "killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(failure->recoverable);
  EXPECT_FALSE(test.detector.suspects());
  EXPECT_FALSE(test.Decide(kLate).has_value()) << "one accusation, once";
}

TEST(FailureDetector, WithoutAVerdictItSaysWhatItSaw) {
  for (const bool same_host : {true, false}) {
    Fixture test;
    const Nanos patience =
        same_host ? FailureDetector::kVerdictPatience : FailureDetector::kRemoteVerdictPatience;
    test.detector.OnLinkLost(2, "hung up", same_host, kStart);
    EXPECT_FALSE(test.Decide(kStart + patience - 1).has_value());
    const std::optional<Failure> failure = test.Decide(kStart + patience);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, 2);
    EXPECT_EQ(failure->cause, "hung up");
  }
}

TEST(FailureDetector, InAnElasticJobTheCauseIsNotWaitedForLong) {
  for (const bool same_host : {true, false}) {
    Fixture test;
    test.board.is_elastic = true;
    test.detector.OnLinkLost(2, "hung up", same_host, kStart);
    EXPECT_FALSE(test.Decide(kStart + FailureDetector::kElasticVerdictPatience - 1).has_value());
    EXPECT_TRUE(test.Decide(kStart + FailureDetector::kElasticVerdictPatience).has_value());
  }
}

// Where the launcher is another's, the kernel knows, until the process's parent has asked.
TEST(FailureDetector, WhereNobodyWatchesTheKernelTellsHowAProcessOfThisHostEnded) {
  const struct {
    std::function<void()> end;
    const char* cause;
  } kCases[] = {{[] { raise(SIGTERM); }, "killed by signal 15 (SIGTERM)"},
                {[] { _exit(3); }, "exited with status 3"},
                {[] { _exit(0); }, "exited with status 0 without shutting down"}};
  for (const auto& each : kCases) {
    int go[2];
    ASSERT_EQ(pipe(go), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      char byte;
      (void)!read(go[0], &byte, 1);
      each.end();
      _exit(9);
    }
    std::vector<int> pids(kSize);
    pids[2] = pid;
    const ProcessVerdicts processes(pids);
    FailureDetector detector(kSelf, kSize, {kSelf, kNeighbour}, &processes);
    const auto nobody_left = [](Rank) { return false; };
    detector.OnLinkLost(2, "hung up", true, kStart);
    EXPECT_FALSE(detector.Decide(nobody_left, kStart).has_value()) << "it may be about to end";
    ASSERT_EQ(write(go[1], "g", 1), 1);
    std::optional<Failure> failure;
    while (!failure.has_value()) failure = detector.Decide(nobody_left, kStart);
    EXPECT_EQ(failure->rank, 2);
    EXPECT_EQ(failure->cause, each.cause);
    // Once it is reaped nobody knows, and there is nothing to wait for.
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    detector.OnLinkLost(2, "hung up", true, kStart);
    EXPECT_EQ(detector.Decide(nobody_left, kStart)->cause, "hung up");
    close(go[0]);
    close(go[1]);
  }
}

TEST(FailureDetector, WhereNobodyWatchesThereIsNothingToWaitForFromOtherHosts) {
  const ProcessVerdicts processes(std::vector<int>(kSize, 0));
  FailureDetector detector(kSelf, kSize, {kSelf, kNeighbour}, &processes);
  const auto nobody_left = [](Rank) { return false; };
  detector.OnLinkLost(2, "hung up", true, kStart);
  const std::optional<Failure> failure = detector.Decide(nobody_left, kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 2);
  // But of a connection that may be anybody's a link may tell more.
  detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_FALSE(detector.Decide(nobody_left, kStart).has_value());
  EXPECT_EQ(detector.Decide(nobody_left, kStart + FailureDetector::kCulpritPatience)->rank, -1);
}

TEST(FailureDetector, TheFirstRankThatIsSuspectedStays) {
  Fixture test;
  test.detector.OnLost(2, "silent", kStart);
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_EQ(test.Decide(kLate)->rank, 2);
}

TEST(FailureDetector, ALinkNamesWhomABackendsConnectionDoesNot) {
  Fixture test;
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_TRUE(test.detector.suspects());
  EXPECT_FALSE(test.detector.suspects_a_rank());
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  EXPECT_EQ(test.Decide(kLate)->rank, 3);
}

TEST(FailureDetector, AVerdictNamesWhomABackendsConnectionDoesNot) {
  Fixture test;
  test.detector.OnConnectionLost("reset by peer", kStart);
  test.board.ends[1] = "exited with status 0";  // it has shut down: that is no loss
  test.left = {1};
  EXPECT_FALSE(test.Decide(kStart).has_value());
  test.board.ends[4] = "killed by signal 11 (SIGSEGV)";
  const std::optional<Failure> failure = test.Decide(kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 4);
  EXPECT_EQ(failure->cause, "killed by signal 11 (SIGSEGV)");
}

TEST(FailureDetector, FollowsTheBlameToItsSource) {
  Fixture test;
  // 3 gave up because of 2, and that because of 4.
  test.board.ends = {{2, "exited with status 1"}, {3, "exited with status 1"}, {4, "killed"}};
  test.board.blames = {{2, 4}, {3, 2}};
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  const std::optional<Failure> failure = test.Decide(kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 4);
  EXPECT_EQ(failure->cause, "killed");
}

TEST(FailureDetector, BlameOfARankThatRunsIsNotFollowed) {
  Fixture test;
  test.board.blames = {{3, 2}};
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  EXPECT_EQ(test.Decide(kLate)->rank, 3);
}

TEST(FailureDetector, RanksThatBlameEachOtherEndTheSearch) {
  Fixture test;
  test.board.ends = {{2, "exited with status 1"}, {3, "exited with status 1"}};
  test.board.blames = {{2, 3}, {3, 2}};
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  EXPECT_TRUE(test.Decide(kStart).has_value());
}

TEST(FailureDetector, WhoTookThisRankForLostIsNamedWithThat) {
  Fixture test;
  test.board.ends = {{3, "exited with status 1"}};
  test.board.blames = {{3, kSelf}};
  test.detector.OnLinkLost(3, "hung up", true, kStart);
  const std::optional<Failure> failure = test.Decide(kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 3);
  EXPECT_EQ(failure->cause, "exited with status 1, having taken this rank for lost");
}

// As where the network carries words in one direction only.
TEST(FailureDetector, ANeighbourThatRunsIsNotLostThoughOthersTookItForLost) {
  Fixture test;
  test.board.ends = {{3, "exited with status 1"}};
  test.board.blames = {{3, kNeighbour}};
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_FALSE(test.Decide(kStart).has_value()) << "its verdict may be under way";
  const std::optional<Failure> failure = test.Decide(kStart + FailureDetector::kVerdictPatience);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 3);
  EXPECT_EQ(failure->cause, "exited with status 1, having taken rank 1 for lost");
}

TEST(FailureDetector, ANeighbourThatOthersMissedIsNamedIfItHasEnded) {
  Fixture test;
  test.board.ends = {{3, "exited with status 1"}};
  test.board.blames = {{3, kNeighbour}};
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_FALSE(test.Decide(kStart).has_value());
  test.board.ends[kNeighbour] = "killed";
  EXPECT_EQ(test.Decide(kStart + 1)->rank, kNeighbour);
}

TEST(FailureDetector, WithoutAVerdictOnWhomOthersBlameTheLastOfThemIsNamed) {
  Fixture test;
  test.board.ends = {{3, "exited with status 1"}};
  test.board.blames = {{3, 2}};
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_FALSE(test.Decide(kStart + FailureDetector::kCulpritPatience - 1).has_value());
  const std::optional<Failure> failure = test.Decide(kStart + FailureDetector::kCulpritPatience);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 3);
  EXPECT_EQ(failure->cause, "exited with status 1, having taken rank 2 for lost");
}

TEST(FailureDetector, ASilenceCountsForMoreThanWhomOthersBlame) {
  Fixture test;
  test.board.ends = {{3, "exited with status 1"}};
  test.board.blames = {{3, 2}};
  test.detector.OnConnectionLost("reset by peer", kStart);
  EXPECT_FALSE(test.Decide(kStart).has_value());
  EXPECT_FALSE(test.detector.suspects_a_rank()) << "it has seen none of them itself";
  test.detector.OnLost(2, "silent for 2.3 s", kStart);
  const std::optional<Failure> failure = test.Decide(kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->cause, "silent for 2.3 s");
}

TEST(FailureDetector, AnAccusationOfThisRankFallsBackOnTheAccuser) {
  Failure failure = {.rank = kSelf, .accuser = 3, .cause = "silent for 4.0 s"};
  EXPECT_TRUE(SwapAccuserAndAccused(kSelf, kSize, false, &failure));
  EXPECT_EQ(failure.rank, 3);
  EXPECT_EQ(failure.accuser, kSelf);
  EXPECT_EQ(failure.cause, "it took rank 0 for lost: silent for 4.0 s");
}

TEST(FailureDetector, AnAccusationStandsWhereItMayBeRight) {
  const Failure of_another = {.rank = 2, .accuser = 3};
  const Failure by_itself = {.rank = kSelf, .accuser = kSelf};
  const Failure by_nobody = {.rank = kSelf, .accuser = -1};
  const Failure by_no_rank = {.rank = kSelf, .accuser = kSize};
  for (Failure failure : {of_another, by_itself, by_nobody, by_no_rank}) {
    const Rank accused = failure.rank;
    EXPECT_FALSE(SwapAccuserAndAccused(kSelf, kSize, false, &failure));
    EXPECT_EQ(failure.rank, accused);
  }
  Failure while_away = {.rank = kSelf, .accuser = 3};
  EXPECT_FALSE(SwapAccuserAndAccused(kSelf, kSize, true, &while_away));
}

}  // namespace
}  // namespace rueda
