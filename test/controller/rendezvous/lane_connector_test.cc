// Connections of lanes, over real TCP on loopback: threads that meet in a store in memory, while
// strangers knock.
#include "controller/rendezvous/lane_connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <thread>
#include <vector>

#include "controller/bus/link.h"
#include "controller/bus/socket.h"
#include "controller/protocol/lost.h"
#include "test/ops/backend/memory_store.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

const SessionScope kScope = {std::string(32, 's'), "job", 7};
constexpr Nanos kPatience = 60 * kSecond;

class LaneConnectorTest : public ::testing::Test {
 protected:
  struct Member {
    explicit Member(std::shared_ptr<Store> store) : view(std::move(store)) {}
    LaneStore view;
    LaneConnector connector{kScope, "127.0.0.1"};
  };

  absl::StatusOr<std::vector<Connection>> Connect(Member& member, int self,
                                                  Nanos timeout = kPatience) {
    return member.connector.Connect({"lane", ranks_, self, timeout, &member.view});
  }
  // Runs body(member, index) on a thread for each index.
  void Run(const std::vector<int>& indices, const std::function<void(Member&, int)>& body) {
    std::vector<std::thread> threads;
    for (const int index : indices) {
      threads.emplace_back([&, index] {
        Member member(store_);
        body(member, index);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Where a member waits, once it does.
  std::string AddressOf(int index) {
    const std::atomic<bool> never{false};
    return *store_->Get("lane/" + std::to_string(index), kPatience, never);
  }
  static void AwaitReadable(const UniqueFd& fd) {
    pollfd wait = {fd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, static_cast<int>(kPatience / kMillisecond)), 1);
  }

  // Until one of them has closed.
  static void Carry(const UniqueFd& client, const UniqueFd& server, bool holds_back) {
    std::string held;
    while (true) {
      pollfd waits[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      ASSERT_GT(poll(waits, 2, static_cast<int>(kPatience / kMillisecond)), 0);
      for (const int i : {0, 1}) {
        if (waits[i].revents == 0) continue;
        char bytes[256];
        const ssize_t n = recv(waits[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0 && i == 1 && holds_back) {
          held.append(bytes, static_cast<size_t>(n));
        } else if (n > 0) {
          send(waits[1 - i].fd, bytes, static_cast<size_t>(n), MSG_NOSIGNAL);
        } else if (n == 0 || errno != EAGAIN) {
          if (i == 1) send(client.get(), held.data(), held.size(), MSG_NOSIGNAL);
          return;
        }
      }
    }
  }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<Rank> ranks_ = {3, 1, 8};
};

// Each says who it is as soon as it is connected, perhaps before the other end knows: it is read
// there, and by nobody else.
TEST_F(LaneConnectorTest, EveryMemberHasAConnectionToEveryOther) {
  for (int round = 0; round < 20; ++round) {
    ranks_[0] = 100 + round;
    Run({0, 1, 2}, [&](Member& member, int self) {
      const std::string key = "lane" + std::to_string(round);
      const absl::StatusOr<std::vector<Connection>> sockets =
          member.connector.Connect({key, ranks_, self, kPatience, &member.view});
      ASSERT_TRUE(sockets.ok()) << sockets.status();
      ASSERT_EQ(sockets->size(), 3u);
      for (int peer = 0; peer < 3; ++peer) {
        const UniqueFd& socket = (*sockets)[static_cast<size_t>(peer)].fd;
        EXPECT_EQ(socket.valid(), peer != self);
        const char word = static_cast<char>('a' + self);
        if (peer == self) continue;
        EXPECT_EQ(send(socket.get(), &word, 1, MSG_NOSIGNAL), 1);
      }
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == self) continue;
        const UniqueFd& socket = (*sockets)[static_cast<size_t>(peer)].fd;
        AwaitReadable(socket);
        char words[2];
        ASSERT_EQ(recv(socket.get(), words, 2, MSG_DONTWAIT), 1);
        EXPECT_EQ(words[0], 'a' + peer);
      }
    });
  }
}

TEST_F(LaneConnectorTest, StrangersStayOutsideAndHoldUpNobody) {
  std::vector<absl::StatusOr<std::vector<Connection>>> sockets(3);  // open until all have theirs
  const auto connect = [&](Member& member, int self) {
    sockets[static_cast<size_t>(self)] = Connect(member, self);
  };
  std::thread members([&] { Run({0, 2}, connect); });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(*ConnectTcp(AddressOf(0)));
  // Another job's, one of this job that is in no lane, and one of another lane.
  for (const SessionScope& scope : {SessionScope{std::string(32, 'x'), "job/lane", 7},
                                    SessionScope{std::string(32, 's'), "job", 7},
                                    SessionScope{std::string(32, 's'), "job/lane2", 7}}) {
    auto link = Link::Client(*ConnectTcp(AddressOf(0)), scope, ranks_[1], ranks_[0]);
    EXPECT_FALSE(WaitEstablished(link.get(), MonotonicNow() + kPatience).ok());
  }
  Run({1}, connect);
  members.join();
  for (const auto& each : sockets) EXPECT_TRUE(each.ok()) << each.status();
}

// And so is who gave up waiting.
TEST_F(LaneConnectorTest, WhoDoesNotComeIsNamed) {
  Run({0, 1}, [&](Member& member, int self) {
    const Nanos timeout = self == 0 ? kPatience : 300 * kMillisecond;
    const absl::Status status = Connect(member, self, timeout).status();
    EXPECT_EQ(absl::IsUnavailable(status), self == 0) << status;
    EXPECT_EQ(absl::IsDeadlineExceeded(status), self == 1) << status;
    EXPECT_EQ(LostRank(status), self == 0 ? 1 : 8);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(self == 0 ? "rank 1 was lost" : "rank 8 did not connect to rank 1"));
  });
}

// It has proved itself by then, and does not take itself for let in.
TEST_F(LaneConnectorTest, WhoIsRefusedBecauseItWasStoppedTriesAgain) {
  ranks_ = {3, 1};
  std::thread server([&] {
    Run({0}, [&](Member& member, int self) {
      const absl::StatusOr<std::vector<Connection>> sockets = Connect(member, self);
      EXPECT_TRUE(sockets.ok()) << sockets.status();
    });
  });
  const std::string door = AddressOf(0);
  const UniqueFd other_door = *ListenTcp("127.0.0.1");
  ASSERT_EQ(store_->Set("lane/0", *TcpAddressOf(other_door)), absl::OkStatus());
  std::thread client([&] {
    Run({1}, [&](Member& member, int self) {
      const absl::StatusOr<std::vector<Connection>> sockets = Connect(member, self);
      EXPECT_TRUE(sockets.ok()) << sockets.status();
    });
  });
  // Between the two, carries what they say to each other; of the first connection nothing that the
  // server says, until it has closed that.
  for (const bool holds_back : {true, false}) {
    AwaitReadable(other_door);
    const UniqueFd from = *Accept(other_door);
    const UniqueFd to = *ConnectTcp(door);
    Carry(from, to, holds_back);
  }
  client.join();
  server.join();
}

// One knows where to go, and is not answered there.
TEST_F(LaneConnectorTest, AnAbortEndsTheWait) {
  const UniqueFd deaf = *ListenTcp("127.0.0.1");
  ASSERT_EQ(store_->Set("lane/0", *TcpAddressOf(deaf)), absl::OkStatus());
  for (const int self : {1, 0}) {
    Member member(store_);
    std::thread waiting([&] {
      const absl::Status status = Connect(member, self, 3'600 * kSecond).status();
      EXPECT_TRUE(absl::IsAborted(status)) << status;
    });
    if (self == 1) AwaitReadable(deaf);
    if (self == 0) {
      while (AddressOf(0) == *TcpAddressOf(deaf)) std::this_thread::yield();
    }
    member.view.Abort();
    waiting.join();
  }
}

}  // namespace
}  // namespace rueda
