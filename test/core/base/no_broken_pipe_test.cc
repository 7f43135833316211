#include "core/base/no_broken_pipe.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace rueda {
namespace {

bool IsPending(int signal) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

bool IsBlocked(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

void WriteToNobody() {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[1]);
}

TEST(NoBrokenPipe, AWriteToNobodyIsAnErrorAndNoSignal) {
  for (int round = 0; round < 2; ++round) {
    {
      const NoBrokenPipe held;
      WriteToNobody();
      WriteToNobody();
    }
    EXPECT_FALSE(IsPending(SIGPIPE));
    EXPECT_FALSE(IsBlocked(SIGPIPE));
  }
}

TEST(NoBrokenPipe, LeavesWhatTheThreadHasBlocked) {
  sigset_t pipe_alone, before;
  sigemptyset(&pipe_alone);
  sigaddset(&pipe_alone, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_alone, &before);
  WriteToNobody();
  ASSERT_TRUE(IsPending(SIGPIPE));
  {
    const NoBrokenPipe held;
    WriteToNobody();
  }
  EXPECT_TRUE(IsPending(SIGPIPE)) << "the program's own";
  EXPECT_TRUE(IsBlocked(SIGPIPE));
  int taken = 0;
  sigwait(&pipe_alone, &taken);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace rueda
