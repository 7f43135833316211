// Facts about processes. Each test's own thread.
#include "core/base/process.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

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

// Until when a child lives, as the parent says.
class Lifeline {
 public:
  Lifeline() { EXPECT_EQ(pipe(ends_), 0); }
  ~Lifeline() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  // The child waits here.
  void AwaitEnd() {
    Close(&ends_[1]);
    char byte;
    (void)!read(ends_[0], &byte, 1);
  }
  void End() { Close(&ends_[1]); }

 private:
  static void Close(int* end) { close(std::exchange(*end, -1)); }
  int ends_[2];
};

// Waits until a child has ended, and leaves it unreaped.
void AwaitEndOf(int pid) {
  siginfo_t info = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

void ExpectThatEndsAreSeen() {
  EXPECT_FALSE(HasEnded(getpid()));
  Lifeline life;
  const int pid = fork();
  if (pid == 0) {
    life.AwaitEnd();
    _exit(0);
  }
  EXPECT_FALSE(HasEnded(pid));
  life.End();
  AwaitEndOf(pid);
  EXPECT_EQ(ProcessState(pid), 'Z');
  EXPECT_TRUE(HasEnded(pid)) << "it was not reaped";
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(HasEnded(pid)) << "it was reaped";
}

// A process whose main thread has left, while another one goes on.
void ExpectThatThreadsCount() {
  Lifeline life;
  const int pid = fork();
  if (pid == 0) {
    std::thread([&] {
      life.AwaitEnd();
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // not pthread_exit, whose unwinding the test's frames would catch
  }
  while (ProcessState(pid) != 'Z') usleep(100);
  EXPECT_FALSE(HasEnded(pid)) << "a thread of it runs";
  life.End();
  AwaitEndOf(pid);
  EXPECT_TRUE(HasEnded(pid));
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST(Process, HasEndedOnceAllItsThreadsHaveReapedOrNot) {
  ExpectThatEndsAreSeen();
  ExpectThatThreadsCount();
}

// Whether it was seen before its end, which a busy machine may not have let us.
bool SeesItDie() {
  int there[2];
  EXPECT_EQ(pipe(there), 0);
  const int pid = fork();
  if (pid == 0) {
    const std::vector<char> memory(size_t{512} << 20, 1);  // takes its time to free
    (void)!write(there[1], memory.data(), 1);
    pause();
  }
  char byte;
  EXPECT_EQ(read(there[0], &byte, 1), 1);
  EXPECT_FALSE(WaitStatusOfDying(pid).has_value());
  kill(pid, SIGKILL);
  std::optional<int> status;
  while (!status.has_value()) status = WaitStatusOfDying(pid);
  const bool before_its_end = !HasEnded(pid);
  EXPECT_EQ(WaitStatusText(*status), "killed by signal 9 (SIGKILL)");
  int reaped = 0;
  EXPECT_EQ(waitpid(pid, &reaped, 0), pid);
  EXPECT_EQ(reaped, *status);
  EXPECT_FALSE(WaitStatusOfDying(pid).has_value());
  close(there[0]);
  close(there[1]);
  return before_its_end;
}

TEST(Process, OneThatDiesIsSeenBeforeItHasEnded) {
  EXPECT_FALSE(WaitStatusOfDying(getpid()).has_value());
  int trials = 1;
  while (trials < 20 && !SeesItDie()) ++trials;
  EXPECT_LT(trials, 20);
}

TEST(Process, ThatItsMainThreadHasEndedSaysNothing) {
  Lifeline life;
  const int pid = fork();
  if (pid == 0) {
    std::thread([&] {
      life.AwaitEnd();
      _exit(4);
    }).detach();
    syscall(SYS_exit, 4);
  }
  while (ProcessState(pid) != 'Z') usleep(100);
  EXPECT_FALSE(WaitStatusOfDying(pid).has_value()) << "a thread of it runs";
  life.End();
  AwaitEndOf(pid);
  EXPECT_EQ(WaitStatusText(WaitStatusOfDying(pid).value_or(0)), "exited with status 4");
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

// As a sandbox does that does not know them.
void ForbidPidfds() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(Process, HasEndedIsSeenWithoutPidfdsToo) {
  EXPECT_EQ(WaitStatusText(StatusOf([] {
              ForbidPidfds();
              EXPECT_FALSE(OpenPidfd(getpid()).valid());
              ExpectThatEndsAreSeen();
              ExpectThatThreadsCount();
              _exit(::testing::Test::HasFailure() ? 1 : 0);
            })),
            "exited with status 0");
}

TEST(Process, NamesSignals) {
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const name = sigabbrev_np(signal);
    if (name == nullptr) continue;
    EXPECT_EQ(SignalName(signal), std::string("SIG") + name);
  }
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
