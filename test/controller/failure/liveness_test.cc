#include "controller/failure/liveness.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rueda {
namespace {

constexpr Nanos kLimit = 4 * kSecond;

// Looks every interval from `*now` on, until `until`; whether anything was said of remote 0.
bool AccusesRemote(Liveness* liveness, Nanos* now, Nanos until) {
  while (liveness->next() <= until) {
    *now = liveness->next();
    liveness->BeginLook(*now);
    if (liveness->SilentFor(0, *now)) return true;
  }
  return false;
}

bool AccusesNeighbour(Liveness* liveness, Nanos* now, Nanos until, Nanos stop, Nanos go) {
  while (liveness->next() <= until) {
    *now = liveness->next();
    liveness->BeginLook(*now);
    if (liveness->StoppedFor(0, *now >= stop && *now < go, *now)) return true;
  }
  return false;
}

TEST(Liveness, AccusesWhoIsSilentForTheLimit) {
  Liveness liveness(kLimit, 1, 0, 0);
  Nanos now = 0;
  EXPECT_FALSE(AccusesRemote(&liveness, &now, 3 * kSecond));
  liveness.OnHeard(0, now);
  const Nanos heard = now;
  EXPECT_FALSE(AccusesRemote(&liveness, &now, heard + kLimit + liveness.interval() - 1));
  EXPECT_TRUE(AccusesRemote(&liveness, &now, heard + kLimit + liveness.interval()));
  EXPECT_GT(*liveness.SilentFor(0, now), kLimit);
}

TEST(Liveness, AccusesWhoHasNotBeenReachedForTheLimitThoughItIsHeard) {
  Liveness liveness(kLimit, 1, 0, 0);
  Nanos now = 0;
  const auto unreached = [&](Nanos until) {
    while (liveness.next() <= until) {
      now = liveness.next();
      liveness.BeginLook(now);
      liveness.OnHeard(0, now);
      if (liveness.UnreachedFor(0, now)) return true;
    }
    return false;
  };
  EXPECT_FALSE(unreached(3 * kSecond));
  liveness.OnReached(0, now);
  EXPECT_TRUE(liveness.IsReached(0, now));
  const Nanos reached = now;
  EXPECT_FALSE(unreached(reached + kLimit + liveness.interval() - 1));
  EXPECT_FALSE(liveness.IsReached(0, now));
  EXPECT_TRUE(unreached(reached + kLimit + liveness.interval()));
  EXPECT_FALSE(liveness.SilentFor(0, now).has_value());
  liveness.BeginLook(now += kLimit);  // it was away: nobody is to blame
  EXPECT_FALSE(liveness.UnreachedFor(0, now).has_value());
}

TEST(Liveness, AccusesAtTheLimitWheneverItHeardLast) {
  for (const Nanos heard : {9'700 * kMillisecond, 9'900 * kMillisecond, 10 * kSecond}) {
    Liveness liveness(kLimit, 1, 0, 0);
    Nanos now = 0;
    while (now < heard) {
      now = liveness.next();
      liveness.BeginLook(now);
      liveness.OnHeard(0, std::min(now, heard));
    }
    EXPECT_TRUE(AccusesRemote(&liveness, &now, heard + kLimit + liveness.interval()));
    EXPECT_EQ(now, heard + kLimit + liveness.interval());
  }
}

TEST(Liveness, KnowsWhetherItWasAway) {
  Liveness liveness(kLimit, 1, 0, 0);
  Nanos now = 0;
  EXPECT_FALSE(liveness.WasAway(now));
  liveness.BeginLook(now = liveness.next());
  EXPECT_FALSE(liveness.WasAway(now + liveness.interval()));
  now += kLimit;
  EXPECT_TRUE(liveness.WasAway(now));
  liveness.BeginLook(now);
  EXPECT_TRUE(liveness.WasAway(now));
  EXPECT_FALSE(AccusesRemote(&liveness, &now, now + kLimit - 1));
  EXPECT_TRUE(liveness.WasAway(now));
  EXPECT_TRUE(AccusesRemote(&liveness, &now, now + 2 * liveness.interval()));
  EXPECT_FALSE(liveness.WasAway(now));
}

TEST(Liveness, LooksOftenEnoughForOthersToHearOfIt) {
  for (const Nanos limit : {kSecond / 10, kSecond, 5 * kSecond, 100 * kSecond}) {
    const Liveness liveness(limit, 1, 0, 0);
    EXPECT_LE(liveness.interval(), limit / 4);
    EXPECT_LE(liveness.interval(), kSecond);
    EXPECT_EQ(liveness.next(), liveness.interval());
  }
}

TEST(Liveness, AccusesWhoIsStoppedForTheLimitWheneverThatBegan) {
  for (Nanos stop = 10 * kSecond; stop < 11 * kSecond; stop += 90 * kMillisecond) {
    Liveness liveness(kLimit, 0, 1, 0);
    Nanos now = 0;
    EXPECT_FALSE(AccusesNeighbour(&liveness, &now, stop + kLimit - 1, stop, kForever));
    EXPECT_TRUE(
        AccusesNeighbour(&liveness, &now, stop + kLimit + liveness.interval(), stop, kForever));
  }
}

TEST(Liveness, ForgivesWhoWasStoppedForLess) {
  Liveness liveness(kLimit, 0, 1, 0);
  Nanos now = 0;
  for (int i = 1; i < 20; ++i) {
    const Nanos stop = i * 10 * kSecond + i * 30 * kMillisecond;
    EXPECT_FALSE(AccusesNeighbour(&liveness, &now, stop + 9 * kSecond, stop, stop + kLimit - 1));
  }
}

// One that speaks every interval may have been heard that long before it was stopped.
TEST(Liveness, ForgivesASilenceOfWhoWasStoppedForLess) {
  for (Nanos stop = 10 * kSecond; stop < 11 * kSecond; stop += 90 * kMillisecond) {
    Liveness liveness(kLimit, 1, 0, 0);
    Nanos now = 0, said = 0;
    const Nanos go = stop + kLimit - kMillisecond;
    while (now < 20 * kSecond) {
      now = liveness.next();
      while (said + liveness.interval() <= now) {
        said += liveness.interval();
        if (said < stop || said >= go) liveness.OnHeard(0, said);
      }
      if (now >= go) liveness.OnHeard(0, std::max(go, said));
      liveness.BeginLook(now);
      EXPECT_FALSE(liveness.SilentFor(0, now)) << "stopped at " << stop;
    }
  }
}

TEST(Liveness, AccusesNobodyForALimitAfterItsOwnClockHasJumped) {
  Liveness liveness(kLimit, 1, 1, 0);
  Nanos now = 100 * kSecond;  // nothing was looked at since 0
  liveness.BeginLook(now);
  EXPECT_FALSE(liveness.SilentFor(0, now));
  EXPECT_FALSE(liveness.StoppedFor(0, true, now));
  const Nanos again = now + kLimit;
  EXPECT_FALSE(AccusesRemote(&liveness, &now, again - 1));
  EXPECT_TRUE(AccusesRemote(&liveness, &now, again + liveness.interval()));
}

TEST(Liveness, AccusesNobodyWithoutALimit) {
  Liveness liveness(0, 1, 1, 0);
  EXPECT_EQ(liveness.next(), kForever);
  liveness.BeginLook(kSecond);
  EXPECT_EQ(liveness.next(), kForever);
  EXPECT_FALSE(liveness.SilentFor(0, 1'000 * kSecond));
  EXPECT_FALSE(liveness.StoppedFor(0, true, 1'000 * kSecond));
}

TEST(Liveness, LooksAtNobodyWhereThereIsNobody) {
  EXPECT_EQ(Liveness(kLimit, 0, 0, 0).next(), kForever);
}

}  // namespace
}  // namespace rueda
