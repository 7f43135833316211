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

  absl::StatusOr<std::vector<UniqueFd>> Connect(Member& member, int self,
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
      const absl::StatusOr<std::vector<UniqueFd>> sockets =
          member.connector.Connect({key, ranks_, self, kPatience, &member.view});
      ASSERT_TRUE(sockets.ok()) << sockets.status();
      ASSERT_EQ(sockets->size(), 3u);
      for (int peer = 0; peer < 3; ++peer) {
        const UniqueFd& socket = (*sockets)[static_cast<size_t>(peer)];
        EXPECT_EQ(socket.valid(), peer != self);
        const char word = static_cast<char>('a' + self);
        if (peer == self) continue;
        EXPECT_EQ(send(socket.get(), &word, 1, MSG_NOSIGNAL), 1);
      }
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == self) continue;
        const UniqueFd& socket = (*sockets)[static_cast<size_t>(peer)];
        AwaitReadable(socket);
        char words[2];
        ASSERT_EQ(recv(socket.get(), words, 2, MSG_DONTWAIT), 1);
        EXPECT_EQ(words[0], 'a' + peer);
      }
    });
  }
}

TEST_F(LaneConnectorTest, StrangersStayOutsideAndHoldUpNobody) {
  std::thread members([&] {
    Run({0, 2}, [&](Member& member, int self) {
      const absl::StatusOr<std::vector<UniqueFd>> sockets = Connect(member, self);
      EXPECT_TRUE(sockets.ok()) << sockets.status();
    });
  });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(*ConnectTcp(AddressOf(0)));
  // Another job's, one of this job that is in no lane, and one of another lane.
  for (const SessionScope& scope : {SessionScope{std::string(32, 'x'), "job/lane", 7},
                                    SessionScope{std::string(32, 's'), "job", 7},
                                    SessionScope{std::string(32, 's'), "job/lane2", 7}}) {
    auto link = Link::Client(*ConnectTcp(AddressOf(0)), scope, ranks_[1], ranks_[0]);
    EXPECT_FALSE(WaitEstablished(link.get(), MonotonicNow() + kPatience).ok());
  }
  Run({1}, [&](Member& member, int self) {
    const absl::StatusOr<std::vector<UniqueFd>> sockets = Connect(member, self);
    EXPECT_TRUE(sockets.ok()) << sockets.status();
  });
  members.join();
}

// And so is who gave up waiting.
TEST_F(LaneConnectorTest, WhoDoesNotComeIsNamed) {
  Run({0, 1}, [&](Member& member, int self) {
    const Nanos timeout = self == 0 ? kPatience : 300 * kMillisecond;
    const absl::Status status = Connect(member, self, timeout).status();
    EXPECT_EQ(absl::IsUnavailable(status), self == 0) << status;
    EXPECT_EQ(absl::IsDeadlineExceeded(status), self == 1) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(self == 0 ? "rank 1 was lost" : "rank 8 did not connect to rank 1"));
  });
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
