// Doorbells, between threads too.
#include "core/base/doorbell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace rueda {
namespace {

Doorbell NewBell() {
  absl::StatusOr<Doorbell> bell = Doorbell::Create();
  EXPECT_TRUE(bell.ok()) << bell.status();
  return *std::move(bell);
}

bool Rings(const Doorbell& bell, int timeout_ms = 0) {
  pollfd wait = {bell.fd(), POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

TEST(Doorbell, IsSilentUntilRung) {
  const Doorbell bell = NewBell();
  EXPECT_TRUE(bell.valid());
  EXPECT_FALSE(Rings(bell));
  bell.Ring();
  EXPECT_TRUE(Rings(bell));
  EXPECT_TRUE(Rings(bell)) << "looking is not clearing";
}

TEST(Doorbell, ClearForgetsAllRings) {
  const Doorbell bell = NewBell();
  for (int i = 0; i < 3; ++i) bell.Ring();
  bell.Clear();
  EXPECT_FALSE(Rings(bell));
  bell.Clear();  // must not block
  bell.Ring();
  EXPECT_TRUE(Rings(bell));
}

TEST(Doorbell, RingingAFullCounterDoesNotBlock) {
  const Doorbell bell = NewBell();
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(write(bell.fd(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  bell.Ring();
  EXPECT_TRUE(Rings(bell));
  bell.Clear();
  EXPECT_FALSE(Rings(bell));
}

TEST(Doorbell, ACopyIsTheSameBell) {
  Doorbell first = NewBell();
  const Doorbell second = first;
  EXPECT_EQ(second.fd(), first.fd());
  first.Ring();
  EXPECT_TRUE(Rings(second));
  second.Clear();
  EXPECT_FALSE(Rings(first));
  first = Doorbell();
  second.Ring();
  EXPECT_TRUE(Rings(second));
}

TEST(Doorbell, IsNotInherited) {
  const Doorbell bell = NewBell();
  EXPECT_NE(fcntl(bell.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Doorbell, WithoutADescriptorIsNotValid) {
  EXPECT_FALSE(Doorbell().valid());
}

TEST(Doorbell, HandsWordsOverBetweenThreads) {
  const Doorbell there = NewBell();
  const Doorbell back = NewBell();
  constexpr int kRounds = 2'000;
  int word = 0;  // whoever was rung may touch it
  const auto await = [](const Doorbell& bell) {
    while (!Rings(bell, -1)) {
    }
    bell.Clear();
  };
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      await(there);
      ++word;
      back.Ring();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    ++word;
    there.Ring();
    await(back);
    ASSERT_EQ(word, 2 * (i + 1));
  }
  other.join();
}

}  // namespace
}  // namespace rueda
