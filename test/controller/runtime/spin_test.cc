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
  EXPECT_EQ(Times(Spin("sleep", false)), 0);
  EXPECT_EQ(Times(Spin("sleep", true)), 0);
}

TEST(Spin, EveryKindComesToAnEnd) {
  for (const char* kind : {"auto", "spin", "yield"}) {
    const int times = Times(Spin(kind, false));
    EXPECT_GT(times, 0) << kind;
    EXPECT_LT(times, kMany) << kind;
  }
}

TEST(Spin, AutoDependsOnWhetherEveryRankHasACore) {
  static int yields = 0;
  yields = 0;
  const auto count = [] { return ++yields; };
  const int times = Times(Spin("auto", true, count));
  EXPECT_GT(times, 0);
  EXPECT_EQ(yields, times);
  Times(Spin("auto", false, count));
  EXPECT_EQ(yields, times) << "it has a core";
  EXPECT_LT(Times(Spin("auto", false)), 4'000) << "somebody else may be on the machine";
}

TEST(Spin, RanksOfOtherHostsOnTheMachineShareItsCoresToo) {
  EXPECT_FALSE(SharesCores(1, 1));
  EXPECT_TRUE(SharesCores(1 << 20, 1 << 20));
  EXPECT_TRUE(SharesCores(1, 1 << 20));
}

TEST(Spin, AYieldThatTookATimeSliceIsTheLastForAWhile) {
  static useconds_t takes = 1'500;
  Spin spin("yield", false, [] { return usleep(takes); });
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
  EXPECT_EQ(Times(Spin("spin", false)), Times(Spin("spin", true)));
  EXPECT_GT(Times(Spin("spin", false)), 100 * Times(Spin("auto", false)));
}

TEST(Spin, ResetBeginsAgain) {
  Spin spin("auto", false);
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
