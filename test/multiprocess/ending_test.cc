// How a job ends while other threads, callbacks and waits are in the middle of something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

class Ending : public ::testing::TestWithParam<Setup> {
 protected:
  int size() const { return GetParam().AtLeast(2); }
  RunOptions MayFail() const {
    RunOptions options = {size(), GetParam(), {{"log_level", "off"}}};
    options.may_fail = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Ending, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Where a program's own code is called: both kinds of completions, and an allgather's allocator.
enum class Place { kCompletion, kInline, kAllocator };
constexpr Place kPlaces[] = {Place::kCompletion, Place::kInline, Place::kAllocator};

struct Called {
  std::function<rueda_status()> call;
  std::vector<float> memory;
  std::atomic<int> status{-1};

  static void OnCompletion(void* user, rueda_handle, rueda_status) {
    Called& mine = *static_cast<Called*>(user);
    mine.status = mine.call();
  }
  static void* Allocate(void* user, int32_t, const int64_t* shape, int32_t) {
    Called& mine = *static_cast<Called*>(user);
    mine.memory.resize(static_cast<size_t>(shape[0]));
    mine.status = mine.call();
    return mine.memory.data();
  }
};

// What `call` returns in such a place, of an operation of that name; -1: an allocator that was not
// needed, as the membership ended first. `then` comes between the operation's submission and the
// wait for it.
int CallFrom(
    rueda_context* context, Place place, std::function<rueda_status()> call, const char* name = "t",
    const std::function<void()>& then = [] {}) {
  std::vector<float> values(10, 1);
  const TensorOf tensor(values);
  Called called = {std::move(call), {}};
  const bool allocates = place == Place::kAllocator;
  rueda_operation operation =
      allocates ? Allgather(name, tensor.get()) : Allreduce(name, tensor.get());
  operation.allocate = Called::Allocate;
  operation.allocate_user = &called;
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.user = &called;
  completion.flags = place == Place::kInline ? uint32_t{RUEDA_COMPLETION_INLINE} : 0;
  completion.callback = Called::OnCompletion;
  rueda_handle handle = 0;
  const rueda_status submitted =
      rueda_submit(context, &operation, 1, allocates ? nullptr : &completion, &handle);
  EXPECT_EQ(submitted, RUEDA_OK) << rueda_last_error();
  if (submitted != RUEDA_OK) return submitted;
  then();
  (void)rueda_wait(context, handle, RUEDA_FOREVER);
  while (!allocates && called.status < 0) std::this_thread::yield();
  (void)rueda_release(context, handle);
  return called.status;
}

// A world of one rank, without the test's knobs.
rueda_context* Alone() {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  const char* knobs[] = {"log_level", "off", "recorder_dir", ""};
  options.knobs = knobs;
  options.knob_count = 2;
  options.name = "alone";
  rueda_context* context = nullptr;
  EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
  return context;
}

TEST_P(Ending, ByAnAbortInACallback) {
  for (const Place place : kPlaces) {
    RunRanks(MayFail(), [&](rueda_context* context, int rank) {
      if (rank == 0) {
        EXPECT_EQ(CallFrom(context, place, [&] { return rueda_abort(context, "from a callback"); }),
                  RUEDA_OK);
      } else {
        (void)CallFrom(context, place, [] { return RUEDA_OK; });
      }
      EXPECT_EQ(Execute(context, Barrier("after it")), RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("rank 0 aborted the job: from a callback"));
      rueda_error error = RUEDA_ERROR_INIT;
      ASSERT_EQ(rueda_context_error(context, &error), RUEDA_OK);
      EXPECT_EQ(error.code, RUEDA_ABORTED);
      EXPECT_EQ(error.recoverable, 1);
      EXPECT_EQ(error.rank, 0) << "whose doing it is";
      EXPECT_EQ(error.pid, 0) << "nobody was lost";
      // It goes on in another membership.
      ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("together")), RUEDA_OK) << rueda_last_error();
    });
  }
}

TEST_P(Ending, InACallbackIsRefused) {
  for (const Place place : kPlaces) {
    RunRanks(MayFail(), [&](rueda_context* context, int rank) {
      const auto reset = [&] { return rueda_context_reset(context); };
      const auto destroy = [&] {
        rueda_context_destroy(context);
        EXPECT_THAT(rueda_last_error(), HasSubstr("rueda_context_destroy from a callback"));
        return RUEDA_OK;
      };
      EXPECT_EQ(CallFrom(context, place, [&] { return rueda_shutdown(context); }),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_EQ(CallFrom(context, place, destroy), RUEDA_OK);
      EXPECT_EQ(CallFrom(context, place, reset), RUEDA_FAILED_PRECONDITION);
      // It is there still.
      const rueda_status there = Execute(context, Barrier("all are there"));
      // Rank 0 goes on, and may have aborted before this one knows.
      EXPECT_TRUE(there == RUEDA_OK || (rank != 0 && there == RUEDA_ABORTED)) << rueda_last_error();
      // When the membership has failed, as users would. Then nothing is allocated in it any more,
      // but in another context.
      if (rank != 0) {
        EXPECT_EQ(Execute(context, Barrier("of the others")), RUEDA_ABORTED);
      } else if (place == Place::kAllocator) {
        EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK);
        rueda_context* const alone = Alone();
        EXPECT_EQ(CallFrom(alone, place, reset), RUEDA_FAILED_PRECONDITION);
        EXPECT_EQ(rueda_shutdown(alone), RUEDA_OK) << rueda_last_error();
        rueda_context_destroy(alone);
      } else {
        EXPECT_EQ(CallFrom(context, place, reset, "of rank 0",
                           [&] { EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK); }),
                  RUEDA_FAILED_PRECONDITION);
      }
      ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("together")), RUEDA_OK) << rueda_last_error();
    });
  }
}

// The thread of a turn can't do what it would wait for; the callback thread may wait.
TEST_P(Ending, OfAWaitInACallback) {
  for (const Place place : kPlaces) {
    RunRanks({size(), GetParam()}, [&](rueda_context* context, int) {
      const int expected = place == Place::kCompletion ? RUEDA_OK : RUEDA_FAILED_PRECONDITION;
      const rueda_operation operation = Barrier("awaited in it");
      rueda_handle handle = 0;
      const auto wait = [&] {
        EXPECT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
        return rueda_wait(context, handle, RUEDA_FOREVER);
      };
      EXPECT_EQ(CallFrom(context, place, wait), expected);
      EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
      const auto execute = [&] { return Execute(context, operation); };
      EXPECT_EQ(CallFrom(context, place, execute), expected);
      const auto init = [&] {
        rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
        options.name = "alone";
        rueda_context* alone = nullptr;
        const rueda_status status = rueda_init(RUEDA_VERSION, &options, &alone);
        if (status == RUEDA_OK) {
          EXPECT_EQ(rueda_shutdown(alone), RUEDA_OK) << rueda_last_error();
        }
        rueda_context_destroy(alone);
        return status;
      };
      EXPECT_EQ(CallFrom(context, place, init), expected);
    });
  }
}

// The neighbour can't leave the failed membership, as its callback has not returned.
TEST(EndingInATurn, MemoryOfAFailedMembershipIsNotAwaited) {
  int begun[2], over[2];
  ASSERT_EQ(pipe(begun) + pipe(over), 0);
  RunOptions options = {2, {"processes", Ranks::kProcesses, {}}, {{"log_level", "off"}}};
  options.may_fail = true;
  RunRanks(options, [&](rueda_context* context, int rank) {
    char byte = 0;
    if (rank == 1) {
      const auto stay = [&] {
        EXPECT_EQ(write(begun[1], &byte, 1), 1);
        EXPECT_EQ(read(over[0], &byte, 1), 1);
        return RUEDA_OK;
      };
      EXPECT_EQ(CallFrom(context, Place::kInline, stay), RUEDA_OK);
      return;
    }
    void* memory = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, 100, &memory), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(CallFrom(context, Place::kInline, [] { return RUEDA_OK; }), RUEDA_OK);
    EXPECT_EQ(read(begun[0], &byte, 1), 1);
    EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK);
    EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
    rueda_context* const alone = Alone();
    for (const Place place : {Place::kInline, Place::kAllocator}) {
      const auto before = std::chrono::steady_clock::now();
      EXPECT_EQ(CallFrom(alone, place, [&] { return rueda_mem_free(memory); }),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
    }
    EXPECT_EQ(rueda_shutdown(alone), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(alone);
    EXPECT_EQ(write(over[1], &byte, 1), 1);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
  });
  for (const int fd : {begun[0], begun[1], over[0], over[1]}) close(fd);
}

TEST_P(Ending, ATimeLimitHoldsWhileDataMoves) {
  RunRanks({size(), GetParam()}, [](rueda_context* context, int) {
    std::vector<float> values(16 << 20, 1);
    const TensorOf tensor(values);
    const rueda_operation operation = Allreduce("large", tensor.get());
    rueda_handle handle = 0;
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context, handle, 1'000), RUEDA_DEADLINE_EXCEEDED);  // it takes ms
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

// Operations of a rank alone, each submitted by the end of the one before: the engine always moves.
class Flood {
 public:
  Flood(rueda_context* context, int32_t set) : context_(context), set_(set) { Next(); }
  ~Flood() {
    left_ = 0;
    while (!over_) std::this_thread::yield();
  }

  bool goes_on() const { return left_ > 0; }

 private:
  void Next() {
    if (left_.fetch_sub(1) <= 0) {
      over_ = true;
      return;
    }
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.user = this;
    completion.flags = RUEDA_COMPLETION_INLINE;
    completion.callback = [](void* user, rueda_handle handle, rueda_status status) {
      Flood& flood = *static_cast<Flood*>(user);
      EXPECT_EQ(status, RUEDA_OK);
      EXPECT_EQ(rueda_release(flood.context_, handle), RUEDA_OK);
      flood.Next();
    };
    rueda_operation operation = Allreduce(nullptr, tensor_.get());
    operation.process_set = set_;
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context_, &operation, 1, &completion, &handle), RUEDA_OK)
        << rueda_last_error();
  }

  rueda_context* const context_;
  const int32_t set_;
  std::vector<float> values_ = std::vector<float>(16, 1);
  const TensorOf tensor_{values_};
  std::atomic<int> left_{500'000};  // a second, or over TCP some more
  std::atomic<bool> over_{false};
};

TEST_P(Ending, ATimeLimitHoldsInAFloodOfOtherOperations) {
  // Whoever waits moves the engine, or another thread does.
  for (const bool alone : {true, false}) {
    RunRanks({size(), GetParam(), {{"process_sets", "0"}}}, [&](rueda_context* context, int rank) {
      const rueda_operation later = Barrier("later");
      rueda_handle handle = 0;
      std::thread other;
      if (rank == 0) {
        ASSERT_EQ(rueda_submit(context, &later, 1, nullptr, &handle), RUEDA_OK);
        const Flood flood(context, 1);
        if (!alone) {
          other =
              std::thread([&] { EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK); });
        }
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(rueda_wait(context, handle, 1'000'000), RUEDA_DEADLINE_EXCEEDED);
        }
        EXPECT_TRUE(flood.goes_on());
      }
      ASSERT_EQ(Execute(context, Barrier("the wait was in vain")), RUEDA_OK) << rueda_last_error();
      if (rank == 0) {
        EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
        if (!alone) other.join();
        EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
      } else {
        EXPECT_EQ(Execute(context, later), RUEDA_OK) << rueda_last_error();
      }
    });
  }
}

// A rank alone has nobody to wait for, and would do it all at once.
TEST(OneRank, ATimeLimitHoldsWhileItWorks) {
  RunRanks({1, ShmSetups().front()}, [](rueda_context* context, int) {
    std::vector<int8_t> values(64 << 20, 64);
    const TensorOf tensor(values);
    rueda_operation operation = Allreduce("large", tensor.get());
    operation.prescale = 0.5;  // of integers: slow
    rueda_handle handle = 0;
    EXPECT_EQ(rueda_execute(context, &operation, 1, 1'000'000, &handle), RUEDA_DEADLINE_EXCEEDED);
    int32_t done = 1;
    EXPECT_EQ(rueda_poll(context, handle, &done), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(done, 0);
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(std::count(values.begin(), values.end(), 32), 64 << 20);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

// One of many threads that know nothing of resets.
void Work(rueda_context* context, int thread, const std::atomic<bool>& stop) {
  const std::string name = "of thread " + std::to_string(thread);
  std::vector<float> values(100);
  const TensorOf tensor(values);
  const rueda_operation operation = Allreduce(name.c_str(), tensor.get());
  while (!stop) {
    rueda_handle handle = 0;
    int32_t done = 0;
    rueda_status status = RUEDA_OK;
    if (thread % 3 == 0) {
      status = rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr);
    } else {
      status = rueda_submit(context, &operation, 1, nullptr, &handle);
      if (status == RUEDA_OK && thread % 3 == 2) {
        while (rueda_poll(context, handle, &done) == RUEDA_OK && done == 0) {
          std::this_thread::yield();
        }
      }
      if (status == RUEDA_OK) status = rueda_wait(context, handle, RUEDA_FOREVER);
      (void)rueda_release(context, handle);
    }
    const bool expected =
        status == RUEDA_OK || status == RUEDA_ABORTED || status == RUEDA_FAILED_PRECONDITION;
    EXPECT_TRUE(expected) << rueda_status_name(status) << ": " << rueda_last_error();
    if (status != RUEDA_OK) std::this_thread::yield();  // to whoever resets
    (void)rueda_rank(context);
    (void)rueda_is_initialized(context);
  }
}

// Eight of them.
class Workers {
 public:
  explicit Workers(rueda_context* context) {
    for (int thread = 0; thread < 8; ++thread) {
      threads_.emplace_back([this, context, thread] { Work(context, thread, stop_); });
    }
  }
  void Join() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST_P(Ending, ByResetsUnderTheCallsOfOtherThreads) {
  RunRanks(MayFail(), [](rueda_context* context, int rank) {
    (void)Execute(context, Barrier());  // rank 0 may have aborted already
    Workers workers(context);
    int resets = 0;
    for (; resets < 200; ++resets) {
      if (rank == 0) (void)rueda_abort(context, "the test");
      rueda_status status;
      do {  // not before the membership has failed here, too
        std::this_thread::yield();
        status = rueda_context_reset(context);
      } while (status == RUEDA_FAILED_PRECONDITION);
      if (status != RUEDA_OK) {
        ADD_FAILURE() << "reset " << resets << ": " << rueda_last_error();
        break;
      }
    }
    (void)rueda_abort(context, "the end");
    workers.Join();
  });
}

// From the moment on in which it has failed, and not only once the context has ended.
TEST(EndingOfProcesses, KeepsTheMemoryThatAStoppedRankMayWriteTo) {
  int ready[2], stopped[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(stopped), 0);
  int pid_of_1 = 0;
  const std::vector<int> pids = StartProcesses({2}, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    void* memory = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, 1, &memory), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    if (rank == 1) {
      EXPECT_EQ(write(ready[1], "", 1), 1);
      while (true) pause();
    }
    EXPECT_EQ(read(stopped[0], &pid_of_1, sizeof pid_of_1), sizeof pid_of_1);
    EXPECT_EQ(CallFrom(
                  context, Place::kInline,
                  [&] {
                    const rueda_status status = rueda_mem_free(memory);
                    EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1"));
                    return status;
                  },
                  "t", [&] { (void)rueda_abort(context, "as this test does"); }),
              RUEDA_FAILED_PRECONDITION);
    kill(pid_of_1, SIGKILL);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  kill(pids[1], SIGSTOP);
  EXPECT_EQ(waitpid(pids[1], nullptr, WUNTRACED), pids[1]);
  EXPECT_EQ(write(stopped[1], &pids[1], sizeof pids[1]), sizeof pids[1]);
  EXPECT_EQ(AwaitProcess(pids[0]), 0);
  EXPECT_EQ(AwaitProcess(pids[1]), SIGKILL);
  for (const int end : {ready[0], ready[1], stopped[0], stopped[1]}) close(end);
}

TEST_P(Ending, ByADestructionUnderTheCallsOfOtherThreads) {
  RunJoiners(MayFail(), [](int, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    (void)Execute(context, Barrier());  // another rank may be gone already
    Workers workers(context);
    std::vector<float> values(100);
    const TensorOf tensor(values);
    (void)Execute(context, Allreduce("of the main thread", tensor.get()));
    rueda_context_destroy(context);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_FAILED_PRECONDITION);
    workers.Join();
  });
}

// Of two threads that shut down one does, and what the others wait for ends.
TEST_P(Ending, ByAShutdownUnderTheCallsOfOtherThreads) {
  RunJoiners({size(), GetParam()}, [](int, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    Workers workers(context);
    std::vector<float> values(100);
    const TensorOf tensor(values);
    (void)Execute(context, Allreduce("of the main thread", tensor.get()));
    rueda_status other = RUEDA_UNKNOWN;
    std::thread second([&] { other = rueda_shutdown(context); });
    const rueda_status own = rueda_shutdown(context);
    second.join();
    EXPECT_TRUE((own == RUEDA_OK && other == RUEDA_FAILED_PRECONDITION) ||
                (other == RUEDA_OK && own == RUEDA_FAILED_PRECONDITION))
        << rueda_status_name(own) << ", " << rueda_status_name(other);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_FAILED_PRECONDITION);
    workers.Join();
    rueda_context_destroy(context);
  });
}

// The one in shutdown waits for the others, who do not come before they are told.
TEST_P(Ending, ByADestructionUnderAShutdown) {
  RunJoiners(MayFail(), [](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    if (rank != 0) {
      rueda_status status = RUEDA_OK;
      while (status != RUEDA_ABORTED) status = Execute(context, Barrier());
      EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
      rueda_context_destroy(context);
      return;
    }
    rueda_status status = RUEDA_UNKNOWN;
    std::thread leaving([&] { status = rueda_shutdown(context); });
    while (rueda_is_initialized(context) == 1) std::this_thread::yield();
    rueda_context_destroy(context);
    leaving.join();
    EXPECT_EQ(status, RUEDA_ABORTED);
    EXPECT_EQ(rueda_shutdown(context), RUEDA_FAILED_PRECONDITION);
  });
}

// Whoever comes first: the context has been reset, and goes on, or it has shut down. In a world of
// one rank a reset waits for nobody.
TEST(EndingAlone, ByAShutdownBesideAReset) {
  for (int i = 0; i < 100; ++i) {
    rueda_context* const context = Alone();
    std::atomic<bool> stop{false};
    std::thread worker([&] { Work(context, 1, stop); });
    EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK);
    rueda_status left = RUEDA_UNKNOWN;
    std::thread leaving([&] { left = rueda_shutdown(context); });
    const rueda_status reset = rueda_context_reset(context);
    leaving.join();
    if (left == RUEDA_ABORTED && reset == RUEDA_OK) {
      EXPECT_EQ(rueda_is_initialized(context), 1);
      EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    } else {
      EXPECT_TRUE((left == RUEDA_ABORTED && reset == RUEDA_FAILED_PRECONDITION) ||
                  (left == RUEDA_OK && reset == RUEDA_OK))
          << rueda_status_name(left) << ", " << rueda_status_name(reset);
      EXPECT_EQ(rueda_is_initialized(context), 0);
      EXPECT_EQ(rueda_shutdown(context), RUEDA_FAILED_PRECONDITION);
    }
    stop = true;
    worker.join();
    rueda_context_destroy(context);
  }
}

TEST(EndingAlone, ByTwoDestructionsBesideAReset) {
  for (int i = 0; i < 100; ++i) {
    rueda_context* const context = Alone();
    EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { (void)rueda_context_reset(context); });
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&] { rueda_context_destroy(context); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_FAILED_PRECONDITION);
  }
}

}  // namespace
}  // namespace rueda::testing
