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
  sleepers.WakeAll();
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
  sleepers.WakeAll();
  third.join();
}

TEST(Sleepers, OneIsCalledAndTheOthersAreNot) {
  Sleepers sleepers;
  std::atomic<int> listed{0};
  std::atomic<int> called{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      called += sleepers.Sleep(nullptr, kForever, [&] {
        ++listed;
        return false;
      });
    });
  }
  Await(listed, 3);
  EXPECT_TRUE(sleepers.WakeOne());
  sleepers.WakeAll();
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

}  // namespace
}  // namespace rueda
