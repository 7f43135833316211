// What is done before sleeping: how often, by the knob and by the cores. Each test's own thread.
#include "controller/runtime/spin.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace rueda {
namespace {

constexpr int kMany = 1 << 21;

int Times(Spin spin) {
  int times = 0;
  while (times < kMany && spin.Again()) ++times;
  return times;
}

TEST(Spin, SleepMeansAtOnce) {
  EXPECT_EQ(Times(Spin("sleep", 1)), 0);
  EXPECT_EQ(Times(Spin("sleep", 1'000)), 0);
}

TEST(Spin, EveryKindComesToAnEnd) {
  for (const char* kind : {"auto", "spin", "yield"}) {
    const int times = Times(Spin(kind, 1));
    EXPECT_GT(times, 0) << kind;
    EXPECT_LT(times, kMany) << kind;
  }
}

TEST(Spin, AutoDependsOnWhetherEveryRankHasACore) {
  static int yields = 0;
  yields = 0;
  const auto count = [] { return ++yields; };
  const int times = Times(Spin("auto", 1 << 20, count));
  EXPECT_GT(times, 0);
  EXPECT_EQ(yields, times);
  Times(Spin("auto", 1, count));
  EXPECT_EQ(yields, times) << "it has a core";
  EXPECT_LT(Times(Spin("auto", 1)), 4'000) << "somebody else may be on the machine";
}

TEST(Spin, AYieldThatTookATimeSliceIsTheLastForAWhile) {
  static useconds_t takes = 1'500;
  Spin spin("yield", 1, [] { return usleep(takes); });
  EXPECT_TRUE(spin.Again());
  EXPECT_FALSE(spin.Again());
  spin.Reset();
  EXPECT_FALSE(spin.Again()) << "the next waits sleep at once";
  takes = 0;
  int sleeps = 1;
  for (spin.Reset(); !spin.Again() && sleeps < kMany; spin.Reset()) ++sleeps;
  EXPECT_GT(sleeps, 100);
  EXPECT_LT(sleeps, kMany) << "but not for ever";
}

TEST(Spin, AskedForItIsLongWhateverTheCores) {
  EXPECT_EQ(Times(Spin("spin", 1)), Times(Spin("spin", 1 << 20)));
  EXPECT_GT(Times(Spin("spin", 1)), 100 * Times(Spin("auto", 1)));
}

TEST(Spin, ResetBeginsAgain) {
  Spin spin("auto", 1);
  int first = 0;
  while (spin.Again()) ++first;
  EXPECT_FALSE(spin.Again());
  spin.Reset();
  int second = 0;
  while (spin.Again()) ++second;
  EXPECT_EQ(second, first);
}

}  // namespace
}  // namespace rueda
