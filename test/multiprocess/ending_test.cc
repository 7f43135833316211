// How a job ends while other threads, callbacks and waits are in the middle of something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

// More in test/soak/run.sh.
int Resets() {
  const char* const asked = getenv("SOAK_RESETS");
  return asked == nullptr ? 20 : atoi(asked);
}

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

// What is called in a completion, of either kind.
struct InCallback {
  rueda_context* context;
  rueda_status (*call)(rueda_context*);
  std::atomic<int> status{-1};
};

// What `call` returns from the callback of an operation of that name; `then` comes between its
// submission and the wait for it.
rueda_status CallFrom(
    rueda_context* context, uint32_t flags, rueda_status (*call)(rueda_context*),
    const char* name = "t", const std::function<void()>& then = [] {}) {
  std::vector<float> values(10, 1);
  const TensorOf tensor(values);
  InCallback in = {context, call};
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.user = &in;
  completion.flags = flags;
  completion.callback = [](void* user, rueda_handle, rueda_status) {
    InCallback& mine = *static_cast<InCallback*>(user);
    mine.status = mine.call(mine.context);
  };
  const rueda_operation operation = Allreduce(name, tensor.get());
  rueda_handle handle = 0;
  const rueda_status submitted = rueda_submit(context, &operation, 1, &completion, &handle);
  EXPECT_EQ(submitted, RUEDA_OK) << rueda_last_error();
  if (submitted != RUEDA_OK) return submitted;
  then();
  (void)rueda_wait(context, handle, RUEDA_FOREVER);
  while (in.status < 0) std::this_thread::yield();
  (void)rueda_release(context, handle);
  return static_cast<rueda_status>(in.status.load());
}

TEST_P(Ending, ByAnAbortInACallback) {
  for (const uint32_t flags : {0u, uint32_t{RUEDA_COMPLETION_INLINE}}) {
    RunRanks(MayFail(), [&](rueda_context* context, int rank) {
      const auto abort = [](rueda_context* mine) { return rueda_abort(mine, "from a callback"); };
      const auto nothing = [](rueda_context*) { return RUEDA_OK; };
      if (rank == 0) {
        EXPECT_EQ(CallFrom(context, flags, abort), RUEDA_OK);
      } else {
        (void)CallFrom(context, flags, nothing);
      }
      EXPECT_EQ(Execute(context, Barrier("after it")), RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("rank 0 aborted the job: from a callback"));
      rueda_error error = RUEDA_ERROR_INIT;
      ASSERT_EQ(rueda_context_error(context, &error), RUEDA_OK);
      EXPECT_EQ(error.code, RUEDA_ABORTED);
      EXPECT_EQ(error.recoverable, 1);
      // It goes on in another membership.
      ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("together")), RUEDA_OK) << rueda_last_error();
    });
  }
}

TEST_P(Ending, InACallbackIsRefused) {
  for (const uint32_t flags : {0u, uint32_t{RUEDA_COMPLETION_INLINE}}) {
    RunRanks(MayFail(), [&](rueda_context* context, int rank) {
      EXPECT_EQ(CallFrom(context, flags, rueda_shutdown), RUEDA_FAILED_PRECONDITION);
      const auto destroy = [](rueda_context* mine) {
        rueda_context_destroy(mine);
        return RUEDA_OK;
      };
      EXPECT_EQ(CallFrom(context, flags, destroy), RUEDA_OK);
      // It is there still.
      const rueda_status there = Execute(context, Barrier("all are there"));
      // Rank 0 goes on, and may have aborted before this one knows.
      EXPECT_TRUE(there == RUEDA_OK || (rank != 0 && there == RUEDA_ABORTED)) << rueda_last_error();
      // When the membership has failed, as users would.
      if (rank == 0) {
        EXPECT_EQ(CallFrom(context, flags, rueda_context_reset, "of rank 0",
                           [&] { EXPECT_EQ(rueda_abort(context, "the test"), RUEDA_OK); }),
                  RUEDA_FAILED_PRECONDITION);
      } else {
        EXPECT_EQ(Execute(context, Barrier("of the others")), RUEDA_ABORTED);
      }
      ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(context, Barrier("together")), RUEDA_OK) << rueda_last_error();
    });
  }
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
    const bool expected = status == RUEDA_OK || status == RUEDA_ABORTED ||
                          status == RUEDA_NOT_FOUND ||  // a handle of the membership before
                          status == RUEDA_FAILED_PRECONDITION;
    EXPECT_TRUE(expected) << rueda_status_name(status) << ": " << rueda_last_error();
    (void)rueda_rank(context);
    (void)rueda_is_initialized(context);
  }
}

TEST_P(Ending, ByResetsUnderTheCallsOfOtherThreads) {
  RunRanks(MayFail(), [](rueda_context* context, int rank) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] { Work(context, thread, stop); });
    }
    int resets = 0;
    for (; resets < Resets(); ++resets) {
      if (rank == 0) (void)rueda_abort(context, "the test");
      rueda_status status;
      do {  // not before the membership has failed here, too
        status = rueda_context_reset(context);
      } while (status == RUEDA_FAILED_PRECONDITION);
      if (status != RUEDA_OK) {
        ADD_FAILURE() << "reset " << resets << ": " << rueda_last_error();
        break;
      }
    }
    stop = true;
    (void)rueda_abort(context, "the end");
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(Ending, ByADestructionUnderTheCallsOfOtherThreads) {
  RunJoiners(MayFail(), [](int, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] { Work(context, thread, stop); });
    }
    std::vector<float> values(100);
    const TensorOf tensor(values);
    (void)Execute(context, Allreduce("of the main thread", tensor.get()));
    rueda_context_destroy(context);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_FAILED_PRECONDITION);
    stop = true;
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace rueda::testing
