// What is done before sleeping: how often, by the knob and by the cores. Each test's own thread.
#include "controller/runtime/spin.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(Times(Spin("auto", 1 << 20)), Times(Spin("yield", 1)));
  EXPECT_NE(Times(Spin("auto", 1)), Times(Spin("yield", 1)));
  EXPECT_LT(Times(Spin("auto", 1)), 4'000) << "somebody else may be on the machine";
}

TEST(Spin, AskedForItIsLongWhateverTheCores) {
  EXPECT_EQ(Times(Spin("spin", 1)), Times(Spin("spin", 1 << 20)));
  EXPECT_GT(Times(Spin("spin", 1)), 100 * Times(Spin("auto", 1)));
}

TEST(Spin, ResetBeginsAgain) {
  Spin spin("yield", 1);
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
