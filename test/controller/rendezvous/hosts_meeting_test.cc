// Ranks that meet over TCP, as those of several hosts do; here over loopback, each in a thread.
#include "controller/rendezvous/hosts_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <thread>

namespace rueda {
namespace {

using ::testing::HasSubstr;
using Hellos = absl::StatusOr<std::vector<wire::Hello>>;

class HostsMeetingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rueda-meeting-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Config Settings() const {
    Config config;
    config.shared_dir = folder_;
    config.network_interface = "lo";
    return config;
  }

  Hellos Gather(Rank rank, int size, const std::string& secret, Nanos patience) {
    auto meeting = HostsMeeting::Create({secret, "job", 1}, rank, size, Settings());
    EXPECT_TRUE(meeting.ok()) << meeting.status();
    wire::Hello hello;
    hello.set_rank(rank);
    hello.set_size(size);
    return (*meeting)->Gather(hello, MonotonicNow() + patience);
  }

  std::string folder_;
};

TEST_F(HostsMeetingTest, RanksMeet) {
  Hellos first, second;
  std::thread other([&] { second = Gather(1, 2, "", 60 * kSecond); });
  first = Gather(0, 2, "", 60 * kSecond);
  other.join();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->size(), 2u);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// Long before the time is up, and both sides.
TEST_F(HostsMeetingTest, ARankWithAnotherSecretIsTold) {
  constexpr Nanos kLimit = 20 * kSecond;
  const Nanos begin = MonotonicNow();
  Hellos second;
  Nanos told = 0;
  std::thread other([&] {
    second = Gather(1, 2, std::string(32, 'b'), kLimit);
    told = MonotonicNow() - begin;
  });
  const Hellos first = Gather(0, 2, std::string(32, 'a'), 4 * kSecond);
  other.join();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnauthenticated) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("rank 0 and rank 1 have different secrets"));
  EXPECT_LT(told, kLimit / 2);
  EXPECT_EQ(first.status().code(), absl::StatusCode::kDeadlineExceeded) << first.status();
  EXPECT_THAT(std::string(first.status().message()),
              HasSubstr("does it have another secret, or another job's name?"));
}

// Rank 1 still sends its hello, which is long, when rank 0 gives up, since rank 2 does not come.
TEST_F(HostsMeetingTest, EveryRankIsToldWhyTheStartFailed) {
  Hellos second;
  std::thread other([&] {
    auto meeting = HostsMeeting::Create({"", "job", 1}, 1, 3, Settings());
    wire::Hello hello;
    hello.set_rank(1);
    hello.set_version(std::string(12 << 20, 'v'));
    second = (*meeting)->Gather(hello, MonotonicNow() + 20 * kSecond);
  });
  const Hellos first = Gather(0, 3, "", kSecond);
  other.join();
  EXPECT_THAT(std::string(first.status().message()), HasSubstr("rank 2 did not come"));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kDeadlineExceeded) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("rank 2 did not come"));
}

}  // namespace
}  // namespace rueda
