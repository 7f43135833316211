// Who is rung, by the sleeper's flag. Each test's own thread.
#include "ops/host/neighbours.h"

#include <gtest/gtest.h>

#include "test/ops/shm/host.h"

namespace rueda {
namespace {

// Which of a rank's bells ring: 1 the background thread's, 2 the waiter's, 3 both. Clears them.
int Ringing(const Neighbours& neighbours) {
  const Bells& bells = neighbours.own_bells();
  pollfd wait[2] = {{bells.background.fd(), POLLIN, 0}, {bells.waiter.fd(), POLLIN, 0}};
  poll(wait, 2, 0);
  bells.background.Clear();
  bells.waiter.Clear();
  return (wait[0].revents != 0 ? 1 : 0) + (wait[1].revents != 0 ? 2 : 0);
}

TEST(Neighbours, TheFlagNamesTheBell) {
  Host host(2);
  const std::pair<uint32_t, int> kFlags[] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {UINT32_MAX, 3}};
  for (const auto& [flag, bells] : kFlags) {
    host.segment().page(1).sleep.store(flag);
    host.neighbours(0).Wake(1);
    EXPECT_EQ(Ringing(host.neighbours(1)), bells) << flag;
    EXPECT_EQ(Ringing(host.neighbours(0)), 0) << "nobody else";
    EXPECT_EQ(host.segment().page(1).sleep.load(), flag) << "only the sleeper clears it";
  }
}

TEST(Neighbours, OneWithNothingUnderWayIsRungOnlyIfItMust) {
  Host host(2);
  host.segment().page(1).sleep.store(static_cast<uint32_t>(Sleep::kIdle));
  host.neighbours(0).Wake(1);
  EXPECT_EQ(Ringing(host.neighbours(1)), 0);
  host.neighbours(0).WakeIdle(1);
  EXPECT_EQ(Ringing(host.neighbours(1)), 1);
  host.segment().page(1).sleep.store(static_cast<uint32_t>(Sleep::kAwake));
  host.neighbours(0).WakeIdle(1);
  EXPECT_EQ(Ringing(host.neighbours(1)), 0);
}

TEST(Neighbours, AFailureRingsEveryBell) {
  Host host(3);
  host.neighbours(1).RingAll();
  for (int local = 0; local < 3; ++local) EXPECT_EQ(Ringing(host.neighbours(local)), 3);
}

TEST(Neighbours, KnowThemselves) {
  Host host(3);
  EXPECT_EQ(host.neighbours(2).self(), 2);
  EXPECT_EQ(host.neighbours(2).count(), 3);
  EXPECT_EQ(&host.neighbours(2).own_page(), &host.segment().page(2));
}

}  // namespace
}  // namespace rueda
