// Control connections over real sockets: their options, their handshake with peers that lie, their
// last words.
#include "controller/bus/link.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <thread>
#include <utility>

#include "controller/bus/socket.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

const SessionScope kScope = {std::string(32, 's'), "job", 7};
constexpr Nanos kPatience = 60 * kSecond;

Nanos Soon() {
  return MonotonicNow() + kPatience;
}

// Two ends of one TCP connection.
class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd listener = *ListenTcp("127.0.0.1");
    const std::string address = *TcpAddressOf(listener);
    near_ = *ConnectTcp(address);
    ASSERT_TRUE(AwaitConnected(near_, address, Soon()).ok());
    pollfd wait = {listener.get(), POLLIN, 0};
    poll(&wait, 1, -1);
    far_ = *Accept(listener);
    ASSERT_TRUE(far_.valid());
  }
  // The client and the server, which trust each other.
  void Establish() {
    client_ = Link::Client(std::move(near_), kScope, 1, 0);
    server_ = Link::Server(std::move(far_), kScope, 0);
    std::thread other([this] { EXPECT_TRUE(WaitEstablished(server_.get(), Soon()).ok()); });
    EXPECT_TRUE(WaitEstablished(client_.get(), Soon()).ok());
    other.join();
  }

  UniqueFd near_, far_;
  std::unique_ptr<Link> client_, server_;
};

absl::Status ReadToTheEnd(Link* link) {
  absl::Status status;
  while (status.ok()) {
    pollfd wait = {link->fd(), POLLIN, 0};
    EXPECT_GT(poll(&wait, 1, static_cast<int>(kPatience / kMillisecond)), 0);
    status = link->OnReadable();
  }
  return status;
}

int Option(const UniqueFd& fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(getsockopt(fd.get(), level, name, &value, &size), 0);
  return value;
}

TEST_F(LinkTest, ASilentConnectionIsLostInTwoSecondsAtBothEnds) {
  for (const UniqueFd* end : {&near_, &far_}) {
    EXPECT_EQ(Option(*end, IPPROTO_TCP, TCP_USER_TIMEOUT), 2'000);
    EXPECT_EQ(Option(*end, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(Option(*end, IPPROTO_TCP, TCP_KEEPIDLE), 1);
    EXPECT_EQ(Option(*end, IPPROTO_TCP, TCP_KEEPINTVL), 1);
    EXPECT_EQ(Option(*end, IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(Option(*end, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS), 1);
  }
}

TEST_F(LinkTest, TheKernelHasThePatienceThatItIsTold) {
  for (const auto& [patience, ms] :
       {std::pair{7 * kSecond, 7'000}, {Nanos{1}, 1}, {kForever, INT_MAX}}) {
    SetTcpPatience(near_.get(), patience);
    EXPECT_EQ(Option(near_, IPPROTO_TCP, TCP_USER_TIMEOUT), ms);
  }
}

TEST_F(LinkTest, KnowsWhereItsPeerIs) {
  EXPECT_EQ(PeerAddress(far_), "127.0.0.1");
}

TEST(Connecting, SaysWhyItDidNot) {
  std::string address;
  {
    const UniqueFd listener = *ListenTcp("127.0.0.1");
    address = *TcpAddressOf(listener);
  }
  const UniqueFd fd = *ConnectTcp(address);
  const absl::Status status = AwaitConnected(fd, address, Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find(address), absl::string_view::npos) << status;
}

// The peer has not read the last words when the link is closed, nor has this end all of the peer's.
TEST_F(LinkTest, TheLastWordsArriveBehindWhatWasNotRead) {
  Establish();
  client_->Send(FrameType::kHello, std::string(1 << 20, 'x'));
  (void)client_->OnWritable();
  const std::string verdict(2 << 20, 'v');
  std::thread closes([&] {
    server_->Send(FrameType::kRoster, verdict);
    EXPECT_TRUE(server_->OnWritable().ok());
    std::vector<std::unique_ptr<Link>> links;
    links.push_back(std::move(server_));
    while (links[0]->wants_write()) EXPECT_TRUE(links[0]->OnWritable().ok());
    CloseGently(std::move(links), Soon());
  });
  SleepFor(50 * kMillisecond);
  const auto received = WaitFrame(client_.get(), FrameType::kRoster, Soon());
  EXPECT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(!received.ok() || received->frame.payload == verdict);
  client_.reset();
  closes.join();
}

// Or its owner would wait for ever until the link has said all.
TEST_F(LinkTest, NothingIsKeptForAPeerThatIsGone) {
  Establish();
  client_->Send(FrameType::kPlan, std::string(16 << 20, 'p'));
  ASSERT_TRUE(client_->OnWritable().ok());
  EXPECT_TRUE(client_->wants_write());
  server_->Send(FrameType::kHeartbeat, "");
  EXPECT_TRUE(WaitFlushed(server_.get(), Soon()).ok());
  server_->StopSending();
  const absl::Status end = ReadToTheEnd(client_.get());
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_FALSE(client_->wants_write());
  client_->Send(FrameType::kHeartbeat, "");
  EXPECT_FALSE(client_->wants_write());
  Link::Received received;
  EXPECT_TRUE(client_->Next(&received));
}

TEST_F(LinkTest, ASendThatFailsLeavesWhatThePeerHasSaid) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  near_ = UniqueFd(fds[0]);
  far_ = UniqueFd(fds[1]);
  Establish();
  server_->Send(FrameType::kFailure, "why");
  EXPECT_TRUE(WaitFlushed(server_.get(), Soon()).ok());
  server_.reset();
  client_->Send(FrameType::kHeartbeat, "");
  EXPECT_TRUE(absl::IsUnavailable(client_->OnWritable()));
  EXPECT_FALSE(client_->wants_write());
  EXPECT_TRUE(absl::IsUnavailable(ReadToTheEnd(client_.get())));
  Link::Received received;
  ASSERT_TRUE(client_->Next(&received));
  EXPECT_EQ(received.frame.payload, "why");
}

TEST_F(LinkTest, IsNotClosedGentlyForEver) {
  Establish();
  std::vector<std::unique_ptr<Link>> links;
  links.push_back(std::move(server_));
  const Nanos begin = MonotonicNow();
  CloseGently(std::move(links), begin + 50 * kMillisecond);
  EXPECT_GE(MonotonicNow() - begin, 50 * kMillisecond);
  EXPECT_LT(MonotonicNow() - begin, 10 * kSecond);
}

TEST_F(LinkTest, ARefusalIsTold) {
  Establish();
  server_->Send(FrameType::kRefused, std::string(kErrorTextBytesMax + 1, 'n'));
  EXPECT_TRUE(WaitFlushed(server_.get(), Soon()).ok());
  const absl::Status status = WaitFrame(client_.get(), FrameType::kRoster, Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), std::string(kErrorTextBytesMax, 'n'));
}

// A peer that does not know the secret gets an answer to its hello, and no more of it is read than
// a handshake has.
TEST_F(LinkTest, OfAPeerThatHasProvedNothingLittleIsRead) {
  server_ = Link::Server(std::move(far_), kScope, 0);
  Handshake liar = Handshake::Client({"another secret", "job", 7}, 1, 0, {1});
  const std::string said = liar.Begin() + std::string(32'000, 'x');  // all of which gets there
  ASSERT_EQ(send(near_.get(), said.data(), said.size(), MSG_DONTWAIT | MSG_NOSIGNAL),
            static_cast<ssize_t>(said.size()));
  const absl::Status status = WaitEstablished(server_.get(), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  int unread = 0;
  EXPECT_EQ(ioctl(server_->fd(), FIONREAD, &unread), 0);
  EXPECT_GE(unread, static_cast<int>(said.size() - kHandshakeBytesMax));
}

}  // namespace
}  // namespace rueda
