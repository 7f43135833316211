// One owner for a descriptor. Each test's own thread.
#include "core/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

namespace rueda {
namespace {

int NewFd() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

bool IsOpen(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

TEST(UniqueFd, ClosesWhatItOwns) {
  const int fd = NewFd();
  {
    const UniqueFd owner(fd);
    EXPECT_TRUE(owner.valid());
    EXPECT_EQ(owner.get(), fd);
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFd, OwnsNothingAtFirst) {
  const UniqueFd nothing;
  EXPECT_FALSE(nothing.valid());
}

TEST(UniqueFd, MovesWithoutClosing) {
  const int fd = NewFd();
  UniqueFd first(fd);
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is the property
  EXPECT_EQ(second.get(), fd);
  EXPECT_TRUE(IsOpen(fd));
}

TEST(UniqueFd, AssignmentClosesWhatWasThere) {
  const int kept = NewFd();
  const int dropped = NewFd();
  UniqueFd owner(dropped);
  owner = UniqueFd(kept);
  EXPECT_FALSE(IsOpen(dropped));
  EXPECT_TRUE(IsOpen(kept));
  UniqueFd& same = owner;
  owner = std::move(same);
  EXPECT_TRUE(IsOpen(kept));
  EXPECT_EQ(owner.get(), kept);
}

TEST(UniqueFd, ReleaseGivesTheDescriptorAway) {
  const int fd = NewFd();
  {
    UniqueFd owner(fd);
    EXPECT_EQ(owner.release(), fd);
    EXPECT_FALSE(owner.valid());
  }
  EXPECT_TRUE(IsOpen(fd));
  close(fd);
}

TEST(UniqueFd, ResetClosesOnce) {
  const int fd = NewFd();
  UniqueFd owner(fd);
  owner.reset();
  EXPECT_FALSE(owner.valid());
  EXPECT_FALSE(IsOpen(fd));
  const int reused = NewFd();  // gets the number that was freed
  owner.reset();
  EXPECT_TRUE(IsOpen(reused));
  close(reused);
}

}  // namespace
}  // namespace rueda
