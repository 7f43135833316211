#include "controller/launcher/decide/report.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

namespace rueda {
namespace {

RankEnding Exited(int pid, int status) {
  return {pid, true, W_EXITCODE(status, 0), false, false, "vm"};
}
RankEnding Killed(int pid, int signal, bool by_us) {
  return {pid, true, W_EXITCODE(0, signal), by_us, false, "vm"};
}

TEST(Report, IsEmptyWhenAllIsWell) {
  EXPECT_EQ(EndingsTable({Exited(10, 0), Exited(11, 0)}, {}), "");
}

TEST(Report, TellsWhoEndedHow) {
  JobEnding job;
  job.first_failure = 1;
  job.exit_code = 3;
  EXPECT_EQ(EndingsTable({Killed(10, SIGTERM, true),
                          Exited(11, 3),
                          Killed(12, SIGSEGV, false),
                          Exited(13, 0),
                          {0, false, 0, false, false, "vm"},
                          {15, false, 0, false, false, "node-two"},
                          {16, false, 0, false, true, "node-two"}},
                         job),
            "ruedarun: the job ended after rank 1 failed; exit status 3\n"
            "   rank      pid  host      how it ended\n"
            "      0       10  vm        ended by ruedarun (SIGTERM) after rank 1 failed\n"
            "*     1       11  vm        exited with status 3  <- first failure\n"
            "      2       12  vm        killed by signal 11 (SIGSEGV)\n"
            "      3       13  vm        exited with status 0\n"
            "      4        -  vm        never started\n"
            "      5       15  node-two  could not be killed, and is left alone\n"
            "      6       16  node-two  unknown: its host was lost\n");
}

TEST(Report, NamesTheCause) {
  JobEnding job;
  job.signal = SIGINT;
  EXPECT_EQ(EndingText(Killed(1, SIGINT, true), job), "ended by ruedarun (SIGINT) after SIGINT");
  job.signalled_host = "c";
  EXPECT_EQ(CauseText(job), "SIGINT to the agent on host c");
  job.lost_host = "b";
  EXPECT_EQ(EndingText(Killed(1, SIGTERM, true), job),
            "ended by ruedarun (SIGTERM) after host b was lost");
  job.supervisor_died = true;
  EXPECT_EQ(EndingText(Killed(1, SIGKILL, true), job),
            "ended by ruedarun (SIGKILL) after its supervisor process died");
  job.first_failure = 4;  // came first
  EXPECT_EQ(EndingText(Killed(1, SIGKILL, true), job),
            "ended by ruedarun (SIGKILL) after rank 4 failed");
}

TEST(Report, CountsTheOrdinaryOfMany) {
  std::vector<RankEnding> ranks(100, Killed(7, SIGTERM, true));
  ranks[3] = Exited(8, 0);
  ranks[40] = Exited(9, 77);
  ranks[41] = Killed(9, SIGABRT, false);
  JobEnding job;
  job.first_failure = 40;
  job.exit_code = 77;
  EXPECT_EQ(EndingsTable(ranks, job),
            "ruedarun: the job ended after rank 40 failed; exit status 77\n"
            "   rank      pid  host  how it ended\n"
            "*    40        9  vm    exited with status 77  <- first failure\n"
            "     41        9  vm    killed by signal 6 (SIGABRT)\n"
            "  97 other ranks were ended by ruedarun after rank 40 failed\n"
            "  1 other ranks exited with status 0\n");
}

// One that is stopped ends nothing by itself.
TEST(Report, MarksTheRankThatAnotherBlames) {
  JobEnding job;
  job.first_failure = 1;
  job.blamed = 0;
  job.exit_code = 1;
  const std::string table = EndingsTable({Killed(10, SIGKILL, true), Exited(11, 1)}, job);
  EXPECT_EQ(
      table,
      "ruedarun: the job ended after rank 1 failed because of rank 0; exit status 1\n"
      "   rank      pid  host  how it ended\n"
      "*     0       10  vm    ended by ruedarun (SIGKILL) after rank 1 failed because of rank 0  "
      "<- first failure\n"
      "      1       11  vm    exited with status 1\n");
}

}  // namespace
}  // namespace rueda
