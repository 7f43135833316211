// Facts about processes. Each test's own thread.
#include "core/base/process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace rueda {
namespace {

// The wait status of a child that does `end`.
template <typename End>
int StatusOf(End end) {
  const int pid = fork();
  if (pid == 0) {
    end();
    _exit(99);
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(Process, TellsHowAChildEnded) {
  EXPECT_EQ(WaitStatusText(StatusOf([] { _exit(0); })), "exited with status 0");
  EXPECT_EQ(WaitStatusText(StatusOf([] { _exit(3); })), "exited with status 3");
  EXPECT_EQ(WaitStatusText(StatusOf([] { raise(SIGKILL); })), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(WaitStatusText(StatusOf([] { raise(SIGTERM); })), "killed by signal 15 (SIGTERM)");
  EXPECT_EQ(WaitStatusText(StatusOf([] { raise(SIGRTMAX); })), "killed by signal 64");
}

TEST(Process, NamesSignals) {
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  EXPECT_EQ(SignalName(64), "signal 64");
}

TEST(Process, CoresFollowTheAffinity) {
  const int all = UsableCores();
  EXPECT_GE(all, 1);
  EXPECT_LE(all, sysconf(_SC_NPROCESSORS_CONF));
  std::thread([] {  // affinity belongs to the thread, which takes it away with it
    cpu_set_t allowed, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) {
        CPU_SET(core, &one);
        break;
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(UsableCores(), 1);
  })
      .join();
}

TEST(Process, TheAllowedCoresAreThoseOfTheAffinity) {
  const std::vector<int> before = AllowedCores();
  ASSERT_FALSE(before.empty());
  EXPECT_LE(UsableCores(), static_cast<int>(before.size()));
  std::thread([&] {  // affinity is a thread's
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(before.back()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(AllowedCores(), std::vector<int>{before.back()});
    EXPECT_EQ(UsableCores(), 1);
  })
      .join();
}

}  // namespace
}  // namespace rueda
