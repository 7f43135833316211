#include "controller/launcher/decide/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <functional>

namespace rueda {
namespace {

using Do = Supervisor::ActionKind;
using Action = Supervisor::Action;
using Kind = Supervisor::EventKind;
using Actions = std::vector<Action>;

constexpr Nanos kGrace = 5 * kSecond;

const Actions kNone = {};
const Actions kTerm = {{Do::kSignalRanks, SIGTERM}, {Do::kSignalGroups, SIGCONT}};
const Actions kInt = {{Do::kSignalRanks, SIGINT}, {Do::kSignalGroups, SIGCONT}};
const Actions kKill = {{Do::kSignalGroups, SIGKILL}, {Do::kSignalRest, SIGKILL}};
const Actions kReap = {{Do::kReap}};
const Actions kFinish = {{Do::kFinish}};
const Actions kTermRest = {{Do::kSignalRest, SIGTERM}, {Do::kSignalRest, SIGCONT}};
const Actions kKillRest = {{Do::kSignalRest, SIGKILL}};

Actions operator+(Actions a, const Actions& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

int Exit(int status) {
  return W_EXITCODE(status, 0);
}
int Death(int signal) {
  return W_EXITCODE(0, signal);
}

// For gtest's messages.
[[maybe_unused]] void PrintTo(const Action& action, std::ostream* out) {
  *out << "{" << static_cast<int>(action.kind) << ", " << action.signal << "}";
}

// A machine and its clock, in milliseconds.
struct Machine {
  explicit Machine(int ranks, int started = -1, bool elastic = false)
      : supervisor({ranks, kGrace, elastic}) {
    for (Rank rank = 0; rank < (started < 0 ? ranks : started); ++rank) {
      EXPECT_EQ(Step(0, {Kind::kRankStarted, rank}), kNone);
    }
  }
  Actions Step(int64_t at_ms, Supervisor::Event event) {
    Actions out;
    supervisor.Step(event, at_ms * kMillisecond, &out);
    return out;
  }
  Actions Ended(int64_t at_ms, Rank rank, int status) {
    return Step(at_ms, {Kind::kRankEnded, rank, status});
  }
  Actions Signal(int64_t at_ms, int signal) { return Step(at_ms, {Kind::kSignal, -1, signal}); }
  Actions NoMore(int64_t at_ms) { return Step(at_ms, {Kind::kNoMore}); }
  Actions Timer(int64_t at_ms) { return Step(at_ms, {Kind::kTimer}); }
  int64_t deadline_ms() const {
    return supervisor.deadline() == kForever ? -1 : supervisor.deadline() / kMillisecond;
  }
  Supervisor supervisor;
};

TEST(Supervisor, FinishesWithZeroWhenAllRanksDo) {
  Machine m(2);
  EXPECT_EQ(m.Ended(100, 1, 0), kNone);
  EXPECT_EQ(m.Ended(200, 0, 0), kReap);
  EXPECT_EQ(m.Step(200, {Kind::kAlone}), kFinish);
  EXPECT_TRUE(m.supervisor.finished());
  EXPECT_EQ(m.supervisor.exit_code(), 0);
  EXPECT_EQ(m.supervisor.first_failure(), -1);
}

TEST(Supervisor, DoesNotFinishBeforeAllRanksHaveStarted) {
  Machine m(3, 1);
  EXPECT_EQ(m.Ended(100, 0, 0), kNone);
  EXPECT_TRUE(m.supervisor.may_start());
  EXPECT_EQ(m.Step(101, {Kind::kRankStarted, 1}), kNone);
  EXPECT_EQ(m.Ended(102, 1, 0), kNone);
  EXPECT_EQ(m.Step(103, {Kind::kRankStarted, 2}), kNone);
  EXPECT_EQ(m.Ended(104, 2, 0), kReap);
}

TEST(Supervisor, TakesTheExitCodeOfTheFirstFailure) {
  const struct {
    int status;
    int code;
  } kCases[] = {{Exit(1), 1},          {Exit(77), 77},        {Exit(255), 255},
                {Death(SIGSEGV), 139}, {Death(SIGKILL), 137}, {Death(SIGABRT) | WCOREFLAG, 134}};
  for (const auto& each : kCases) {
    Machine m(3);
    EXPECT_EQ(m.Ended(100, 1, each.status), kNone) << "the others learn of it by themselves";
    EXPECT_FALSE(m.supervisor.may_start());
    EXPECT_EQ(m.deadline_ms(), 2'100);
    EXPECT_EQ(m.Ended(200, 0, Exit(9)), kNone);
    EXPECT_EQ(m.Timer(2'100), kTerm);
    EXPECT_EQ(m.deadline_ms(), 5'100);
    EXPECT_EQ(m.Ended(2'200, 2, Death(SIGTERM)), kReap);
    EXPECT_EQ(m.Step(2'200, {Kind::kAlone}), kFinish);
    EXPECT_EQ(m.supervisor.exit_code(), each.code);
    EXPECT_EQ(m.supervisor.first_failure(), 1);
    EXPECT_FALSE(m.supervisor.EndedByUs(0));
    EXPECT_FALSE(m.supervisor.EndedByUs(1));
    EXPECT_TRUE(m.supervisor.EndedByUs(2));
  }
}

TEST(Supervisor, TellsNobodyToEndWhenAllEndByThemselvesAfterAFailure) {
  Machine m(3);
  EXPECT_EQ(m.Ended(100, 1, Death(SIGKILL)), kNone);
  EXPECT_EQ(m.Ended(110, 0, Exit(1)), kNone);
  EXPECT_EQ(m.Ended(111, 2, Death(SIGTERM)), kReap);
  EXPECT_EQ(m.Step(111, {Kind::kAlone}), kFinish);
  EXPECT_EQ(m.supervisor.exit_code(), 137);
  EXPECT_FALSE(m.supervisor.EndedByUs(2)) << "no signal of ours";
}

TEST(Supervisor, LeavesHalfAShortGraceToThoseWhoLearnOfAFailure) {
  Supervisor brief({2, 400 * kMillisecond});
  Actions out;
  brief.Step({Kind::kRankStarted, 0}, 0, &out);
  brief.Step({Kind::kRankStarted, 1}, 0, &out);
  brief.Step({Kind::kRankEnded, 0, Exit(1)}, 0, &out);
  EXPECT_EQ(brief.deadline(), 200 * kMillisecond);

  Supervisor none({1, 0});
  none.Step({Kind::kRankStarted, 0}, 0, &out);
  none.Step({Kind::kSignal, -1, SIGTERM}, 0, &out);
  EXPECT_EQ(none.deadline(), 0);
}

TEST(Supervisor, KillsAfterTheGraceAndGivesUpSoonAfter) {
  Machine m(2);
  EXPECT_EQ(m.Ended(100, 0, Exit(1)), kNone);
  EXPECT_EQ(m.Timer(2'099), kNone);
  EXPECT_EQ(m.Timer(2'100), kTerm);
  EXPECT_EQ(m.Timer(5'099), kNone);
  EXPECT_EQ(m.Timer(5'100), kKill);
  EXPECT_LE(m.deadline_ms(), 100 + 5'000 + 2'000) << "grace + 2 s, whatever the children do";
  EXPECT_EQ(m.Timer(m.deadline_ms()), kFinish);
  EXPECT_EQ(m.supervisor.exit_code(), 1);
}

TEST(Supervisor, KnowsWhomItKilled) {
  Machine m(3);
  m.Ended(100, 0, Exit(1));
  m.Timer(2'100);
  m.Timer(5'100);
  EXPECT_EQ(m.Ended(5'101, 1, Death(SIGKILL)), kNone);
  EXPECT_EQ(m.Ended(5'102, 2, Death(SIGSEGV)), kReap);
  EXPECT_TRUE(m.supervisor.EndedByUs(1));
  EXPECT_FALSE(m.supervisor.EndedByUs(2));
}

TEST(Supervisor, DoesNotTakeTheFirstDeathForItsOwnDoing) {
  Machine m(2);
  m.Ended(100, 0, Death(SIGTERM));
  EXPECT_FALSE(m.supervisor.EndedByUs(0));
  EXPECT_EQ(m.supervisor.exit_code(), 143);
}

TEST(Supervisor, EndsTheJobWhenItIsToldTo) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Machine m(2);
    EXPECT_EQ(m.Signal(100, signal), kTerm);
    EXPECT_EQ(m.deadline_ms(), 5'100);
    EXPECT_EQ(m.Ended(200, 0, Exit(0)), kNone);
    EXPECT_EQ(m.Ended(201, 1, Death(SIGTERM)), kReap);
    EXPECT_EQ(m.Step(201, {Kind::kAlone}), kFinish);
    EXPECT_EQ(m.supervisor.exit_code(), 128 + signal);
    EXPECT_EQ(m.supervisor.first_failure(), -1);
  }
}

TEST(Supervisor, PassesCtrlCOnAndThenInsists) {
  Machine m(2);
  EXPECT_EQ(m.Signal(100, SIGINT), kInt);
  EXPECT_EQ(m.deadline_ms(), 2'600);
  EXPECT_EQ(m.Timer(2'600), kTerm);
  EXPECT_EQ(m.deadline_ms(), 5'100);
  EXPECT_EQ(m.Timer(5'100), kKill);
  EXPECT_EQ(m.supervisor.exit_code(), 130);
}

TEST(Supervisor, KillsAtTheSecondRequest) {
  for (const int first : {SIGINT, SIGTERM, SIGHUP}) {
    for (const int second : {SIGINT, SIGTERM, SIGHUP}) {
      Machine m(2);
      m.Signal(100, first);
      EXPECT_EQ(m.Signal(1'000, second), kKill);
      EXPECT_EQ(m.supervisor.exit_code(), 128 + first);
      EXPECT_EQ(m.Signal(1'500, second), kNone);
    }
  }
}

TEST(Supervisor, TakesTheSameSignalTwiceAtOnceForOneRequest) {
  Machine m(2);
  m.Signal(100, SIGTERM);
  EXPECT_EQ(m.Signal(101, SIGTERM), kNone);
  EXPECT_EQ(m.Signal(301, SIGTERM), kKill);
}

TEST(Supervisor, KillsAtARequestAfterAFailure) {
  Machine m(2);
  m.Ended(100, 0, Exit(3));
  EXPECT_EQ(m.Signal(150, SIGTERM), kNone) << "whoever ended rank 0 may have meant all of us";
  EXPECT_EQ(m.Signal(1'000, SIGINT), kKill);
  EXPECT_EQ(m.supervisor.exit_code(), 3);
}

TEST(Supervisor, PassesOtherSignalsOn) {
  Machine m(2);
  EXPECT_EQ(m.Signal(100, SIGUSR1), Actions({{Do::kSignalRanks, SIGUSR1}}));
  EXPECT_EQ(m.Signal(100, SIGUSR2), Actions({{Do::kSignalRanks, SIGUSR2}}));
  EXPECT_EQ(m.Signal(100, SIGTSTP), Actions({{Do::kSignalGroups, SIGTSTP}}));
  EXPECT_EQ(m.Signal(100, SIGCONT), Actions({{Do::kSignalGroups, SIGCONT}}));
  EXPECT_EQ(m.supervisor.exit_code(), 0);
  m.Signal(200, SIGTERM);
  EXPECT_EQ(m.Signal(900, SIGUSR1), kNone);
  EXPECT_EQ(m.Signal(900, SIGTSTP), kNone) << "would stop what is to end";
}

TEST(Supervisor, StartsNoMoreRanksOnceTheJobEnds) {
  Machine m(4, 2);
  EXPECT_EQ(m.Signal(100, SIGINT), kInt);
  EXPECT_FALSE(m.supervisor.may_start());
  EXPECT_EQ(m.Ended(101, 0, Death(SIGINT)), kNone);
  EXPECT_EQ(m.Ended(102, 1, Death(SIGINT)), kReap);
}

TEST(Supervisor, EndsAtOnceWhenNothingHasStarted) {
  Machine m(4, 0);
  EXPECT_EQ(m.Signal(100, SIGINT), kInt + kReap);
  EXPECT_EQ(m.Step(100, {Kind::kAlone}), kFinish);
  EXPECT_EQ(m.supervisor.exit_code(), 130);
}

TEST(Supervisor, EndsTheJobWhenARankCanNotBeStarted) {
  Machine m(4, 2);
  EXPECT_EQ(m.Step(100, {Kind::kStartFailed, 2, EAGAIN}), kTerm);
  EXPECT_FALSE(m.supervisor.may_start());
  m.Ended(200, 0, Death(SIGTERM));
  EXPECT_EQ(m.Ended(200, 1, Death(SIGTERM)), kReap);
  EXPECT_EQ(m.supervisor.exit_code(), 1);
  EXPECT_EQ(m.supervisor.first_failure(), -1);
}

TEST(Supervisor, KillsAtOnceWhenTheLauncherIsGone) {
  Machine m(2);
  EXPECT_EQ(m.Step(100, {Kind::kLauncherGone}), kKill);
  m.Ended(101, 0, Death(SIGKILL));
  EXPECT_EQ(m.Ended(101, 1, Death(SIGKILL)), kReap);
  EXPECT_EQ(m.Step(101, {Kind::kRestRemains}), kKillRest);
  EXPECT_EQ(m.Step(102, {Kind::kRestRemains}), kKillRest) << "what was the dead ones' is ours now";
  EXPECT_EQ(m.Step(103, {Kind::kAlone}), kFinish);

  Machine ending(2);
  ending.Ended(100, 0, Exit(1));
  EXPECT_EQ(ending.Step(101, {Kind::kLauncherGone}), kKill);

  Machine empty(2, 0);
  EXPECT_EQ(empty.Step(100, {Kind::kLauncherGone}), kKill + kReap);
}

TEST(Supervisor, EndsWhatOutlivesTheRanks) {
  Machine m(1);
  EXPECT_EQ(m.Ended(100, 0, 0), kReap);
  EXPECT_EQ(m.Step(100, {Kind::kRestRemains}), kTermRest);
  EXPECT_EQ(m.deadline_ms(), 1'100);
  EXPECT_EQ(m.Step(101, {Kind::kRestRemains}), kNone) << "being told once is enough";
  EXPECT_EQ(m.Timer(1'100), kKillRest);
  EXPECT_EQ(m.Step(1'101, {Kind::kRestRemains}), kKillRest);
  EXPECT_EQ(m.deadline_ms(), 2'600);
  EXPECT_EQ(m.Timer(2'600), kFinish);
  EXPECT_EQ(m.supervisor.exit_code(), 0);
}

TEST(Supervisor, EndsTheRestWithinTheGraceOfTheFailure) {
  Machine m(2);
  m.Ended(100, 0, Exit(1));
  m.Timer(2'100);
  EXPECT_EQ(m.Ended(4'800, 1, Death(SIGTERM)), kReap);
  EXPECT_EQ(m.Step(4'800, {Kind::kRestRemains}), kTermRest);
  EXPECT_EQ(m.deadline_ms(), 5'100);
  EXPECT_EQ(m.Timer(5'100), kKillRest);
  EXPECT_EQ(m.Timer(6'600), kFinish);
}

TEST(Supervisor, KillsTheRestAtARequest) {
  Machine m(1);
  m.Ended(100, 0, 0);
  m.Step(100, {Kind::kRestRemains});
  EXPECT_EQ(m.Signal(500, SIGINT), kKillRest);
  EXPECT_EQ(m.supervisor.exit_code(), 0) << "the ranks had done their work";
}

// An elastic job's, all of whose ranks have started.
Machine Elastic(int ranks) {
  return Machine(ranks, ranks, /*elastic=*/true);
}

TEST(ElasticSupervisor, EndsNothingWhenARankFails) {
  for (const int status : {Exit(0), Exit(7), Death(SIGKILL), Death(SIGSEGV)}) {
    Machine m = Elastic(2);
    EXPECT_EQ(m.Ended(100, 1, status), kNone);
    EXPECT_TRUE(m.supervisor.may_start());
    EXPECT_EQ(m.deadline_ms(), -1);
    EXPECT_EQ(m.Ended(200, 0, status), kNone) << "more may be started";
    EXPECT_EQ(m.deadline_ms(), -1);
    EXPECT_FALSE(m.supervisor.EndedByUs(0));
    EXPECT_EQ(m.supervisor.exit_code(), 0);
    EXPECT_EQ(m.supervisor.first_failure(), -1);
    EXPECT_FALSE(m.supervisor.finished());
  }
}

TEST(ElasticSupervisor, EndsNothingWhenARankCanNotBeStarted) {
  Machine m(2, 1, /*elastic=*/true);
  EXPECT_EQ(m.Step(100, {Kind::kStartFailed, 1, EAGAIN}), kNone);
  EXPECT_TRUE(m.supervisor.may_start());
  EXPECT_EQ(m.NoMore(200), kNone) << "rank 0 runs";
  EXPECT_EQ(m.Ended(300, 0, Exit(0)), kReap);
  EXPECT_EQ(m.supervisor.exit_code(), 0);
}

TEST(ElasticSupervisor, RanksCanBeStartedAgainInTheirPlace) {
  Machine m = Elastic(2);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(m.Ended(100, 0, Death(SIGKILL)), kNone);
    EXPECT_EQ(m.Step(101, {Kind::kRankStarted, 0}), kNone);
  }
  EXPECT_EQ(m.NoMore(200), kNone);
  EXPECT_EQ(m.Ended(300, 1, Exit(0)), kNone) << "rank 0 runs again";
  EXPECT_EQ(m.Ended(301, 0, Exit(0)), kReap);
}

TEST(ElasticSupervisor, FinishesWhenThereIsNoMoreAndNothingRuns) {
  Machine ended = Elastic(2);
  ended.Ended(100, 0, Exit(3));
  ended.Ended(100, 1, Exit(0));
  Machine empty(2, 0, /*elastic=*/true);
  for (Machine* m : {&ended, &empty}) {
    EXPECT_EQ(m->NoMore(200), kReap);
    EXPECT_FALSE(m->supervisor.may_start());
    EXPECT_TRUE(m->supervisor.sweeping());
    EXPECT_EQ(m->NoMore(201), kNone) << "once";
    EXPECT_EQ(m->Step(202, {Kind::kRestRemains}), kTermRest);
    EXPECT_EQ(m->Step(203, {Kind::kAlone}), kFinish);
    EXPECT_EQ(m->supervisor.exit_code(), 0);
  }
}

TEST(ElasticSupervisor, WaitsForThoseThatRunWhenThereIsNoMore) {
  Machine m = Elastic(3);
  EXPECT_EQ(m.NoMore(100), kNone);
  EXPECT_EQ(m.deadline_ms(), -1) << "for as long as they like";
  EXPECT_EQ(m.Ended(200, 2, Exit(0)), kNone);
  EXPECT_EQ(m.Ended(300, 0, Exit(5)), kNone) << "a failure ends nothing, still";
  EXPECT_EQ(m.deadline_ms(), -1);
  EXPECT_EQ(m.Ended(99'000, 1, Exit(0)), kReap);
  EXPECT_EQ(m.Step(99'001, {Kind::kAlone}), kFinish);
  EXPECT_EQ(m.supervisor.exit_code(), 0) << "what the job's is, the launcher knows";
  EXPECT_EQ(m.supervisor.first_failure(), -1);
}

TEST(ElasticSupervisor, EndsTheJobAtASignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Machine m = Elastic(2);
    m.Ended(50, 0, Exit(3));
    EXPECT_EQ(m.Signal(100, signal), signal == SIGINT ? kInt : kTerm);
    EXPECT_FALSE(m.supervisor.may_start());
    EXPECT_EQ(m.Timer(signal == SIGINT ? 2'600 : 5'100), signal == SIGINT ? kTerm : kKill);
    EXPECT_EQ(m.Ended(5'200, 1, Death(SIGTERM)), kReap) << "nobody says that there is no more";
    EXPECT_TRUE(m.supervisor.EndedByUs(1));
    EXPECT_EQ(m.Step(5'200, {Kind::kAlone}), kFinish);
    EXPECT_EQ(m.supervisor.exit_code(), 128 + signal);

    Machine empty(2, 0, /*elastic=*/true);
    EXPECT_EQ(empty.Signal(100, signal), (signal == SIGINT ? kInt : kTerm) + kReap);
    EXPECT_EQ(empty.NoMore(101), kNone);
    EXPECT_EQ(empty.supervisor.exit_code(), 128 + signal);

    Machine closing = Elastic(1);
    closing.NoMore(50);
    EXPECT_EQ(closing.Signal(100, signal), signal == SIGINT ? kInt : kTerm);
    EXPECT_EQ(closing.Signal(1'000, SIGTERM), kKill);
  }
  Machine m = Elastic(1);
  EXPECT_EQ(m.Signal(100, SIGUSR1), Actions({{Do::kSignalRanks, SIGUSR1}}));
  EXPECT_TRUE(m.supervisor.may_start());
}

TEST(ElasticSupervisor, EndsTheJobWhenItHasFailedElsewhere) {
  Machine m = Elastic(2);
  m.Ended(50, 0, Exit(7));
  EXPECT_EQ(m.Step(100, {Kind::kFailedElsewhere}), kNone) << "it is noticed without us";
  EXPECT_FALSE(m.supervisor.may_start());
  EXPECT_EQ(m.Timer(2'100), kTerm);
  EXPECT_EQ(m.Timer(5'100), kKill);
  EXPECT_EQ(m.Ended(5'101, 1, Death(SIGKILL)), kReap);
  EXPECT_EQ(m.supervisor.exit_code(), 1);

  Machine empty(2, 0, /*elastic=*/true);
  EXPECT_EQ(empty.Step(100, {Kind::kFailedElsewhere}), kReap);
}

TEST(ElasticSupervisor, KillsAtOnceWhenTheLauncherIsGone) {
  Machine m = Elastic(2);
  m.Ended(50, 0, Exit(7));
  EXPECT_EQ(m.Step(100, {Kind::kLauncherGone}), kKill);
  EXPECT_FALSE(m.supervisor.may_start());
  EXPECT_EQ(m.Ended(101, 1, Death(SIGKILL)), kReap);
  EXPECT_TRUE(m.supervisor.EndedByUs(1));

  Machine empty(2, 0, /*elastic=*/true);
  EXPECT_EQ(empty.Step(100, {Kind::kLauncherGone}), kKill + kReap);
}

// Whatever happens in whatever order, the machine finishes within grace + 2 s of the first cause,
// says so once, and asks for nothing afterwards.
TEST(Supervisor, AlwaysFinishesInTime) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    unsigned state = seed * 2'654'435'761u + 1;
    const auto random = [&](unsigned n) {
      state = state * 1'664'525u + 1'013'904'223u;
      return (state >> 16) % n;
    };
    const int ranks = 1 + static_cast<int>(random(4));
    const bool elastic = seed % 2 == 1;
    Machine m(ranks, 0, elastic);
    std::vector<bool> alive;
    int64_t now = 0, cause = -1;
    int finishes = 0;
    bool may_reap = false;
    const std::function<void(const Actions&)> look = [&](const Actions& actions) {
      for (const Action& action : actions) {
        finishes += action.kind == Do::kFinish;
        if (action.kind != Do::kReap) continue;
        may_reap = true;
        look(m.Step(now, {random(2) == 0 ? Kind::kAlone : Kind::kRestRemains}));
      }
    };
    for (int step = 0; step < 200 && !m.supervisor.finished(); ++step) {
      now += random(700);
      if (m.deadline_ms() >= 0 && m.deadline_ms() <= now) {
        now = m.deadline_ms();
        look(m.Timer(now));
        continue;
      }
      const unsigned what = random(10);
      if (m.supervisor.may_start() && static_cast<int>(alive.size()) < ranks) {
        look(m.Step(now, {Kind::kRankStarted, static_cast<Rank>(alive.size())}));
        alive.push_back(true);
      } else if (what < 4) {
        const size_t rank = random(static_cast<unsigned>(ranks));
        if (rank >= alive.size()) continue;
        if (!alive[rank]) {
          if (!elastic || !m.supervisor.may_start()) continue;
          look(m.Step(now, {Kind::kRankStarted, static_cast<Rank>(rank)}));
          alive[rank] = true;
          continue;
        }
        alive[rank] = false;
        const int status = random(2) == 0 ? 0 : Exit(3);
        if (status != 0 && cause < 0 && !elastic) cause = now;
        look(m.Ended(now, static_cast<Rank>(rank), status));
      } else if (what < 6) {
        const int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT};
        const int signal = kSignals[random(6)];
        if (signal != SIGUSR1 && signal != SIGTSTP && signal != SIGCONT && cause < 0) cause = now;
        look(m.Signal(now, signal));
      } else if (what == 6 && may_reap) {
        look(m.Step(now, {Kind::kRestRemains}));
      } else if (what == 7 && may_reap) {
        look(m.Step(now, {Kind::kAlone}));
      } else if (what == 8 && random(10) == 0) {
        if (cause < 0) cause = now;
        look(m.Step(now, {Kind::kLauncherGone}));
      } else if (what == 9 && elastic && random(10) == 0) {
        look(m.NoMore(now));
      }
      if (cause >= 0 && !m.supervisor.finished() && now > cause) {
        ASSERT_GE(m.deadline_ms(), 0) << "seed " << seed;
        ASSERT_LE(m.deadline_ms(), cause + 7'000) << "seed " << seed;
      }
    }
    while (!m.supervisor.finished() && m.deadline_ms() >= 0) {
      now = std::max(now, m.deadline_ms());
      look(m.Timer(now));
    }
    if (cause >= 0) {
      ASSERT_TRUE(m.supervisor.finished()) << "seed " << seed;
    }
    ASSERT_EQ(finishes, m.supervisor.finished() ? 1 : 0) << "seed " << seed;
    if (m.supervisor.finished()) {
      ASSERT_EQ(m.Timer(now + 1), kNone);
    }
  }
}

}  // namespace
}  // namespace rueda
