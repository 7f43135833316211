#include "controller/launcher/host/kept_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "core/base/shared_memory.h"

namespace rueda {
namespace {

// One process's memory, which says whose it is.
class Process {
 public:
  explicit Process(const std::string& text) : memory_(*SharedMemory::Create("test", 4'096)) {
    std::memcpy(memory_->data(), text.c_str(), text.size() + 1);
  }
  UniqueFd fd() const { return UniqueFd(dup(memory_->fd())); }

 private:
  std::shared_ptr<SharedMemory> memory_;
};

wire::KeptPart Part(const std::string& name, uint64_t number, uint64_t membership, int rank,
                    uint64_t oldest = 0) {
  wire::KeptPart part;
  part.set_name(name);
  part.set_number(number);
  part.set_membership(membership);
  part.set_rank(rank);
  part.set_bytes(10);
  part.set_oldest(oldest);
  return part;
}

std::string TextOf(const std::optional<KeptMemory::Found>& found) {
  if (!found.has_value()) return "none";
  char text[16] = "";
  EXPECT_GT(pread(found->memory, text, sizeof text - 1, 0), 0);
  return text;
}

int OpenFiles() {
  int count = 0;
  for (int fd = 0; fd < 1'000; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST(KeptMemory, IsFoundWhenItsProcessHasFailed) {
  KeptMemory kept;
  EXPECT_TRUE(kept.Keep(4, Part("a", 1, 1, 0), Process("of rank 0").fd()));
  EXPECT_TRUE(kept.Keep(5, Part("a", 1, 1, 1), Process("of rank 1").fd()));
  EXPECT_FALSE(kept.Keep(5, Part("b", 1, 1, 1), Process("its other").fd())) << "not its first";
  EXPECT_EQ(TextOf(kept.Find(Part("a", 1, 1, 1))), "none") << "it lives";
  kept.OnEnded(5);
  EXPECT_EQ(TextOf(kept.Find(Part("a", 1, 1, 1))), "of rank 1");
  EXPECT_EQ(TextOf(kept.Find(Part("b", 1, 1, 1))), "its other");
  for (const wire::KeptPart& other :
       {Part("c", 1, 1, 1), Part("a", 2, 1, 1), Part("a", 1, 2, 1), Part("a", 1, 1, 0)}) {
    EXPECT_EQ(TextOf(kept.Find(other)), "none") << other.ShortDebugString();
  }
  kept.OnEnded(9);
  EXPECT_EQ(kept.gone(), 1u) << "one that has kept nothing leaves nothing";
}

TEST(KeptMemory, GoesWhenNobodyNeedsItAnyMore) {
  KeptMemory kept;
  const int before = OpenFiles();
  for (uint64_t number = 1; number <= 5; ++number) {
    kept.Keep(0, Part("a", number, 1, 0, 3), Process(std::to_string(number)).fd());
  }
  kept.Keep(0, Part("a", 5, 1, 0, 3), Process("5 again").fd());
  EXPECT_EQ(OpenFiles() - before, 3) << "memory that has nothing any more is closed";
  kept.OnEnded(0);
  EXPECT_EQ(TextOf(kept.Find(Part("a", 2, 1, 0))), "none");
  EXPECT_EQ(TextOf(kept.Find(Part("a", 3, 1, 0))), "3");
  EXPECT_EQ(TextOf(kept.Find(Part("a", 5, 1, 0))), "5 again");
  kept.Keep(1, Part("a", 6, 2, 0, 5), Process("6").fd());
  EXPECT_EQ(TextOf(kept.Find(Part("a", 4, 1, 0))), "none");
  EXPECT_EQ(TextOf(kept.Find(Part("a", 5, 1, 0))), "5 again") << "one may go back to it";
  kept.Keep(1, Part("a", 7, 2, 0, 6), Process("7").fd());
  EXPECT_EQ(kept.gone(), 0u);
  EXPECT_EQ(OpenFiles() - before, 2);
}

TEST(KeptMemory, WhatIsTooOldIsSoByName) {
  KeptMemory kept;
  kept.Keep(0, Part("a", 1, 1, 0), Process("a").fd());
  kept.Keep(0, Part("b", 1, 1, 0), Process("b").fd());
  kept.OnEnded(0);
  kept.Keep(1, Part("a", 3, 2, 0, 2), Process("next").fd());
  EXPECT_EQ(TextOf(kept.Find(Part("a", 1, 1, 0))), "none");
  EXPECT_EQ(TextOf(kept.Find(Part("b", 1, 1, 0))), "b");
}

TEST(KeptMemory, OfOneProcessIsOpenOnce) {
  KeptMemory kept;
  const Process process("both");
  const int before = OpenFiles();
  kept.Keep(0, Part("a", 1, 1, 0), process.fd());
  kept.Keep(0, Part("b", 1, 1, 0), process.fd());
  kept.Keep(0, Part("a", 2, 1, 0), process.fd());
  EXPECT_EQ(OpenFiles() - before, 1);
}

// Processes that fail again and again before the others are done with the first.
TEST(KeptMemory, IsBounded) {
  KeptMemory kept;
  const int before = OpenFiles();
  for (uint64_t number = 1; number <= 100; ++number) {
    kept.Keep(0, Part("a", number, number, 0), Process("crash").fd());
    kept.OnEnded(0);
  }
  EXPECT_EQ(kept.gone(), 4u);
  EXPECT_EQ(TextOf(kept.Find(Part("a", 96, 96, 0))), "none");
  EXPECT_EQ(TextOf(kept.Find(Part("a", 97, 97, 0))), "crash");
  for (uint64_t number = 1; number <= 100; ++number) {
    kept.Keep(1, Part("a", number, 1, 1), Process("much").fd());
  }
  EXPECT_EQ(OpenFiles() - before, 4 + 16);
}

TEST(KeptMemory, LeavesOutWhatIsNoMemoryOrTooMuch) {
  KeptMemory kept;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd out(ends[1]);
  EXPECT_FALSE(kept.Keep(0, Part("a", 1, 1, 0), UniqueFd(ends[0])));
  EXPECT_FALSE(kept.Keep(0, Part("a", 1, 1, 0), UniqueFd()));
  const Process process("text");
  EXPECT_FALSE(kept.Keep(0, Part(std::string(1'025, 'x'), 1, 1, 0), process.fd()));
  EXPECT_TRUE(kept.Keep(0, Part(std::string(1'024, 'x'), 1, 1, 0), process.fd()));
  for (int i = 0; i < 2'000; ++i) {
    kept.Keep(0, Part(std::to_string(i), 1, 1, 0), process.fd());
  }
  kept.OnEnded(0);
  EXPECT_EQ(TextOf(kept.Find(Part("1000", 1, 1, 0))), "text");
  EXPECT_EQ(TextOf(kept.Find(Part("1999", 1, 1, 0))), "none");
}

}  // namespace
}  // namespace rueda
