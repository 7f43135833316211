// Sleeping on a word, between threads.
#include "core/base/futex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace rueda {
namespace {

TEST(Futex, DoesNotSleepOnAWordThatHasChanged) {
  const std::atomic<uint32_t> word{1};
  FutexWait(word, 0, kForever);
}

TEST(Futex, DoesNotSleepPastItsDeadline) {
  const std::atomic<uint32_t> word{0};
  FutexWait(word, 0, MonotonicNow() - 1);
  FutexWait(word, 0, 0);
  const Nanos soon = MonotonicNow() + 2 * kMillisecond;
  while (MonotonicNow() < soon) FutexWait(word, 0, soon);
}

TEST(Futex, HandsOverBetweenThreads) {
  constexpr uint32_t kRounds = 5'000;
  std::atomic<uint32_t> word{0};
  uint64_t handed = 0;  // belongs to the one whose turn it is
  const auto play = [&](uint32_t mine) {
    for (uint32_t turn = mine; turn < kRounds; turn += 2) {
      for (uint32_t seen; (seen = word.load(std::memory_order_acquire)) != turn;) {
        FutexWait(word, seen, kForever);
      }
      handed += turn;
      word.store(turn + 1, std::memory_order_release);
      FutexWakeAll(word);
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(handed, uint64_t{kRounds} * (kRounds - 1) / 2);
}

TEST(Futex, WakesEverySleeper) {
  std::atomic<uint32_t> word{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      while (word.load(std::memory_order_acquire) == 0) FutexWait(word, 0, kForever);
    });
  }
  word.store(1, std::memory_order_release);
  FutexWakeAll(word);
  for (std::thread& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace rueda
