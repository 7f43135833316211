// The completion thread.
#include "controller/runtime/completions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "core/base/log.h"

namespace rueda {
namespace {

TEST(Completions, RunOneAfterAnotherOnOneThreadInOrder) {
  std::vector<int> order;  // with no lock: one thread writes, and Stop joins it
  std::vector<std::thread::id> threads;
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  for (int i = 0; i < 500; ++i) {
    completions.Add([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  completions.Stop();
  std::vector<int> expected(500);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_THAT(threads, ::testing::Each(threads[0]));
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(Completions, FromManyThreadsEachComeOnce) {
  std::vector<int> counts(400, 0);
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  std::vector<std::thread> adders;
  for (int t = 0; t < 4; ++t) {
    adders.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) completions.Add([&, t, i] { ++counts[100 * t + i]; });
    });
  }
  for (std::thread& adder : adders) adder.join();
  completions.Stop();
  EXPECT_THAT(counts, ::testing::Each(1));
}

TEST(Completions, NobodyElseIsOnTheThread) {
  Completions first;
  Completions second;
  ASSERT_TRUE(first.Start().ok());
  EXPECT_NE(Completions::Current(), &first);
  bool on_own = false;
  bool on_other = true;
  first.Add([&] {
    on_own = Completions::Current() == &first;
    on_other = Completions::Current() == &second;
  });
  first.Stop();
  EXPECT_TRUE(on_own);
  EXPECT_FALSE(on_other);
  EXPECT_NE(Completions::Current(), &first);
}

// Also while another thread waits in Stop: a callback that shuts down must be told off then, too.
TEST(Completions, KnowTheirThreadWhileItEnds) {
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  std::atomic<bool> started{false};
  std::atomic<bool> stopping{false};
  std::vector<bool> on_thread;
  completions.Add([&] {
    started = true;
    while (!stopping) std::this_thread::yield();
  });
  for (int i = 0; i < 1'000; ++i) {
    completions.Add([&] { on_thread.push_back(Completions::Current() == &completions); });
  }
  while (!started) std::this_thread::yield();
  std::thread stopper([&] {
    stopping = true;
    completions.Stop();
  });
  stopper.join();
  EXPECT_THAT(on_thread, ::testing::Each(true));
  EXPECT_EQ(on_thread.size(), 1'000u);
}

TEST(Completions, MayAddMore) {
  int ran = 0;
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  std::function<void()> again = [&] {
    if (++ran < 100) completions.Add(again);
  };
  completions.Add(again);
  completions.Stop();
  EXPECT_EQ(ran, 100) << "Stop waits for those, too";
}

TEST(Completions, NothingIsTakenThatNobodyWillCall) {
  Completions completions;
  EXPECT_FALSE(completions.Add([] {})) << "not started";
  ASSERT_TRUE(completions.Start().ok());
  EXPECT_TRUE(completions.Add([] {}));
  completions.Stop();
  EXPECT_FALSE(completions.Add([] {}));
}

TEST(Completions, MayBeStoppedTwiceAndWithoutAnyWork) {
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  completions.Stop();
  completions.Stop();
}

TEST(Completions, AreMarkedWithTheRankOfTheFirst) {
  SetLogRank(6);
  int rank = -1;
  Completions completions;
  ASSERT_TRUE(completions.Start().ok());
  completions.Add([&] { rank = LogRank(); });
  completions.Stop();
  SetLogRank(-1);
  EXPECT_EQ(rank, 6);
}

}  // namespace
}  // namespace rueda
