// What an agent's connection to ruedarun's host tells. That a host which dies without a word is
// noticed: test/clusters/ruedarun_test.py.
#include "controller/launcher/agent/lifeline.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "controller/bus/socket.h"

namespace rueda {
namespace {

class LifelineTest : public testing::Test {
 protected:
  void Listen(int port = 0) {
    absl::StatusOr<UniqueFd> door = ListenTcp("127.0.0.1", port);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    address_ = *TcpAddressOf(door_);
  }
  // Whether something happens within the time, and ruedarun's host is there all the same.
  bool Advance(int ms) {
    pollfd wait = {line_.fd(), line_.events(), 0};
    happened_ = poll(&wait, 1, ms) == 1;
    return !happened_ || line_.Advance();
  }

  UniqueFd door_;
  std::string address_;
  Lifeline line_;
  bool happened_ = false;
};

TEST_F(LifelineTest, NeedsNobodyWhoAccepts) {
  Listen();
  line_.Open(address_, 2 * kSecond);
  EXPECT_TRUE(Advance(10'000));
  EXPECT_TRUE(happened_);
  EXPECT_TRUE(Advance(3'000));
  EXPECT_FALSE(happened_) << "the kernel answers";
}

TEST_F(LifelineTest, SaysWhenNobodyListensAnyMore) {
  Listen();
  line_.Open(address_, 2 * kSecond);
  EXPECT_TRUE(Advance(10'000));
  door_.reset();
  EXPECT_TRUE(Advance(10'000)) << "it connects once more";
  EXPECT_FALSE(Advance(10'000));
}

// As a middlebox may that forgets what is silent.
TEST_F(LifelineTest, OutlivesALostConnection) {
  Listen();
  line_.Open(address_, 2 * kSecond);
  EXPECT_TRUE(Advance(10'000));
  for (int i = 0; i < 3; ++i) {
    pollfd wait = {door_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10'000), 1);
    ASSERT_TRUE(Accept(door_).ok());  // and closed
    EXPECT_TRUE(Advance(10'000));
    EXPECT_TRUE(Advance(10'000));
    EXPECT_TRUE(happened_);
  }
}

TEST_F(LifelineTest, OneThatCanNotBeMadeIsSaidAndNeverMissed) {
  Listen();
  door_.reset();
  testing::internal::CaptureStderr();
  line_.Open(address_, 2 * kSecond);
  while (line_.fd() >= 0) ASSERT_TRUE(Advance(10'000));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "can't connect to ruedarun at " + address_ +
                " (Connection refused): if its host dies without a word, this host's ranks stay\n");
}

TEST_F(LifelineTest, AnAddressThatIsNoneIsSaid) {
  testing::internal::CaptureStderr();
  line_.Open("nowhere", 2 * kSecond);
  EXPECT_EQ(line_.fd(), -1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("can't connect to ruedarun at nowhere"),
            std::string::npos);
}

TEST_F(LifelineTest, IsNotMadeWithoutAnAddress) {
  line_.Open("", 2 * kSecond);
  EXPECT_EQ(line_.fd(), -1);
}

}  // namespace
}  // namespace rueda
