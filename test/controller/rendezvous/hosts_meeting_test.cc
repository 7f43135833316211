// Ranks that meet over TCP, as those of several hosts do; here over loopback, each in a thread.
#include "controller/rendezvous/hosts_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <thread>

#include "controller/bus/socket.h"

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

  static wire::Hello HelloOf(Rank rank, int size, const std::string& host) {
    wire::Hello hello;
    hello.set_rank(rank);
    hello.set_size(size);
    hello.set_host_id(host);
    return hello;
  }
  Hellos Gather(Rank rank, int size, const std::string& secret, Nanos patience,
                const std::string& host = "a") {
    auto meeting = HostsMeeting::Create({secret, "job", 1}, rank, size, Settings());
    EXPECT_TRUE(meeting.ok()) << meeting.status();
    return (*meeting)->Gather(HelloOf(rank, size, host), MonotonicNow() + patience);
  }
  // The connection to rank 0 of a rank that does it by hand, once rank 0 waits.
  std::unique_ptr<Link> Come(Rank rank) {
    const std::string path = RendezvousPath(folder_, "job", 1);
    absl::StatusOr<RendezvousPoint> point = ReadRendezvous(path);
    while (!point.ok()) {
      std::this_thread::yield();
      point = ReadRendezvous(path);
    }
    auto link = Link::Client(*ConnectTcp(point->address), {point->secret, "job", 1}, rank, 0);
    EXPECT_TRUE(WaitEstablished(link.get(), MonotonicNow() + 60 * kSecond).ok());
    return link;
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

// Those of another host from its first rank; rank 0 tells each host once.
TEST_F(HostsMeetingTest, RanksOfSeveralHostsLearnWhereAllAre) {
  const std::vector<std::string> hosts = {"a", "b", "b", "a", "c", "b"};
  const int size = static_cast<int>(hosts.size());
  std::vector<std::future<Hellos>> gathered;
  for (Rank rank = 0; rank < size; ++rank) {
    gathered.push_back(std::async(std::launch::async, [&, rank] {
      return Gather(rank, size, "", 60 * kSecond, hosts[static_cast<size_t>(rank)]);
    }));
  }
  for (auto& future : gathered) {
    const Hellos hellos = future.get();
    ASSERT_TRUE(hellos.ok()) << hellos.status();
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      EXPECT_EQ(hellos->at(rank).host_id(), hosts[rank]);
    }
  }
}

// Its neighbours are told who did not.
TEST_F(HostsMeetingTest, ARankThatDoesNotAskItsNeighbourIsNamed) {
  const auto begin = [this](Rank rank, Nanos patience) {
    return std::async(std::launch::async, [this, rank, patience] {
      return Gather(rank, 4, "", patience, rank == 0 ? "a" : "b");
    });
  };
  std::future<Hellos> root = begin(0, 60 * kSecond);
  std::future<Hellos> third = begin(3, 60 * kSecond);
  const std::unique_ptr<Link> link = Come(2);
  link->Send(FrameType::kHello, HelloOf(2, 4, "b").SerializeAsString());
  std::future<Hellos> first = begin(1, 4 * kSecond);
  const auto received = WaitFrame(link.get(), FrameType::kRoster, MonotonicNow() + 60 * kSecond);
  ASSERT_TRUE(received.ok()) << received.status();
  wire::Roster roster;
  ASSERT_TRUE(roster.ParseFromString(received->frame.payload));
  EXPECT_EQ(AskOf(roster, 4), 1);
  EXPECT_TRUE(root.get().ok());
  for (std::future<Hellos>* of_host : {&first, &third}) {
    const absl::Status status = of_host->get().status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 did not come"));
  }
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
