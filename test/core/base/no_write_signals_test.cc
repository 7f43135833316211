#include "core/base/no_write_signals.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/unique_fd.h"

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

TEST(NoWriteSignals, AWriteToNobodyIsAnErrorAndNoSignal) {
  for (int round = 0; round < 2; ++round) {
    {
      const NoWriteSignals held;
      WriteToNobody();
      WriteToNobody();
    }
    EXPECT_FALSE(IsPending(SIGPIPE));
    EXPECT_FALSE(IsBlocked(SIGPIPE));
  }
}

TEST(NoWriteSignals, AFileThatMayNotGrowIsAnErrorAndNoSignal) {
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {4, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    const NoWriteSignals held;
    EXPECT_EQ(write(file.get(), "12345", 5), 4);
    EXPECT_EQ(write(file.get(), "5", 1), -1);
    EXPECT_EQ(errno, EFBIG);
    EXPECT_EQ(ftruncate(file.get(), 5), -1);
    EXPECT_EQ(errno, EFBIG);
  }
  EXPECT_FALSE(IsPending(SIGXFSZ));
  EXPECT_FALSE(IsBlocked(SIGXFSZ));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(NoWriteSignals, LeavesWhatTheThreadHasBlocked) {
  sigset_t pipe_alone, before;
  sigemptyset(&pipe_alone);
  sigaddset(&pipe_alone, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_alone, &before);
  WriteToNobody();
  ASSERT_TRUE(IsPending(SIGPIPE));
  {
    const NoWriteSignals held;
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
