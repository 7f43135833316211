// Sets of small numbers, and ranks as people read them. Each test's own thread.
#include "controller/membership/rank_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rueda {
namespace {

TEST(RankSet, DoesWhatASetDoes) {
  for (const int universe : {1, 63, 64, 65, 1'000}) {
    std::mt19937 random(static_cast<uint32_t>(universe));
    RankSet set(universe);
    std::set<int> model;
    for (int step = 0; step < 2'000; ++step) {
      const int i = static_cast<int>(random() % static_cast<uint32_t>(universe));
      if (random() % 2 == 0) {
        ASSERT_EQ(set.Insert(i), model.insert(i).second);
      } else {
        set.Erase(i);
        model.erase(i);
      }
      ASSERT_EQ(set.count(), static_cast<int>(model.size()));
    }
    for (int i = 0; i < universe; ++i) ASSERT_EQ(set.Contains(i), model.contains(i)) << i;
  }
}

TEST(RankSet, IsAValue) {
  RankSet a(130);
  a.Insert(129);
  RankSet b = a;
  b.Insert(0);
  b.Erase(129);
  EXPECT_TRUE(a.Contains(129));
  EXPECT_FALSE(a.Contains(0));
  EXPECT_EQ(a.count(), 1);
}

TEST(RanksText, ShortensRuns) {
  EXPECT_EQ(RanksText({3}), "rank 3");
  EXPECT_EQ(RanksText({0, 1}), "ranks 0, 1");
  EXPECT_EQ(RanksText({0, 1, 2}), "ranks 0-2");
  EXPECT_EQ(RanksText({0, 2, 3, 4, 5}), "ranks 0, 2-5");
  EXPECT_EQ(RanksText({0, 1, 3, 5, 6, 7, 9}), "ranks 0, 1, 3, 5-7, 9");
}

}  // namespace
}  // namespace rueda
