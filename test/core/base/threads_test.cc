#include "core/base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <string>

namespace rueda {
namespace {

template <typename Fn>
void OnThread(Fn fn) {
  std::thread thread;
  ASSERT_TRUE(StartThread("a test's thread", "rueda-test", fn, &thread).ok());
  thread.join();
}

TEST(StartThread, NamesItAndKeepsTheProgramsSignalsAway) {
  OnThread([] {
    char name[16];
    ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    EXPECT_STREQ(name, "rueda-test");
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGPIPE, SIGUSR1}) {
      EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
    }
  });
}

// A blocked fault would end the program without its handler.
TEST(StartThread, AFaultThereReachesTheProgramsHandler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(7); });
        OnThread([] { raise(SIGBUS); });
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(WithoutExceptions, MakesAStatusOfWhatIsThrown) {
  EXPECT_EQ(WithoutExceptions([] { return absl::OkStatus(); }), absl::OkStatus());
  EXPECT_EQ(WithoutExceptions([]() -> absl::Status { throw std::bad_alloc(); }),
            absl::ResourceExhaustedError("out of memory"));
  EXPECT_EQ(
      WithoutExceptions([]() -> absl::StatusOr<int> { throw std::runtime_error("no"); }).status(),
      absl::InternalError("no"));
  EXPECT_EQ(WithoutExceptions([]() -> absl::Status { throw 3; }),
            absl::InternalError("an exception of unknown type"));
}

}  // namespace
}  // namespace rueda
