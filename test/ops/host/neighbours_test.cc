// Who is rung, by the sleeper's flag: in one thread, then between two.
#include "ops/host/neighbours.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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

// Two threads hand a number to each other. Who waits looks a few times, and then sleeps as the
// engine does: it says so, looks once more, and polls its bell. A wake that is lost is a bell that
// never rings. Without the fence in WakeSelf one run in three fails, on x86 and a busy machine.
TEST(Neighbours, NoWakeIsLost) {
  constexpr int kTurns = 200'000;
  constexpr int kPatienceMs = 20'000;
  Host host(2);
  std::atomic<int> turn{0};  // whose: even, odd
  const auto play = [&](int self) {
    const Neighbours& ours = host.neighbours(self);
    std::atomic<uint32_t>& asleep = host.segment().page(self).sleep;
    for (int seen, looks = 0; (seen = turn.load(std::memory_order_relaxed)) < kTurns;) {
      if (seen % 2 == self) {
        turn.store(seen + 1, std::memory_order_relaxed);
        host.neighbours(1 - self).WakeSelf();  // with the fence that belongs behind the store
        looks = seen * 7 % 4'001;
        continue;
      }
      if (looks-- > 0) continue;
      asleep.store(static_cast<uint32_t>(Sleep::kWaiter), std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (turn.load(std::memory_order_relaxed) == seen) {
        pollfd bell = {ours.own_bells().waiter.fd(), POLLIN, 0};
        ASSERT_EQ(poll(&bell, 1, kPatienceMs), 1) << "nobody rang at turn " << seen;
        ours.own_bells().waiter.Clear();
      }
      asleep.store(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_relaxed);
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
}

TEST(Neighbours, KnowThemselves) {
  Host host(3);
  EXPECT_EQ(host.neighbours(2).self(), 2);
  EXPECT_EQ(host.neighbours(2).count(), 3);
  EXPECT_EQ(&host.neighbours(2).own_page(), &host.segment().page(2));
}

}  // namespace
}  // namespace rueda
