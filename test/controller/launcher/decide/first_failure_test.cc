#include "controller/launcher/decide/first_failure.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

TEST(FirstFailure, IsTheFirstThatBlamesNobody) {
  FirstFailure first(4);
  EXPECT_EQ(first.rank(), -1);
  EXPECT_EQ(first.deadline(), kForever);
  first.OnFailed(2, -1, 10);
  EXPECT_EQ(first.rank(), 2);
  EXPECT_EQ(first.deadline(), kForever);
  first.OnFailed(1, -1, 11);
  EXPECT_EQ(first.rank(), 2);
}

TEST(FirstFailure, IsTheOneThatTheFirstBlames) {
  FirstFailure first(4);
  first.OnFailed(0, 3, 10);
  EXPECT_EQ(first.rank(), -1);
  EXPECT_EQ(first.deadline(), 10 + FirstFailure::kPatience);
  EXPECT_TRUE(first.open());
  first.OnFailed(1, 3, 11);
  EXPECT_EQ(first.rank(), -1);
  first.OnFailed(3, -1, 12);
  EXPECT_EQ(first.rank(), 3);
  EXPECT_EQ(first.deadline(), kForever);
}

TEST(FirstFailure, IsTheFirstWhenNothingIsHeardOfTheOneThatItBlames) {
  FirstFailure first(4);
  first.OnFailed(0, 3, 10);
  first.OnTime(11);
  EXPECT_EQ(first.rank(), -1);
  first.OnTime(10 + FirstFailure::kPatience);
  EXPECT_EQ(first.rank(), 0);
  first.OnFailed(3, -1, 12);
  EXPECT_EQ(first.rank(), 0);
}

TEST(FirstFailure, TakesNoNonsenseForABlame) {
  for (const Rank blames : {Rank{1}, Rank{-1}, Rank{4}, Rank{70'000}}) {
    FirstFailure first(4);
    first.OnFailed(1, blames, 10);
    EXPECT_EQ(first.rank(), 1) << blames;
  }
}

}  // namespace
}  // namespace rueda
