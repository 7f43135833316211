// What a forked child has of its parent's descriptors.
#include "core/base/closed_in_child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/doorbell.h"
#include "core/base/unique_fd.h"

namespace rueda {
namespace {

bool IsOpen(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}
bool IsOpenInAChild(int fd) {
  const pid_t child = fork();
  if (child == 0) _exit(IsOpen(fd) ? 1 : 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WEXITSTATUS(status) == 1;
}

TEST(ClosedInChild, IsClosedThereAndNotHere) {
  const UniqueFd fd(eventfd(0, EFD_CLOEXEC));
  EXPECT_TRUE(IsOpenInAChild(fd.get()));
  {
    ClosedInChild closed(fd.get());
    const ClosedInChild moved = std::move(closed);
    EXPECT_FALSE(IsOpenInAChild(fd.get()));
    EXPECT_TRUE(IsOpen(fd.get()));
  }
  EXPECT_TRUE(IsOpenInAChild(fd.get()));
}

TEST(ClosedInChild, IsABellAsLongAsThereIsACopy) {
  Doorbell copy;
  {
    const Doorbell bell = Doorbell::Create().value();
    copy = bell;
  }
  EXPECT_FALSE(IsOpenInAChild(copy.fd()));
}

}  // namespace
}  // namespace rueda
