#include "core/base/datagram.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rueda {
namespace {

class Datagram : public testing::Test {
 protected:
  Datagram() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    from_.reset(fds[0]);
    to_.reset(fds[1]);
  }
  absl::StatusOr<std::string> Receive(size_t bytes_max = 100) {
    return ReceiveDatagram(to_.get(), bytes_max, &passed_, MSG_DONTWAIT);
  }

  UniqueFd from_, to_, passed_;
};

TEST_F(Datagram, CarriesADescriptorOrNone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd in(ends[0]), out(ends[1]);
  ASSERT_TRUE(SendDatagram(from_.get(), "with", out.get(), 0).ok());
  ASSERT_TRUE(SendDatagram(from_.get(), "without", -1, 0).ok());
  EXPECT_EQ(*Receive(), "with");
  ASSERT_TRUE(passed_.valid());
  EXPECT_NE(passed_.get(), out.get());
  EXPECT_NE(fcntl(passed_.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(passed_.get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(in.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(*Receive(), "without");
  EXPECT_FALSE(passed_.valid()) << "the one before is closed";
}

TEST_F(Datagram, SaysWhyThereIsNone) {
  EXPECT_TRUE(absl::IsNotFound(Receive().status()));
  ASSERT_TRUE(SendDatagram(from_.get(), "123456", -1, 0).ok());
  EXPECT_TRUE(absl::IsDataLoss(Receive(5).status()));
  ASSERT_TRUE(SendDatagram(from_.get(), "12345", -1, 0).ok());
  EXPECT_EQ(*Receive(5), "12345");
  from_.reset();
  EXPECT_TRUE(absl::IsUnavailable(Receive().status()));
}

TEST_F(Datagram, LastWordsAreHeardOfOneThatHasNotReadAll) {
  ASSERT_TRUE(SendDatagram(to_.get(), "to it", -1, 0).ok());
  ASSERT_TRUE(SendDatagram(from_.get(), "its last", -1, 0).ok());
  from_.reset();  // the next call fails with ECONNRESET
  EXPECT_EQ(*Receive(), "its last");
  EXPECT_TRUE(absl::IsUnavailable(Receive().status()));
}

TEST_F(Datagram, SaysThatNoDescriptorIsLeft) {
  ASSERT_TRUE(SendDatagram(from_.get(), "with", STDIN_FILENO, 0).ok());
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = Receive().status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(Datagram, WhoDoesNotReadStopsNobodyWhoDoesNotWait) {
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = SendDatagram(from_.get(), std::string(1'000, 'x'), STDIN_FILENO, MSG_DONTWAIT);
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  to_.reset();
  EXPECT_TRUE(absl::IsUnavailable(SendDatagram(from_.get(), "x", -1, 0)));
}

}  // namespace
}  // namespace rueda
