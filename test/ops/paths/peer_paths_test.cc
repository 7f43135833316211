// Which sockets are watched, over loopback, where everybody answers. That one who does not is
// named: test/clusters/bad_network_test.py.
#include "ops/paths/peer_paths.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "controller/bus/socket.h"

namespace rueda {
namespace {

using std::chrono::seconds;

sockaddr_storage NameOf(const UniqueFd& socket) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  return name;
}

// As often as kLimit makes it; these sockets' own maker asks every second.
constexpr seconds kLimit = seconds(40);
bool IsAsked(const UniqueFd& socket) {
  int idle = 0;
  socklen_t size = sizeof idle;
  EXPECT_EQ(getsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size), 0);
  return idle == 10;
}

// Both ends of a connection, and where each of them has waited for the other.
struct Pair {
  Pair() : here(*ListenTcp("127.0.0.1")), there(*ListenTcp("127.0.0.1")) {
    connecting = *ConnectTcp(*TcpAddressOf(here));
    while (!accepted.valid()) accepted = *Accept(here);
  }
  UniqueFd here, there, connecting, accepted;
};

TEST(PeerPaths, WatchesTheConnectionsThatItExpectsAndNoOther) {
  Pair pair, bystander;
  PeerPaths accepts(kLimit);
  accepts.Expect(1, NameOf(pair.here), NameOf(pair.there));
  accepts.FindSockets();
  EXPECT_TRUE(IsAsked(pair.accepted));
  PeerPaths connects(kLimit);
  connects.Expect(0, NameOf(pair.there), NameOf(pair.here));
  connects.FindSockets();
  EXPECT_TRUE(IsAsked(pair.connecting));
  EXPECT_FALSE(IsAsked(bystander.accepted));
  EXPECT_FALSE(IsAsked(bystander.connecting));
  EXPECT_EQ(accepts.Silent().peer, -1);
}

TEST(PeerPaths, WatchesAConnectionThatIsGiven) {
  Pair pair, bystander;
  PeerPaths paths(kLimit);
  paths.Watch(1, pair.accepted.get());
  EXPECT_TRUE(IsAsked(pair.accepted));
  EXPECT_FALSE(IsAsked(bystander.accepted));
  EXPECT_EQ(paths.Silent().peer, -1);
}

TEST(PeerPaths, WithoutALimitLeavesThemAlone) {
  Pair pair;
  PeerPaths paths(seconds(0));
  paths.Expect(1, NameOf(pair.here), NameOf(pair.there));
  paths.FindSockets();
  EXPECT_FALSE(IsAsked(pair.accepted));
  EXPECT_EQ(paths.Silent().peer, -1);
}

// Gloo closes a socket whose peer is lost, and its number may be another's then.
TEST(PeerPaths, OneThatIsClosedIsNotSilent) {
  Pair pair, other;
  PeerPaths paths(std::chrono::milliseconds(1));
  paths.Expect(1, NameOf(pair.here), NameOf(pair.there));
  paths.FindSockets();
  ASSERT_EQ(dup2(other.accepted.get(), pair.accepted.get()), pair.accepted.get());
  usleep(20'000);  // it has been silent for longer than the limit, as the first would have been
  for (int i = 0; i < 3; ++i) EXPECT_EQ(paths.Silent().peer, -1);
}

// Which has nothing to say, but whose kernel answers when a new connection is tried.
TEST(PeerPaths, OneThatAnswersIsNotSilent) {
  Pair pair;
  PeerPaths paths(std::chrono::milliseconds(20));
  paths.Expect(1, NameOf(pair.here), NameOf(pair.there));
  paths.FindSockets();
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(paths.Silent().peer, -1);
    usleep(5'000);
  }
}

}  // namespace
}  // namespace rueda
