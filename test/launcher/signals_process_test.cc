// Signals to ruedarun, and its terminal.
#include <gtest/gtest.h>
#include <unistd.h>

#include "test/launcher/job.h"

namespace rueda {
namespace {

const std::string kHelper = LAUNCHER_HELPER;

constexpr char kStay[] = "echo pid $$; exec sleep 1000";
// A shell that stays while its traps run.
constexpr char kLoop[] = "echo ready; while :; do sleep 1000 & wait; done";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> Shell(int ranks, const std::string& script,
                               const std::string& grace = "1000") {
  return {"-np", std::to_string(ranks), "--grace-seconds", grace, "sh", "-c", script};
}

void AwaitReady(Job* job, int ranks) {
  for (int i = 0; i < ranks; ++i) job->Await("ready");
}

TEST(Signals, OneCtrlCInterruptsTheRanks) {
  Job job(Shell(2, std::string("trap 'echo interrupted; exit 0' INT; ") + kLoop));
  AwaitReady(&job, 2);
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 130);
  EXPECT_TRUE(Contains(job.out(), "[0] interrupted\n")) << job.out();
  EXPECT_TRUE(Contains(job.out(), "[1] interrupted\n")) << job.out();
  EXPECT_EQ(job.err(), "") << "the ranks ended well";
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Signals, OneCtrlCEndsRanksThatDoNotCare) {
  Job job(Shell(2, kStay));
  job.AwaitPid("pid ");
  job.AwaitPid("pid ");
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 130);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGINT) after SIGINT")) << job.err();
}

TEST(Signals, CtrlCIsFollowedBySigterm) {
  Job job(Shell(2, "trap '' INT; echo ready; exec sleep 1000", "0.4"));
  AwaitReady(&job, 2);
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(Bound(2'400 * kMillisecond)), 130);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGTERM) after SIGINT")) << job.err();
}

TEST(Signals, SecondCtrlCKills) {
  Job job(Shell(2, "trap '' INT TERM; echo ready; exec sleep 1000"));
  AwaitReady(&job, 2);
  const Nanos begin = MonotonicNow();
  do {
    job.Signal(SIGINT);
  } while (!job.Ends(50 * kMillisecond) && MonotonicNow() - begin < kHang);
  EXPECT_LE(MonotonicNow() - begin, Bound(2 * kSecond));
  EXPECT_EQ(job.Wait(), 130);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGKILL) after SIGINT")) << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Signals, SigtermAndSighupEndTheJob) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Job job(Shell(2, kStay));
    job.AwaitPid("pid ");
    job.AwaitPid("pid ");
    job.Signal(signal);
    EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 128 + signal);
    EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGTERM) after SIG")) << job.err();
    EXPECT_TRUE(job.Processes().empty());
  }
}

TEST(Signals, SigtermKillsAfterTheGrace) {
  Job job(Shell(2, "trap '' TERM; echo ready; exec sleep 1000", "0.2"));
  AwaitReady(&job, 2);
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(Bound(2'200 * kMillisecond)), 143);
}

TEST(Signals, ThatARankHandlesArePassedOn) {
  Job job(Shell(2, std::string("trap 'echo one' USR1; trap 'echo two' USR2; ") + kLoop));
  AwaitReady(&job, 2);
  job.Signal(SIGUSR1);
  job.Await("one");
  job.Await("one");
  job.Signal(SIGUSR2);
  job.Await("two");
  job.Await("two");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
}

// Each rank saves with the help of its worker, which it then leaves behind.
void ExpectSaved(Job* job, const std::string& signal, int exit_code) {
  EXPECT_EQ(job->Wait(Bound(2 * kSecond)), exit_code) << job->err();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(Contains(LinesOf(rank, job->out()), signal + ": saved\n"))
        << job->out() << job->err();
  }
  EXPECT_EQ(job->err(), "") << "the ranks ended well";
  EXPECT_TRUE(job->Processes().empty());
}

TEST(Signals, AreForTheRankAndNotForItsWorkers) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Job job({"-np", "2", kHelper, "save"});
    AwaitReady(&job, 2);
    job.Signal(signal);
    ExpectSaved(&job, signal == SIGINT ? "SIGINT" : "SIGTERM", 128 + signal);
  }
}

TEST(Signals, AreForTheProgramThatAScriptStarted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Job job(Shell(2, kHelper + " take-part; exit $?"));
    AwaitReady(&job, 2);
    job.Signal(signal);
    ExpectSaved(&job, signal == SIGINT ? "SIGINT" : "SIGTERM", 128 + signal);
  }
}

TEST(Signals, AreForAScriptWhoseProgramHasEnded) {
  Job job(Shell(2, "trap 'exit 0' TERM; " + kHelper + " take-part; echo alone; " + kLoop));
  for (int i = 0; i < 2; ++i) kill(job.AwaitPid("ready "), SIGTERM);
  for (int i = 0; i < 2; ++i) job.Await("alone");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 143);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Signals, ThatEndAStoppedJobLetItsWorkersGoOn) {
  Job job({"-np", "2", kHelper, "save"});
  const pid_t ranks[] = {job.AwaitPid("ready "), job.AwaitPid("ready ")};
  job.Signal(SIGTSTP);
  job.AwaitStop();
  for (const pid_t rank : ranks) EXPECT_TRUE(AwaitState(rank, 'T'));
  job.Signal(SIGTERM);
  job.Signal(SIGCONT);
  ExpectSaved(&job, "SIGTERM", 143);
}

TEST(Signals, LeaveTheWorkersOfARankThatDoesNotSaveToTheSweep) {
  Job job(Shell(2, kHelper + " daemon stubborn; (trap '' TERM; exec sleep 1000) & " + kStay, "5"));
  for (int i = 0; i < 2; ++i) job.AwaitPid("pid ");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(Bound(3 * kSecond)), 143) << "they had a second";
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Signals, CtrlZStopsEverythingAndContinuesIt) {
  Job job(Shell(2, kStay));
  const pid_t ranks[] = {job.AwaitPid("pid "), job.AwaitPid("pid ")};
  job.Signal(SIGTSTP);
  job.AwaitStop();
  for (const pid_t rank : ranks) EXPECT_TRUE(AwaitState(rank, 'T'));
  job.Signal(SIGCONT);
  for (const pid_t rank : ranks) EXPECT_TRUE(AwaitState(rank, 'S'));
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(), 130);
}

TEST(Signals, EndAStoppedJob) {
  Job job(Shell(2, kStay));
  const pid_t ranks[] = {job.AwaitPid("pid "), job.AwaitPid("pid ")};
  job.Signal(SIGTSTP);
  job.AwaitStop();
  for (const pid_t rank : ranks) EXPECT_TRUE(AwaitState(rank, 'T'));
  job.Signal(SIGTERM);
  job.Signal(SIGCONT);  // as init and shells do it
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 143);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Signals, AtAnyMomentOfTheStartEndTheJob) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (int i = 0; i < 25; ++i) {
      Job job(Shell(4, kStay));
      const Nanos moment = MonotonicNow() + i * 300 * kMicrosecond;
      while (MonotonicNow() < moment) {
      }
      job.Signal(signal);
      const int code = job.Wait(Bound(2 * kSecond));
      // The latter: before ruedarun had done anything.
      EXPECT_TRUE(code == 128 + signal || code == -signal) << code << job.err();
      EXPECT_TRUE(job.Processes().empty());
    }
  }
}

TEST(Signals, ThatKillRuedarunAtAnyMomentLeaveNothing) {
  for (int i = 0; i < 25; ++i) {
    Job job(Shell(4, "trap '' TERM INT; " + std::string(kStay)));
    const Nanos moment = MonotonicNow() + i * 300 * kMicrosecond;
    while (MonotonicNow() < moment) {
    }
    job.Signal(SIGKILL);
    EXPECT_EQ(job.Wait(), -SIGKILL);
    const Nanos deadline = MonotonicNow() + Bound(kSecond);
    while (!job.Processes().empty() && MonotonicNow() < deadline) {
    }
    EXPECT_TRUE(job.Processes().empty());
  }
}

TEST(Signals, IgnoredBecauseOfNohupStayIgnored) {
  Job::Setup setup;
  setup.ignored = {SIGHUP};
  Job job(Shell(1, std::string("trap 'echo one' USR1; ") + kLoop), setup);
  AwaitReady(&job, 1);
  job.Signal(SIGHUP);
  job.Signal(SIGUSR1);
  job.Await("one");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
}

TEST(Signals, AreAllUnblockedAndDefaultInTheRanks) {
  Job::Setup setup;
  setup.blocked = {SIGTERM, SIGINT, SIGUSR1, SIGCHLD};
  setup.ignored = {SIGPIPE, SIGUSR1, SIGINT, SIGCHLD, SIGTERM};
  Job job({"-np", "1", kHelper, "signals"}, setup);
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(job.out(), "[0] SigBlk:\t0000000000000000\n[0] SigIgn:\t0000000000000000\n");
}

Job::Setup Terminal() {
  Job::Setup setup;
  setup.terminal = true;
  return setup;
}

TEST(Terminal, CtrlCIsTheRanksToo) {
  Job job(Shell(2, kStay), Terminal());
  job.AwaitPid("pid ");
  job.AwaitPid("pid ");
  job.Type("\x03");
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 130);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Terminal, CtrlCIsNotForTheWorkers) {
  Job job({"-np", "2", kHelper, "save"}, Terminal());
  AwaitReady(&job, 2);
  job.Type("\x03");
  EXPECT_EQ(job.Wait(Bound(2 * kSecond)), 130);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(LinesOf(rank, job.out()).find("the worker is gone"), std::string::npos) << job.out();
  }
  EXPECT_TRUE(Contains(job.out(), "[0] SIGINT: saved")) << job.out();
  EXPECT_TRUE(Contains(job.out(), "[1] SIGINT: saved")) << job.out();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Terminal, CtrlZStopsTheJob) {
  Job job(Shell(1, kStay), Terminal());
  const pid_t rank = job.AwaitPid("pid ");
  job.Type("\x1A");
  job.AwaitStop();
  EXPECT_TRUE(AwaitState(rank, 'T'));
  job.Signal(SIGCONT);
  EXPECT_TRUE(AwaitState(rank, 'S'));
  job.Type("\x03");
  EXPECT_EQ(job.Wait(), 130);
}

TEST(Terminal, ShowsProgressBarsAsTheyGrow) {
  Job job(Shell(1, "printf '\\r10%%\\r20%%\\r'; exec sleep 1000"), Terminal());
  job.AwaitText("[0] 10%\r");
  job.Type("\x03");
  EXPECT_EQ(job.Wait(), 130);
}

TEST(Terminal, IsNoInputForTheRanks) {
  Job job(Shell(2, "readlink /proc/self/fd/0"), Terminal());
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(LinesOf(0, job.out()), "/dev/null\r\n");
  EXPECT_EQ(LinesOf(1, job.out()), "/dev/null\r\n");
}

}  // namespace
}  // namespace rueda
