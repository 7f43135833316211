// Who is let in at the start of a job, over real TCP on loopback, while strangers knock.
#include "controller/rendezvous/admission.h"
#include "controller/protocol/lost.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "controller/bus/socket.h"
#include "controller/rendezvous/leader_link.h"
#include "controller/rendezvous/refused_peers.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

const SessionScope kScope = {std::string(32, 's'), "job", 7};
constexpr Nanos kPatience = 60 * kSecond;

class AdmissionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = *ListenTcp("127.0.0.1");
    address_ = *TcpAddressOf(listener_);
  }

  UniqueFd Knock() const {
    UniqueFd fd = *ConnectTcp(address_);
    pollfd writable = {fd.get(), POLLOUT, 0};
    poll(&writable, 1, -1);
    return fd;
  }
  UniqueFd KnockFrom(const char* address) const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in self = {};
    self.sin_family = AF_INET;
    inet_pton(AF_INET, address, &self.sin_addr);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&self), sizeof self), 0);
    sockaddr_in door = {};
    socklen_t size = sizeof door;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&door), &size);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&door), size), 0);
    return fd;
  }
  static void ReceiveAll(const UniqueFd& fd, std::string* bytes) {
    pollfd readable = {fd.get(), POLLIN, 0};
    poll(&readable, 1, -1);
    ASSERT_EQ(recv(fd.get(), bytes->data(), bytes->size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes->size()));
  }
  void Say(const UniqueFd& fd, const std::string& text) const {
    ASSERT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Blocks until the other end has closed, with or without a word.
  static void AwaitClose(const UniqueFd& fd) {
    char bytes[256];
    while (true) {
      pollfd readable = {fd.get(), POLLIN, 0};
      poll(&readable, 1, -1);
      if (recv(fd.get(), bytes, sizeof bytes, 0) <= 0) return;
    }
  }
  // Whether the rank was let in, as far as it can tell. Its connection stays until the test's end.
  bool Join(Rank rank, const SessionScope& scope = kScope, Rank server = 0) {
    auto link = Link::Client(*ConnectTcp(address_), scope, rank, server);
    absl::Status status = WaitEstablished(link.get(), MonotonicNow() + kPatience);
    status.Update(WaitFlushed(link.get(), MonotonicNow() + kPatience));
    const std::lock_guard<std::mutex> lock(mutex_);
    joined_.push_back(std::move(link));
    return status.ok();
  }
  // What the last one that joined is told.
  absl::Status Answer() {
    return WaitFrame(joined_.back().get(), FrameType::kRoster, MonotonicNow() + kPatience).status();
  }
  absl::Status Admit(const std::vector<Rank>& expected, Nanos patience = kPatience) {
    return AdmitRanks(listener_, expected, kScope, 0, MonotonicNow() + patience, &admitted_);
  }

  UniqueFd listener_;
  std::string address_;
  std::map<Rank, std::unique_ptr<Link>> admitted_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> joined_;
};

TEST_F(AdmissionTest, LetsEveryExpectedRankIn) {
  std::vector<std::thread> ranks;
  for (const Rank rank : {3, 1, 2}) {
    ranks.emplace_back([this, rank] { EXPECT_TRUE(Join(rank)); });
  }
  EXPECT_TRUE(Admit({1, 2, 3}).ok());
  for (std::thread& rank : ranks) rank.join();
  ASSERT_EQ(admitted_.size(), 3u);
  for (const auto& [rank, link] : admitted_) EXPECT_EQ(link->peer(), rank);
}

TEST_F(AdmissionTest, RefusesWhoKnowsNotTheSecretTheJobTheMembershipOrTheServer) {
  std::thread clients([this] {
    EXPECT_FALSE(Join(1, {std::string(32, 'x'), "job", 7}));
    EXPECT_FALSE(Join(1, {kScope.secret, "another", 7}));
    EXPECT_FALSE(Join(1, {kScope.secret, "job", 6}));
    EXPECT_FALSE(Join(1, kScope, 2));  // takes rank 0 for rank 2
    EXPECT_TRUE(Join(1));
  });
  EXPECT_TRUE(Admit({1}).ok());
  clients.join();
}

TEST_F(AdmissionTest, NoticesThatARankIsLostWhileItWaitsForAnother) {
  std::thread rank([this] {
    EXPECT_TRUE(Join(1));
    joined_.clear();
  });
  const absl::Status status = Admit({1, 2});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 1 was lost while the job started"));
  rank.join();
}

// It is told why the job does not start.
TEST_F(AdmissionTest, LetsInWhoIsProvingItselfWhenAnotherIsLost) {
  std::thread ranks([this] {
    UniqueFd comes = Knock();
    EXPECT_TRUE(Join(1));
    joined_.clear();
    joined_.push_back(Link::Client(std::move(comes), kScope, 2, 0));
    EXPECT_TRUE(WaitEstablished(joined_.back().get(), MonotonicNow() + kPatience).ok());
  });
  EXPECT_THAT(Admit({1, 2, 3}).message(), HasSubstr("rank 1 was lost while the job started"));
  ranks.join();
  EXPECT_EQ(admitted_.count(2), 1u);
}

TEST_F(AdmissionTest, LetsInWhoHasKnockedWhenTheStartHasFailed) {
  auto comes = Link::Client(Knock(), kScope, 2, 0);
  std::thread rank(
      [&] { EXPECT_TRUE(WaitEstablished(comes.get(), MonotonicNow() + kPatience).ok()); });
  const std::vector<Rank> expected = {1, 2};
  Admission(expected, kScope, 0, &admitted_, nullptr).HearOut(listener_);
  rank.join();
  EXPECT_EQ(admitted_.count(2), 1u);
}

TEST_F(AdmissionTest, IsNotDisturbedByNoise) {
  std::atomic<bool> over{false};
  std::thread strangers([&] {
    std::mt19937 random(1);
    for (int i = 0; i < 300; ++i) {
      const UniqueFd fd = Knock();
      switch (i % 4) {
        case 0:
          break;  // connects and goes
        case 1:
          Say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
          break;
        case 2: {
          std::string noise(random() % 4'000, '\0');
          for (char& byte : noise) byte = static_cast<char>(random());
          Say(fd, noise);
          break;
        }
        default:
          Say(fd, std::string("\x16\x03\x01\x02\x00\x01", 6));  // the start of a TLS hello
      }
    }
    EXPECT_TRUE(Join(1));
    over = true;
  });
  EXPECT_TRUE(Admit({1}).ok());
  strangers.join();
  EXPECT_TRUE(over);
  EXPECT_EQ(admitted_.size(), 1u);
}

TEST_F(AdmissionTest, LetsARankInPastManyWhoSayNothing) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(Knock());
  std::thread rank([this] { EXPECT_TRUE(Join(1)); });
  EXPECT_TRUE(Admit({1}).ok());
  rank.join();
}

TEST_F(AdmissionTest, CutsOffWhoSaysNothing) {
  const UniqueFd silent = Knock();
  const UniqueFd slow = Knock();
  Say(slow, "R");
  std::thread rank([&] {
    AwaitClose(silent);  // only then does the rank come
    AwaitClose(slow);
    EXPECT_TRUE(Join(1));
  });
  EXPECT_TRUE(Admit({1}).ok());
  rank.join();
}

TEST_F(AdmissionTest, KeepsNoMoreStrangersThanItsLimit) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Knock());
  std::thread rank([&] {
    AwaitClose(silent.front());  // makes room for the last
    for (UniqueFd& fd : silent) fd.reset();
    EXPECT_TRUE(Join(1));
  });
  EXPECT_TRUE(Admit({1}).ok());
  rank.join();
}

TEST_F(AdmissionTest, NamesThoseWhoDidNotCome) {
  std::thread rank([this] { EXPECT_TRUE(Join(2)); });
  const absl::Status status = Admit({1, 2, 3}, kSecond / 2);
  rank.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 1, 3"));
  EXPECT_EQ(admitted_.count(2), 1u);  // to be told
}

TEST_F(AdmissionTest, TheFirstOfTwoThatSayTheyAreOneRankKeepsItsPlace) {
  std::thread ranks([this] {
    ASSERT_TRUE(Join(1));
    ASSERT_TRUE(Join(1));
    const absl::Status second = Answer();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
    EXPECT_THAT(second.message(), HasSubstr("two processes say that they are rank 1"));
    ASSERT_TRUE(Join(2));
    ASSERT_TRUE(joined_[0]->OnReadable().ok()) << "the first was cut off";
    joined_[0]->Send(FrameType::kHello, "I am the first");
    EXPECT_TRUE(WaitFlushed(joined_[0].get(), MonotonicNow() + kPatience).ok());
  });
  const absl::Status status = Admit({1, 2});
  ranks.join();
  ASSERT_TRUE(status.ok()) << status;
  const auto heard = WaitFrame(admitted_[1].get(), FrameType::kHello, MonotonicNow() + kPatience);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->frame.payload, "I am the first");
}

TEST_F(AdmissionTest, TellsARankThatItDoesNotWaitForIt) {
  std::thread ranks([this] {
    ASSERT_TRUE(Join(5));
    EXPECT_THAT(Answer().message(), HasSubstr("rank 5 of this job, which is not waited for here"));
    ASSERT_TRUE(Join(1));
  });
  EXPECT_TRUE(Admit({1, 2}, kSecond).code() == absl::StatusCode::kDeadlineExceeded);
  ranks.join();
  EXPECT_EQ(admitted_.size(), 1u);
}

// As one that the kernel has dropped, or that was taken for a stranger too many.
TEST_F(AdmissionTest, ALeaderTriesAgain) {
  absl::StatusOr<std::unique_ptr<Link>> link;  // until the root has seen it
  std::thread leader([&] {
    link = ConnectToLeader(0, address_, kScope, 1, MonotonicNow() + kPatience);
    EXPECT_TRUE(link.ok()) << link.status();
  });
  for (int i = 0; i < 3; ++i) {
    pollfd readable = {listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, 20'000), 1);
    EXPECT_TRUE(Accept(listener_)->valid());  // and closed at once
  }
  EXPECT_TRUE(Admit({1}, 20 * kSecond).ok());
  leader.join();
}

TEST_F(AdmissionTest, ALeaderDoesNotTryWhereNobodyListensOrWhoeverHasAnotherSecret) {
  std::thread root([this] { (void)Admit({1}, kSecond / 2); });
  const auto refused =
      ConnectToLeader(0, address_, {std::string(32, 'x'), "job", 7}, 1, MonotonicNow() + kPatience);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
  root.join();
  listener_.reset();
  const auto nobody = ConnectToLeader(0, address_, kScope, 1, kForever);
  EXPECT_EQ(LostRank(nobody.status()), 0) << nobody.status();
}

// All of 127.0.0.0/8 is this host: crowds from one address, the rank from another.
TEST_F(AdmissionTest, ACrowdFromOneAddressDoesNotPushOutARankOfAnother) {
  std::vector<UniqueFd> crowd;
  std::thread clients([&] {
    const UniqueFd fd = Knock();
    Handshake rank = Handshake::Client(kScope, 1, 0, {1});
    Say(fd, rank.Begin());
    std::string reply(Handshake::kReplyBytes, 0);
    ReceiveAll(fd, &reply);
    for (int i = 0; i < 200; ++i) crowd.push_back(KnockFrom("127.0.0.2"));
    AwaitClose(crowd[0]);  // it was one too many
    Say(fd, *rank.Receive(reply));
    AwaitClose(fd);
  });
  EXPECT_TRUE(Admit({1}).ok());
  admitted_.clear();
  clients.join();
}

TEST_F(AdmissionTest, LetsARankInThoughStrangersHaveTakenTheLastDescriptors) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(Knock());
  const UniqueFd fd = Knock();
  Handshake rank = Handshake::Client(kScope, 1, 0, {1});
  Say(fd, rank.Begin());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {static_cast<rlim_t>(fd.get()) + 4, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::thread client([&] {
    std::string reply(Handshake::kReplyBytes, 0);
    ReceiveAll(fd, &reply);
    Say(fd, *rank.Receive(reply));
  });
  const absl::Status status = Admit({1});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  if (!status.ok()) listener_.reset();  // so that the client need not wait
  client.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(AdmissionTest, TakesMoreRanksThanThereAreDescriptors) {
  constexpr Rank kRanks = 60;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {static_cast<rlim_t>(listener_.get()) + kRanks / 2, before.rlim_max};
  if (few.rlim_cur / 2 + kRanks > before.rlim_max) GTEST_SKIP() << "the hard limit is low";
  std::vector<Rank> all;
  for (Rank rank = 1; rank <= kRanks; ++rank) all.push_back(rank);
  // In a process of their own, which has as many.
  const int clients = fork();
  if (clients == 0) {
    bool ok = true;
    for (const Rank rank : all) ok &= Join(rank);
    pause();
    _exit(ok ? 0 : 1);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::Status status = Admit(all);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  kill(clients, SIGKILL);
  waitpid(clients, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(AdmissionTest, HasALineASecondForThoseWhomItTurnsAway) {
  testing::internal::CaptureStderr();
  std::thread clients([this] {
    for (int i = 0; i < 500; ++i) Say(Knock(), std::string(56, 'x'));
    EXPECT_TRUE(Join(1));
  });
  const Nanos begin = MonotonicNow();
  EXPECT_TRUE(Admit({1}).ok());
  const int64_t seconds = (MonotonicNow() - begin) / kSecond;
  clients.join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), seconds + 2) << log;
  EXPECT_THAT(log, HasSubstr("refused a connection, from 127.0.0.1: "));
}

TEST_F(AdmissionTest, SaysThatAnotherSecretMayBeTheReasonWhyARankIsMissing) {
  std::thread rank([this] {
    EXPECT_FALSE(Join(1, {std::string(32, 'x'), "job", 7}));
    joined_.clear();
  });
  const absl::Status status = Admit({1}, 3 * kSecond);
  rank.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not come"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("1 connection was refused, the last from 127.0.0.1: it said that it is "
                        "rank 1, and went before it had proved it"));
}

TEST(RefusedPeers, HasALineASecond) {
  RefusedPeers refused_peers;
  EXPECT_EQ(refused_peers.Summary(), "");
  EXPECT_EQ(refused_peers.Rest(), "");
  EXPECT_EQ(refused_peers.Add("a", "one", 5 * kSecond), "start: refused a connection, from a: one");
  EXPECT_EQ(refused_peers.Add("b", "two", 5 * kSecond), "");
  EXPECT_EQ(refused_peers.Add("", "three", 6 * kSecond - 1), "");
  EXPECT_EQ(refused_peers.Add("", "four", 6 * kSecond),
            "start: refused a connection, four (and 2 others before it)");
  EXPECT_EQ(refused_peers.Rest(), "");
  EXPECT_EQ(refused_peers.Add("c", "five", 6 * kSecond), "");
  EXPECT_EQ(refused_peers.Rest(), "start: refused 1 more connections, the last from c: five");
  EXPECT_EQ(refused_peers.Rest(), "");
  EXPECT_EQ(refused_peers.Summary(), "; 5 connections were refused, the last from c: five");
}

}  // namespace
}  // namespace rueda
