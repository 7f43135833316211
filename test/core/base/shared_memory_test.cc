// Memory that processes share. Each test's own thread.
#include "core/base/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/memory_limits.h"

namespace rueda {
namespace {

constexpr size_t kBytes = 1 << 20;  // pages of any kernel

std::shared_ptr<SharedMemory> New(size_t bytes = kBytes) {
  absl::StatusOr<std::shared_ptr<SharedMemory>> memory = SharedMemory::Create("test", bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

UniqueFd Copy(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

bool IsReadable(const char* data) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return false;
  const UniqueFd reader(pipe_fds[0]), writer(pipe_fds[1]);
  return write(writer.get(), data, 1) == 1;
}

// What `fn` returns in a forked child.
template <typename Fn>
bool InChild(Fn fn) {
  const pid_t pid = fork();
  if (pid == 0) _exit(fn() ? 0 : 1);
  int status = -1;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

TEST(SharedMemory, BeginsAsZerosAndIsSharedByWhoeverMapsIt) {
  const std::shared_ptr<SharedMemory> ours = New();
  EXPECT_EQ(ours->bytes(), kBytes);
  EXPECT_TRUE(std::all_of(ours->data(), ours->data() + kBytes, [](char c) { return c == 0; }));
  const std::shared_ptr<SharedMemory> theirs = *SharedMemory::Map(Copy(ours->fd()));
  EXPECT_EQ(theirs->bytes(), kBytes);
  EXPECT_NE(theirs->data(), ours->data());
  theirs->data()[kBytes - 1] = 'x';
  EXPECT_EQ(ours->data()[kBytes - 1], 'x');
}

TEST(SharedMemory, PartsAreMappedWhenTheyAreAskedFor) {
  const size_t kPage = PageBytes();
  const std::shared_ptr<SharedMemory> ours = *SharedMemory::Create("test", kBytes, kPage);
  EXPECT_EQ(ours->bytes(), kBytes);
  char* const part = *ours->MapPart(kBytes - kPage, kPage);
  part[kPage - 1] = 'x';
  EXPECT_EQ(*ours->MapPart(kBytes - kPage, kPage), part);
  EXPECT_NE(*ours->MapPart(kPage, 2 * kPage), part);
  const std::shared_ptr<SharedMemory> theirs = *SharedMemory::Map(Copy(ours->fd()));
  EXPECT_EQ(theirs->data()[kBytes - 1], 'x');
  EXPECT_EQ(theirs->fd(), -1) << "all is mapped, and descriptors are few";
  const std::shared_ptr<SharedMemory> part_of_theirs = *SharedMemory::Map(Copy(ours->fd()), kPage);
  EXPECT_EQ((*part_of_theirs->MapPart(kBytes - kPage, kPage))[kPage - 1], 'x');
}

TEST(SharedMemory, PagesThatAreMappedAgainOutliveTheFirstMapping) {
  const size_t kPage = PageBytes();
  std::shared_ptr<SharedMemory> whole = *SharedMemory::Map(Copy(New()->fd()));
  const std::shared_ptr<SharedMemory> pages = *whole->MapAgain(kPage, 2 * kPage);
  EXPECT_EQ(pages->bytes(), 2 * kPage);
  whole->data()[3 * kPage - 1] = 'x';
  EXPECT_EQ(pages->data()[2 * kPage - 1], 'x');
  whole.reset();
  EXPECT_EQ(pages->data()[2 * kPage - 1], 'x');
  EXPECT_TRUE(InChild([&] { return !IsReadable(pages->data()); }));
}

TEST(SharedMemory, NobodyCanChangeItsSize) {
  const std::shared_ptr<SharedMemory> memory = New();
  EXPECT_NE(ftruncate(memory->fd(), 0), 0);
  EXPECT_NE(ftruncate(memory->fd(), 2 * kBytes), 0);
  EXPECT_NE(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemory, IsNotInherited) {
  const std::shared_ptr<SharedMemory> memory = New();
  EXPECT_NE(fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, 0);
  memory->data()[0] = 'x';
  EXPECT_TRUE(InChild([&] { return !IsReadable(memory->data()); }));
}

TEST(SharedMemory, NothingElseComesToItsPlaceInAChild) {
  const auto is_taken = [](char* data) {
    return mmap(data, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                0) == MAP_FAILED &&
           errno == EEXIST && !IsReadable(data);
  };
  std::shared_ptr<SharedMemory> memory = *SharedMemory::Create("test", 2 * kBytes, kBytes);
  char* const data = memory->data();
  char* const part = *memory->MapPart(kBytes, kBytes);
  EXPECT_TRUE(InChild([&] { return is_taken(data) && is_taken(part); }));
  EXPECT_TRUE(InChild([&] {  // until it goes
    memory.reset();
    return !is_taken(data) && !is_taken(part);
  }));
  EXPECT_TRUE(InChild([&] { return InChild([&] { return is_taken(data) && is_taken(part); }); }));
  memory.reset();
  EXPECT_TRUE(InChild([&] { return !is_taken(data); })) << "it is gone here, too";
}

TEST(SharedMemory, RefusesDescriptorsThatCouldShrink) {
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(std::move(unsealed)).status()));
  UniqueFd empty(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(std::move(empty)).status()));
  UniqueFd device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(std::move(device)).status()));
  EXPECT_FALSE(SharedMemory::Map(UniqueFd()).ok());
}

TEST(SharedMemory, ReleasedPagesReadAsZerosAndTheOthersStay) {
  const std::shared_ptr<SharedMemory> memory = New();
  ASSERT_TRUE(memory->Reserve(0, kBytes).ok());
  memset(memory->data(), 1, kBytes);
  memory->Release(4'096, 8'192);
  for (size_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(memory->data()[i], i >= 4'096 && i < 12'288 ? 0 : 1) << i;
  }
}

TEST(SharedMemory, RoomOutsideItCannotBeReserved) {
  const std::shared_ptr<SharedMemory> memory = New();
  EXPECT_TRUE(memory->Reserve(kBytes - 4'096, 4'096).ok());
  EXPECT_FALSE(memory->Reserve(kBytes, 4'096).ok());
}

}  // namespace
}  // namespace rueda
