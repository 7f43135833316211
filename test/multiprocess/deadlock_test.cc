// All ranks wait for what does not come: what ends then, and what must not. The limit is a second.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <thread>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;  // in ns
constexpr int64_t kLimit = kSecond;

int64_t Now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

rueda_operation Barrier(const char* name) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_BARRIER;
  operation.name = name;
  return operation;
}

// To or from rank `peer`.
rueda_operation Message(rueda_kind kind, int peer, const rueda_tensor* tensor) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = kind;
  operation.name = "message";
  operation.root = peer;
  (kind == RUEDA_SEND ? operation.input : operation.output) = tensor;
  return operation;
}

class Deadlock : public ::testing::TestWithParam<Setup> {
 protected:
  RunOptions Options(int size = 2) const {
    return {GetParam().AtLeast(size), GetParam(), {{"deadlock_timeout_s", "1"}}};
  }
};
INSTANTIATE_TEST_SUITE_P(All, Deadlock, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// What takes seconds: what differs is how ranks hear of each other.
class NoDeadlock : public Deadlock {};
INSTANTIATE_TEST_SUITE_P(All, NoDeadlock, ::testing::ValuesIn(FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(Deadlock, EndsWithTheSameWordsOnAllRanksAndTheJobGoesOn) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    const char* const mine = rank == 0 ? "a" : "b";
    for (int round = 0; round < 2; ++round) {
      const int64_t began = Now();
      ASSERT_EQ(Execute(context, Barrier(mine)), RUEDA_CANCELLED) << rueda_last_error();
      EXPECT_GE(Now() - began, kLimit);
      EXPECT_THAT(rueda_last_error(),
                  AllOf(HasSubstr(rank == 0 ? "barrier 'a' was ended" : "barrier 'b' was ended"),
                        HasSubstr("RUEDA_DEADLOCK_TIMEOUT_S"),
                        HasSubstr("rank 0 waits for barrier 'a', which rank"),
                        ContainsRegex("ranks? 1.* waits? for barrier 'b', which rank 0 did not")));
      ASSERT_EQ(Execute(context, Barrier("both")), RUEDA_OK) << rueda_last_error();
    }
  });
}

TEST_P(NoDeadlock, IsReportedSoon) {
  const std::string log = ::testing::TempDir() + "deadlock_warnings_" + std::to_string(getpid());
  const int saved = dup(STDERR_FILENO);
  ASSERT_NE(freopen(log.c_str(), "w", stderr), nullptr);
  RunOptions options = Options();
  options.knobs = {{"deadlock_timeout_s", "600"}};
  RunRanks(options, [&](rueda_context* context, int rank) {
    if (rank != 0) {
      EXPECT_EQ(Execute(context, Barrier("b")), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("a")), RUEDA_OK) << rueda_last_error();
      return;
    }
    const rueda_operation operation = Barrier("a");
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context, handle, 2 * kSecond), RUEDA_DEADLINE_EXCEEDED);
    EXPECT_EQ(Execute(context, Barrier("b")), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
  });
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::ifstream file(log);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  unlink(log.c_str());
  EXPECT_THAT(text, AllOf(HasSubstr("every rank waits"), HasSubstr("barrier 'a'"),
                          HasSubstr("ended after 600.0 s")));
  EXPECT_EQ(text.find("every rank waits"), text.rfind("every rank waits")) << "once\n" << text;
}

// The wait has returned, and its rank works.
TEST_P(NoDeadlock, IsWhenAWaitTimedOutAndItsRankWorks) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    if (rank != 0) {
      EXPECT_EQ(Execute(context, Barrier("validated")), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("logged")), RUEDA_OK) << rueda_last_error();
      return;
    }
    const rueda_operation operation = Barrier("logged");
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context, handle, 6 * kSecond / 10), RUEDA_DEADLINE_EXCEEDED);
    usleep(2'000'000);
    EXPECT_EQ(Execute(context, Barrier("validated")), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
  });
}

TEST_P(NoDeadlock, IsWhenASecondThreadSubmitsLate) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    std::thread second([&] {
      // It is known to submit: a barrier of its own, for which nobody waits.
      const rueda_operation early = Barrier("early"), late = Barrier(rank == 0 ? "b" : "a");
      std::array<rueda_handle, 2> handles = {};
      ASSERT_EQ(rueda_submit(context, &early, 1, nullptr, &handles[0]), RUEDA_OK);
      usleep(2'000'000);
      ASSERT_EQ(rueda_submit(context, &late, 1, nullptr, &handles[1]), RUEDA_OK);
      for (const rueda_handle handle : handles) {
        EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      }
    });
    EXPECT_EQ(Execute(context, Barrier(rank == 0 ? "a" : "b")), RUEDA_OK) << rueda_last_error();
    second.join();
  });
}

// A thread that answers is always inside a wait, while the other works and is inside none.
TEST_P(NoDeadlock, IsWhileAThreadServesReceives) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    ASSERT_EQ(Execute(context, Barrier("start")), RUEDA_OK) << rueda_last_error();
    std::thread server([&] {
      if (rank > 1) return;
      std::vector<float> got(1, 0);
      const TensorOf tensor(got);
      rueda_operation receive = Message(RUEDA_RECV, 1 - rank, tensor.get());
      EXPECT_EQ(Execute(context, receive), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(got[0], 7.0f);
    });
    EXPECT_EQ(Execute(context, Barrier("waited once")), RUEDA_OK) << rueda_last_error();
    usleep(2'000'000);
    if (rank <= 1) {
      std::vector<float> sent(1, 7);
      const TensorOf tensor(sent);
      EXPECT_EQ(Execute(context, Message(RUEDA_SEND, 1 - rank, tensor.get())), RUEDA_OK)
          << rueda_last_error();
    }
    server.join();
    EXPECT_EQ(Execute(context, Barrier("end")), RUEDA_OK) << rueda_last_error();
  });
}

// While a callback runs it may submit.
TEST_P(NoDeadlock, IsWhileACallbackRuns) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    struct Late {
      rueda_context* context;
      int rank;
      std::promise<void> done;
    } mine = {context, rank, {}};
    rueda_operation first = Barrier("first");
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.callback = [](void* user, rueda_handle, rueda_status) {
      Late& late = *static_cast<Late*>(user);
      usleep(2'000'000);
      const rueda_operation operation = Barrier(late.rank == 0 ? "b" : "a");
      rueda_handle other = 0;
      EXPECT_EQ(rueda_submit(late.context, &operation, 1, nullptr, &other), RUEDA_OK);
      rueda_release(late.context, other);
      late.done.set_value();
    };
    completion.user = &mine;
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &first, 1, &completion, &handle), RUEDA_OK);
    EXPECT_EQ(Execute(context, Barrier(rank == 0 ? "a" : "b")), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    mine.done.get_future().wait();
  });
}

// A callback that waits is as good as a thread that does.
TEST_P(NoDeadlock, NeedsCallbacksThatDoNotWait) {
  RunRanks(Options(), [&](rueda_context* context, int rank) {
    struct Waiter {
      rueda_context* context;
      int rank;
      std::promise<rueda_status> status;
    } mine = {context, rank, {}};
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.callback = [](void* user, rueda_handle, rueda_status) {
      Waiter& waiter = *static_cast<Waiter*>(user);
      waiter.status.set_value(Execute(waiter.context, Barrier(waiter.rank == 0 ? "c" : "d")));
    };
    completion.user = &mine;
    const rueda_operation first = Barrier("first");
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &first, 1, &completion, &handle), RUEDA_OK);
    EXPECT_EQ(Execute(context, Barrier(rank == 0 ? "a" : "b")), RUEDA_CANCELLED);
    EXPECT_EQ(mine.status.get_future().get(), RUEDA_CANCELLED);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

class HeldRank : public ::testing::TestWithParam<Setup> {
 protected:
  // Rank 1 is held by `hold` half a limit after the deadlock began, for two limits, and let go.
  void RunHeld(const std::function<void(int)>& hold, const std::function<void(int)>& let_go) {
    struct Shared {
      std::atomic<int64_t> let_go_at;
      std::atomic<int> waiting;
    };
    auto* const shared = new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
    const int size = GetParam().AtLeast(2);
    RunOptions options = {size, GetParam(), {{"deadlock_timeout_s", "1"}}};
    const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
      rueda_context* context = nullptr;
      ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
      shared->waiting.fetch_add(1);
      EXPECT_EQ(Execute(context, Barrier(rank == 0 ? "a" : "b")), RUEDA_CANCELLED)
          << rueda_last_error();
      EXPECT_GT(shared->let_go_at.load(), 0) << "it ended while rank 1 was held";
      EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
      rueda_context_destroy(context);
    });
    while (shared->waiting.load() < size) usleep(1'000);
    usleep(kLimit / 2 / 1'000);
    hold(pids[1]);
    usleep(2 * kLimit / 1'000);
    shared->let_go_at.store(Now());
    let_go(pids[1]);
    for (const int pid : pids) EXPECT_EQ(AwaitProcess(pid), 0);
    munmap(shared, sizeof(Shared));
  }
};
std::vector<Setup> OfProcesses() {
  std::vector<Setup> setups;
  for (const Setup& setup : FewSetups()) {
    if (setup.ranks == Ranks::kProcesses) setups.push_back(setup);
  }
  return setups;
}
INSTANTIATE_TEST_SUITE_P(All, HeldRank, ::testing::ValuesIn(OfProcesses()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(HeldRank, StoppedEndsNothing) {
  RunHeld([](int pid) { kill(pid, SIGSTOP); }, [](int pid) { kill(pid, SIGCONT); });
}

TEST_P(HeldRank, TracedEndsNothing) {
  const auto interrupt_and_detach = [](int pid) {
    EXPECT_EQ(ptrace(PTRACE_INTERRUPT, pid, 0, 0), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, __WALL), pid);
    EXPECT_EQ(ptrace(PTRACE_DETACH, pid, 0, 0), 0);
  };
  // It runs on, under the debugger.
  RunHeld([](int pid) { EXPECT_EQ(ptrace(PTRACE_SEIZE, pid, 0, 0), 0); }, interrupt_and_detach);
}

}  // namespace
}  // namespace rueda::testing
