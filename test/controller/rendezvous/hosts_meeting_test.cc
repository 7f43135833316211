// Ranks that meet over TCP, as those of several hosts do; here over loopback, each in a thread.
#include "controller/rendezvous/hosts_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <thread>

#include "controller/bus/socket.h"
#include "controller/rendezvous/host_voice.h"

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
  std::future<Hellos> Begin(Rank rank, int size, const std::string& host,
                            Nanos patience = 60 * kSecond, const std::string& secret = "") {
    return std::async(std::launch::async, [this, rank, size, host, patience, secret] {
      return Gather(rank, size, secret, patience, host);
    });
  }
  // Where rank 0 waits, once it does.
  RendezvousPoint Point() const {
    const std::string path = RendezvousPath(folder_, "job", 1);
    absl::StatusOr<RendezvousPoint> point = ReadRendezvous(path);
    while (!point.ok()) {
      std::this_thread::yield();
      point = ReadRendezvous(path);
    }
    return *std::move(point);
  }
  // The connection of a rank that does it by hand, to rank 0 or to the one that speaks for `host`,
  // once that waits.
  std::unique_ptr<Link> Shake(UniqueFd fd, Rank rank, Rank peer) const {
    auto link = Link::Client(std::move(fd), {Point().secret, "job", 1}, rank, peer);
    EXPECT_TRUE(WaitEstablished(link.get(), MonotonicNow() + 60 * kSecond).ok());
    return link;
  }
  std::unique_ptr<Link> Come(Rank rank) const {
    return Shake(*ConnectTcp(Point().address), rank, 0);
  }
  std::unique_ptr<Link> ComeToVoice(Rank rank, int size, const std::string& host) const {
    const std::string name = MeetingSocketName({"", "job", 1}, HostVoice::NameOf(host));
    absl::StatusOr<UniqueFd> fd = ConnectUnix(name);
    while (!fd.ok()) {
      std::this_thread::yield();
      fd = ConnectUnix(name);
    }
    return Shake(*std::move(fd), rank, HostVoice::PeerNumber(size));
  }
  static void SayHello(Link* link, Rank rank, int size, const std::string& host) {
    wire::Hello hello = HelloOf(rank, size, host);
    hello.set_data_address("127.0.0.1");
    link->Send(FrameType::kHello, hello.SerializeAsString());
    EXPECT_TRUE(WaitFlushed(link, MonotonicNow() + 60 * kSecond).ok());
  }
  static absl::StatusOr<Link::Received> Answer(Link* link) {
    return WaitFrame(link, FrameType::kRoster, MonotonicNow() + 60 * kSecond);
  }
  static void ExpectError(std::future<Hellos>* gathered, absl::StatusCode code,
                          const std::string& text) {
    const absl::Status status = gathered->get().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
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

TEST_F(HostsMeetingTest, RanksOfSeveralHostsLearnWhereAllAre) {
  const std::vector<std::string> hosts = {"a", "b", "b", "a", "c", "b"};
  const int size = static_cast<int>(hosts.size());
  std::vector<std::future<Hellos>> gathered;
  for (Rank rank = 0; rank < size; ++rank) {
    gathered.push_back(Begin(rank, size, hosts[static_cast<size_t>(rank)]));
  }
  for (auto& future : gathered) {
    const Hellos hellos = future.get();
    ASSERT_TRUE(hellos.ok()) << hellos.status();
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      EXPECT_EQ(hellos->at(rank).host_id(), hosts[rank]);
      EXPECT_EQ(hellos->at(rank).data_address(), "127.0.0.1");
    }
  }
}

// Rank 0 by hand: it lets nobody else in.
TEST_F(HostsMeetingTest, OneRankSpeaksForItsHost) {
  constexpr int kSize = 4;
  const Secret secret(std::string(32, 's'));
  UniqueFd door = *ListenTcp("127.0.0.1");
  auto file =
      RendezvousFile::Publish(RendezvousPath(folder_, "job", 1), {*TcpAddressOf(door), secret});
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::future<Hellos>> ranks;
  for (Rank rank = 1; rank < kSize; ++rank) ranks.push_back(Begin(rank, kSize, "b"));
  UniqueFd fd;
  while (!fd.valid()) {
    pollfd waits = {door.get(), POLLIN, 0};
    poll(&waits, 1, -1);
    fd = *Accept(door);
  }
  door.reset();
  auto link = Link::Server(std::move(fd), {secret, "job", 1}, 0);
  ASSERT_TRUE(WaitEstablished(link.get(), MonotonicNow() + 60 * kSecond).ok());
  std::vector<wire::Hello> hellos(kSize);
  for (Rank rank = 1; rank < kSize; ++rank) {
    const auto received = WaitFrame(link.get(), FrameType::kHello, MonotonicNow() + 60 * kSecond);
    ASSERT_TRUE(received.ok()) << received.status();
    wire::Hello hello;
    ASSERT_TRUE(hello.ParseFromString(received->frame.payload));
    hellos.at(static_cast<size_t>(hello.rank())) = hello;
  }
  for (Rank rank = 1; rank < kSize; ++rank) {
    EXPECT_EQ(hellos[static_cast<size_t>(rank)].rank(), rank);
  }
  link->Send(FrameType::kRoster, MakeRoster(hellos).SerializeAsString());
  ASSERT_TRUE(WaitFlushed(link.get(), MonotonicNow() + 60 * kSecond).ok());
  for (auto& rank : ranks) {
    const Hellos gathered = rank.get();
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    EXPECT_EQ(gathered->at(3).host_id(), "b");
  }
}

// Of this host or another; those that came before it don't notice.
TEST_F(HostsMeetingTest, ASecondProcessOfTheSameRankIsRefused) {
  std::future<Hellos> root = Begin(0, 4, "a"), voice = Begin(1, 4, "b");
  const std::unique_ptr<Link> neighbour = ComeToVoice(2, 4, "b");
  SayHello(neighbour.get(), 2, 4, "b");
  for (const Rank rank : {2, 1}) {
    const std::unique_ptr<Link> again = ComeToVoice(rank, 4, "b");
    SayHello(again.get(), rank, 4, "b");
    EXPECT_THAT(std::string(Answer(again.get()).status().message()),
                HasSubstr("two processes say that they are rank"));
  }
  std::future<Hellos> elsewhere = Begin(2, 4, "c");
  ExpectError(&elsewhere, absl::StatusCode::kFailedPrecondition,
              "two processes say that they are rank 2");
  // Behind a voice that may stay.
  const std::unique_ptr<Link> other_voice = Come(3);
  SayHello(other_voice.get(), 2, 4, "d");
  SayHello(other_voice.get(), 3, 4, "d");
  const auto refusal = Answer(other_voice.get());
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  wire::Roster roster;
  ASSERT_TRUE(roster.ParseFromString(refusal->frame.payload));
  EXPECT_EQ(roster.refused(), 2);
  for (std::future<Hellos>* of_job : {&root, &voice}) {
    const Hellos hellos = of_job->get();
    ASSERT_TRUE(hellos.ok()) << hellos.status();
    EXPECT_EQ(hellos->at(2).host_id(), "b");
  }
  EXPECT_TRUE(Answer(neighbour.get()).ok());
}

TEST_F(HostsMeetingTest, ARankThatAnotherHostHasIsRefusedByItsVoice) {
  std::future<Hellos> root = Begin(0, 4, "a");
  const std::unique_ptr<Link> elsewhere = Come(2);
  SayHello(elsewhere.get(), 2, 4, "c");
  std::future<Hellos> voice = Begin(1, 4, "b");
  std::unique_ptr<Link> neighbour = ComeToVoice(2, 4, "b");
  SayHello(neighbour.get(), 2, 4, "b");
  EXPECT_THAT(std::string(Answer(neighbour.get()).status().message()),
              HasSubstr("two processes say that they are rank 2"));
  neighbour.reset();
  std::future<Hellos> last = Begin(3, 4, "b");
  for (std::future<Hellos>* of_job : {&root, &voice, &last}) EXPECT_TRUE(of_job->get().ok());
}

// By all, long before their time is up.
TEST_F(HostsMeetingTest, ALostRankIsNamed) {
  std::future<Hellos> root = Begin(0, 4, "a"), voice = Begin(1, 4, "b");
  std::unique_ptr<Link> neighbour = ComeToVoice(3, 4, "b");
  SayHello(neighbour.get(), 3, 4, "b");
  neighbour.reset();
  for (std::future<Hellos>* of_job : {&root, &voice}) {
    ExpectError(of_job, absl::StatusCode::kUnavailable, "rank 3 was lost");
  }
}

TEST_F(HostsMeetingTest, ALostVoiceIsNamed) {
  std::future<Hellos> root = Begin(0, 4, "a");
  std::unique_ptr<Link> voice = Come(1);
  SayHello(voice.get(), 1, 4, "b");
  const std::unique_ptr<Link> other = Come(3);
  // The second time it is refused, so that it is known to have been let in.
  for (int i = 0; i < 2; ++i) SayHello(other.get(), 2, 4, "c");
  ASSERT_TRUE(Answer(other.get()).ok());
  voice.reset();
  ExpectError(&root, absl::StatusCode::kUnavailable, "rank 1 was lost");
  const auto answer = Answer(other.get());
  ASSERT_TRUE(answer.ok()) << answer.status();
  wire::Roster roster;
  ASSERT_TRUE(roster.ParseFromString(answer->frame.payload));
  EXPECT_THAT(roster.error(), HasSubstr("rank 1 was lost"));
}

// The others of the host are not waited for, who would only find out the same.
TEST_F(HostsMeetingTest, AHostWithAnotherSecretIsTold) {
  constexpr Nanos kLimit = 30 * kSecond;
  const Nanos begin = MonotonicNow();
  std::future<Hellos> root = Begin(0, 4, "a", 6 * kSecond, std::string(32, 'a'));
  std::vector<std::future<Hellos>> others;
  for (const Rank rank : {1, 2, 3}) {
    others.push_back(Begin(rank, 4, "b", kLimit, std::string(32, 'b')));
  }
  for (std::future<Hellos>& other : others) {
    ExpectError(&other, absl::StatusCode::kUnauthenticated, "have different secrets");
  }
  EXPECT_LT(MonotonicNow() - begin, kLimit / 2);
  ExpectError(&root, absl::StatusCode::kDeadlineExceeded, "ranks 1-3 did not come");
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
