// Threads of one rank that contend for the baton, over real runtimes of a group of threads.
#include "controller/runtime/baton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

#include "controller/lanes/callbacks.h"
#include "controller/runtime/runtime.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;

// A job of two ranks; body(runtime, rank) on a thread each. Every rank shuts down.
void RunJob(const std::function<void(Runtime&, Rank)>& body) {
  auto group = std::make_shared<ThreadRanks>(kRanks);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      RuntimeOptions options;
      options.group = group;
      options.group_rank = rank;
      absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Create(std::move(options));
      ASSERT_TRUE(runtime.ok()) << runtime.status();
      body(**runtime, rank);
      (void)(*runtime)->Shutdown();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A barrier of all ranks, by name.
OperationArgs Barrier(const absl::string_view& name) {
  OperationArgs args;
  args.names = {&name, 1};
  return args;
}

TEST(Baton, AllThreadsOfARankGetWhatTheyWaitFor) {
  RunJob([](Runtime& runtime, Rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&runtime, thread] {
        const std::string text = "barrier " + std::to_string(thread);
        const absl::string_view name = text;
        for (int i = 0; i < 200; ++i) {
          Handle handle = 0;
          ASSERT_TRUE(runtime.Execute(Barrier(name), kForever, &handle).ok());
          ASSERT_TRUE(runtime.Release(handle).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// The holder sleeps, for ever: another's time is its own.
TEST(Baton, AWaitEndsInTimeThoughAnotherThreadHoldsTheBaton) {
  std::promise<void> waited;
  RunJob([&](Runtime& runtime, Rank rank) {
    if (rank != 0) {  // comes once rank 0 has waited in vain
      const absl::string_view go = "go", last = "last";
      waited.get_future().wait();
      Handle handle = 0;
      ASSERT_TRUE(runtime.Execute(Barrier(go), kForever, &handle).ok());
      ASSERT_TRUE(runtime.Execute(Barrier(last), kForever, &handle).ok());
      return;
    }
    std::thread holder([&runtime] {
      const absl::string_view last = "last";
      Handle handle = 0;
      EXPECT_TRUE(runtime.Execute(Barrier(last), kForever, &handle).ok());
    });
    const absl::string_view go = "go";
    const absl::StatusOr<Handle> handle = runtime.Submit(Barrier(go));
    ASSERT_TRUE(handle.ok()) << handle.status();
    for (int i = 0; i < 20; ++i) {
      const absl::Status status = runtime.Wait(*handle, kMillisecond);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("it goes on"));
    }
    waited.set_value();
    EXPECT_TRUE(runtime.Wait(*handle, kForever).ok());
    holder.join();
  });
}

TEST(Baton, AnAbortEndsTheWaitOfWhoeverHoldsIt) {
  RunJob([](Runtime& runtime, Rank rank) {
    if (rank != 0) {
      while (runtime.failure() == nullptr) std::this_thread::yield();
      return;
    }
    const absl::string_view never = "never";
    const absl::StatusOr<Handle> handle = runtime.Submit(Barrier(never));
    ASSERT_TRUE(handle.ok()) << handle.status();
    std::thread holder([&] { EXPECT_TRUE(absl::IsAborted(runtime.Wait(*handle, kForever))); });
    runtime.Abort("enough");
    holder.join();
    EXPECT_THAT(runtime.failure()->cause, HasSubstr("enough"));
  });
}

// The turn that calls back is the last one of its thread, which waits no more; somebody must take
// another.
TEST(Callbacks, AnAbortFromAnInlineOneIsNotLost) {
  const auto body = [](Runtime& runtime, Rank rank) {
    const absl::string_view first = "first", never = "never";
    OperationArgs args = Barrier(first);
    if (rank == 0) {
      args.callback_inline = true;
      args.callback_user = &runtime;
      args.callback = [](void* user, Handle, absl::StatusCode) {
        static_cast<Runtime*>(user)->Abort("enough");
      };
    }
    Handle handle = 0;
    (void)runtime.Execute(args, kForever, &handle);
    if (rank == 0) {
      while (runtime.failure() == nullptr) std::this_thread::yield();
    } else {
      EXPECT_TRUE(absl::IsAborted(runtime.Execute(Barrier(never), kForever, &handle)));
    }
    EXPECT_THAT(runtime.failure()->cause, HasSubstr("enough"));
  };
  for (int job = 0; job < 30; ++job) RunJob(body);
}

TEST(Callbacks, TheThreadOfATurnMayNeitherWaitNorEndItsContext) {
  RunJob([](Runtime& runtime, Rank) {
    EXPECT_TRUE(CheckMayWait("a wait").ok());
    EXPECT_TRUE(runtime.CheckMayEnd("shutdown").ok());
    {
      const TurnScope outer;
      { const TurnScope inner; }
      EXPECT_TRUE(InTurn()) << "the inner one has ended, the outer one has not";
      EXPECT_EQ(CheckMayWait("a wait"),
                absl::FailedPreconditionError("a wait from an inline callback or an allocator"));
      EXPECT_EQ(runtime.CheckMayEnd("shutdown"),
                absl::FailedPreconditionError("shutdown from a callback or an allocator"));
    }
    EXPECT_FALSE(InTurn());
  });
}

// What waits for nothing may be called anywhere.
TEST(Callbacks, AnOperationThatHasEndedMayBeWaitedForAnywhere) {
  RunJob([](Runtime& runtime, Rank) {
    const absl::string_view name = "b";
    Handle handle = 0;
    ASSERT_TRUE(runtime.Execute(Barrier(name), kForever, &handle).ok());
    const TurnScope scope;
    EXPECT_TRUE(runtime.Wait(handle, kForever).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(runtime.Execute(Barrier(name), kForever, &handle)));
  });
}

}  // namespace
}  // namespace rueda
