// Threads that wait while another turns the engine. `keep_awake` runs once a thread is on the list:
// the tests hold it there.
#include "controller/runtime/sleepers.h"

#include <gtest/gtest.h>

#include <thread>

namespace rueda {
namespace {

void Await(const std::atomic<int>& count, int value) {
  while (count.load() < value) std::this_thread::yield();
}

TEST(Sleepers, StayAwakeWhenThereIsAReason) {
  Sleepers sleepers;
  const Request request;
  EXPECT_FALSE(sleepers.Sleep(&request, kForever, [&] {
    EXPECT_TRUE(sleepers.any());
    return true;
  }));
  EXPECT_FALSE(sleepers.any());
}

TEST(Sleepers, WakeAtTheirDeadline) {
  Sleepers sleepers;
  EXPECT_FALSE(sleepers.Sleep(nullptr, MonotonicNow() + kMillisecond, [] { return false; }));
  EXPECT_FALSE(sleepers.Sleep(nullptr, 0, [] { return false; }));
}

TEST(Sleepers, NobodyToWakeIsSaid) {
  Sleepers sleepers;
  const Request request;
  EXPECT_FALSE(sleepers.WakeOne());
  sleepers.WakeFor(&request);
}

TEST(Sleepers, AWakeBeforeTheSleepIsNotLost) {
  for (int round = 0; round < 200; ++round) {
    Sleepers sleepers;
    const Request request;
    std::atomic<int> listed{0};
    std::thread sleeper([&] {
      sleepers.Sleep(&request, kForever, [&] {
        ++listed;
        return false;
      });
    });
    Await(listed, 1);
    sleepers.WakeFor(&request);
    sleeper.join();
  }
}

TEST(Sleepers, OnlyThoseOfTheRequestAreWoken) {
  Sleepers sleepers;
  const Request done, other;
  std::atomic<int> listed{0};
  std::atomic<int> left{0};
  const auto sleep = [&](const Request* request) {
    sleepers.Sleep(request, kForever, [&] {
      ++listed;
      return false;
    });
    ++left;
  };
  std::thread first(sleep, &done), second(sleep, &done), third(sleep, &other);
  Await(listed, 3);
  sleepers.WakeFor(&done);
  first.join();
  second.join();
  EXPECT_EQ(left, 2);
  EXPECT_TRUE(sleepers.any());
  sleepers.WakeFor(&other);
  third.join();
}

TEST(Sleepers, OneIsCalledAndTheOthersAreNot) {
  Sleepers sleepers;
  const Request request;
  std::atomic<int> listed{0};
  std::atomic<int> called{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      called += sleepers.Sleep(&request, kForever, [&] {
        ++listed;
        return false;
      });
    });
  }
  Await(listed, 3);
  EXPECT_TRUE(sleepers.WakeOne());
  sleepers.WakeFor(&request);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(called, 1);
}

// The baton is offered to a thread that is on its way out: its operation has ended, or its time is
// up. It must learn that nobody else was told, or the work that is left waits for ever.
TEST(Sleepers, OneThatIsCalledOnItsWayOutKnows) {
  for (const Nanos deadline : {kForever, Nanos{0}}) {
    Sleepers sleepers;
    const Request request;
    std::atomic<int> listed{0};
    std::atomic<int> released{0};
    bool called = false;
    std::thread sleeper([&] {
      called = sleepers.Sleep(&request, deadline, [&] {
        ++listed;
        Await(released, 1);
        return false;
      });
    });
    Await(listed, 1);
    sleepers.WakeFor(&request);
    EXPECT_TRUE(sleepers.WakeOne());
    ++released;
    sleeper.join();
    EXPECT_TRUE(called);
  }
}

// Without anything that holds a thread back: it goes to sleep while what it sleeps for happens.
// Either it sees that, or it is seen.
constexpr int kRounds = 100'000;
constexpr Nanos kPatience = 20 * kSecond;

// As close behind as two cores allow; on one core the other thread gets its turn.
void AwaitClosely(const std::atomic<int>& count, int value) {
  for (int looks = 0; count.load(std::memory_order_acquire) < value; ++looks) {
    if (looks > 1'000) std::this_thread::yield();
  }
}

TEST(Sleepers, NobodySleepsThroughTheEndOfARequest) {
  Sleepers sleepers;
  std::vector<Request> requests(64);
  std::atomic<int> round{-1};
  std::thread sleeper([&] {
    for (int i = 0; i < kRounds; ++i) {
      Request& request = requests[static_cast<size_t>(i) % 64];
      const Nanos deadline = MonotonicNow() + kPatience;
      round.store(i, std::memory_order_release);
      sleepers.Sleep(&request, deadline, [&] { return request.is_done(); });
      if (MonotonicNow() >= deadline) {
        ADD_FAILURE() << "nobody woke it in round " << i;
        round = kRounds;
        return;
      }
      request.done.store(0, std::memory_order_relaxed);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    AwaitClosely(round, i);
    requests[static_cast<size_t>(i) % 64].done.store(1, std::memory_order_release);
    sleepers.WakeFor(&requests[static_cast<size_t>(i) % 64]);
  }
  sleeper.join();
}

TEST(Sleepers, NobodySleepsBesideAFreeBaton) {
  Sleepers sleepers;
  std::atomic<int> held{1};
  std::atomic<int> round{-1};
  std::thread sleeper([&] {
    for (int i = 0; i < kRounds; ++i) {
      const Nanos deadline = MonotonicNow() + kPatience;
      round.store(i, std::memory_order_release);
      const auto is_free = [&] { return held.load(std::memory_order_relaxed) == 0; };
      // The call may be one of the round before.
      while (!is_free() && MonotonicNow() < deadline) sleepers.Sleep(nullptr, deadline, is_free);
      if (MonotonicNow() >= deadline) {
        ADD_FAILURE() << "nobody called it in round " << i;
        round = kRounds;
        return;
      }
      held = 1;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    AwaitClosely(round, i);
    held.store(0, std::memory_order_seq_cst);
    if (sleepers.any()) sleepers.WakeOne();
  }
  sleeper.join();
}

}  // namespace
}  // namespace rueda
