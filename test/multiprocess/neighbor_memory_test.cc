// Memory that neighbors open (rueda_mem_open): it is read where it lies, and outlives the rank that
// had it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 1 << 20;
constexpr int kOwner = 1;

void* AllocateFilled(rueda_context* context, char value) {
  void* memory = nullptr;
  EXPECT_EQ(rueda_mem_alloc(context, kBytes, &memory), RUEDA_OK) << rueda_last_error();
  std::fill_n(static_cast<char*>(memory), kBytes, value);
  return memory;
}

bool AreAll(const void* memory, char value) {
  const char* const bytes = static_cast<const char*>(memory);
  return std::count(bytes, bytes + kBytes, value) == static_cast<ptrdiff_t>(kBytes);
}

// What the owner tells: where its memory lies.
const void* OpenOwners(rueda_context* context, int rank, const void* memory) {
  uint64_t offset = 0;
  if (rank == kOwner) {
    EXPECT_EQ(rueda_mem_offset(memory, &offset), RUEDA_OK) << rueda_last_error();
  }
  auto told = static_cast<int64_t>(offset);
  const TensorOf tensor(&told, {1}, RUEDA_INT64);
  EXPECT_EQ(Execute(context, Broadcast("offset", tensor.get(), kOwner)), RUEDA_OK);
  const void* opened = nullptr;
  if (rank != kOwner) {
    EXPECT_EQ(rueda_mem_open(context, kOwner, static_cast<uint64_t>(told), kBytes, &opened),
              RUEDA_OK)
        << rueda_last_error();
  }
  return opened;
}

// Of this process's address space.
size_t MappedBytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::vector<int> NeighborsOf(rueda_context* context) {
  std::vector<int> ranks(8);
  size_t count = 0;
  EXPECT_EQ(rueda_neighbor_ranks(context, ranks.data(), ranks.size(), &count), RUEDA_OK);
  ranks.resize(count);
  return ranks;
}

TEST(NeighborMemory, IsReadWhereItLies) {
  RunRanks({.size = 3, .setup = {"processes", Ranks::kProcesses}},
           [](rueda_context* context, int rank) {
             void* const memory = rank == kOwner ? AllocateFilled(context, 1) : nullptr;
             const void* const opened = OpenOwners(context, rank, memory);
             if (rank != kOwner) {
               EXPECT_TRUE(AreAll(opened, 1));
             }
             EXPECT_EQ(Execute(context, Barrier("read")), RUEDA_OK);
             if (rank == kOwner) std::fill_n(static_cast<char*>(memory), kBytes, 2);
             EXPECT_EQ(Execute(context, Barrier("written")), RUEDA_OK);
             if (rank != kOwner) {
               EXPECT_TRUE(AreAll(opened, 2));
             }
             // What is freed keeps its contents until it is given out again, as zeros.
             if (rank == kOwner) {
               EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
             }
             EXPECT_EQ(Execute(context, Barrier("freed")), RUEDA_OK);
             if (rank != kOwner) {
               EXPECT_TRUE(AreAll(opened, 2));
             }
             EXPECT_EQ(Execute(context, Barrier("read again")), RUEDA_OK);
             if (rank == kOwner) {
               void* next = nullptr;
               EXPECT_EQ(rueda_mem_alloc(context, kBytes, &next), RUEDA_OK);
               EXPECT_EQ(next, memory);
               EXPECT_TRUE(AreAll(next, 0));
               EXPECT_EQ(rueda_mem_free(next), RUEDA_OK);
             } else {
               EXPECT_EQ(rueda_mem_free(const_cast<void*>(opened)), RUEDA_OK);
               EXPECT_EQ(rueda_mem_free(const_cast<void*>(opened)), RUEDA_NOT_FOUND);
             }
           });
}

// Killed, or with an exit status of 0 after it has freed all.
class NeighborMemoryOfTheDead : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, NeighborMemoryOfTheDead, ::testing::Bool(),
                         [](const auto& is_killed) {
                           return is_killed.param ? "Killed" : "Exited";
                         });

TEST_P(NeighborMemoryOfTheDead, IsStillThere) {
  const RunOptions options{3,
                           {"processes", Ranks::kProcesses},
                           {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    void* const memory = rank == kOwner ? AllocateFilled(context, 3) : nullptr;
    const void* const opened = OpenOwners(context, rank, memory);
    const rueda_status opening = Execute(context, Barrier("opened"));
    if (rank == kOwner) {
      ASSERT_EQ(opening, RUEDA_OK);
      if (GetParam()) raise(SIGKILL);  // maybe before the others hear that all have opened it
      EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(Execute(context, Barrier("nobody")), RUEDA_ABORTED);
    rueda_context_destroy(context);
    EXPECT_TRUE(AreAll(opened, 3));
    const pid_t child = fork();
    if (child == 0) {  // which has not inherited it
      EXPECT_EQ(rueda_mem_free(const_cast<void*>(opened)), RUEDA_OK);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(AwaitProcess(child), 0);
    EXPECT_TRUE(AreAll(opened, 3));
    EXPECT_EQ(rueda_mem_free(const_cast<void*>(opened)), RUEDA_OK) << rueda_last_error();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(AwaitProcess(pids[rank]), rank == kOwner && GetParam() ? SIGKILL : 0) << rank;
  }
}

// What is opened keeps no whole arena mapped, each of which is as large as the machine's memory.
TEST(NeighborMemory, TakesNoMoreAddressSpaceThanItHas) {
  RunRanks({.size = 3, .setup = {"processes", Ranks::kProcesses}},
           [](rueda_context* context, int rank) {
             void* const memory = rank == kOwner ? AllocateFilled(context, 1) : nullptr;
             const void* const first = OpenOwners(context, rank, memory);
             const size_t before = MappedBytes();
             const void* const second = OpenOwners(context, rank, memory);
             if (rank != kOwner) {
               EXPECT_NE(first, second);
               EXPECT_LT(MappedBytes() - before, 100 * kBytes);
               EXPECT_EQ(rueda_mem_free(const_cast<void*>(first)), RUEDA_OK);
               EXPECT_TRUE(AreAll(second, 1));
               EXPECT_EQ(rueda_mem_free(const_cast<void*>(second)), RUEDA_OK);
             }
             EXPECT_EQ(Execute(context, Barrier("read")), RUEDA_OK);
             if (rank == kOwner) {
               EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK);
             }
           });
}

TEST(NeighborMemory, IsOfTheHostsOtherRanksOnly) {
  RunRanks({.size = 4, .setup = {"processes", Ranks::kProcesses}, .knobs = {{"hosts_fake", "2"}}},
           [](rueda_context* context, int rank) {
             const int neighbor = rank ^ 1;
             EXPECT_EQ(NeighborsOf(context), std::vector<int>{neighbor});
             const void* opened = &opened;
             for (const int other : {rank, (rank + 2) % 4, -1, 4}) {
               EXPECT_EQ(rueda_mem_open(context, other, 0, 1, &opened), RUEDA_NOT_FOUND) << other;
               EXPECT_EQ(opened, nullptr);
               EXPECT_THAT(rueda_last_error(), HasSubstr("is not another rank of this host"));
             }
             EXPECT_EQ(rueda_mem_open(context, neighbor, 0, SIZE_MAX, &opened),
                       RUEDA_INVALID_ARGUMENT);
             EXPECT_EQ(rueda_mem_open(context, neighbor, UINT64_MAX, 1, &opened),
                       RUEDA_INVALID_ARGUMENT);
             EXPECT_THAT(rueda_last_error(), HasSubstr("bytes for such memory"));
             EXPECT_EQ(rueda_mem_open(context, neighbor, 0, 1, nullptr), RUEDA_INVALID_ARGUMENT);
             uint64_t offset = 0;
             EXPECT_EQ(rueda_mem_offset(&offset, &offset), RUEDA_NOT_FOUND);
             EXPECT_EQ(rueda_mem_offset(nullptr, nullptr), RUEDA_INVALID_ARGUMENT);
             EXPECT_EQ(rueda_neighbor_ranks(context, nullptr, 1, nullptr), RUEDA_INVALID_ARGUMENT);
           });
}

// test/clusters/elastic_test.py has jobs where somebody does.
TEST(NeighborMemory, IsKeptByNobodyInAJobThatIsNotElastic) {
  RunRanks({.size = 2, .setup = {"processes", Ranks::kProcesses}}, [](rueda_context* context,
                                                                      int rank) {
    void* const memory = AllocateFilled(context, 4);
    const auto keep = [&](const void* pointer, size_t bytes, const char* name) {
      return rueda_mem_keep(context, pointer, bytes, name, 1, 0, 2);
    };
    EXPECT_EQ(keep(memory, kBytes, "name"), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(keep(memory, SIZE_MAX, "name"), RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(keep(memory, kBytes, nullptr), RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(keep(&memory, 1, "name"), RUEDA_NOT_FOUND);
    EXPECT_EQ(keep(nullptr, 1, "name"), RUEDA_NOT_FOUND);
    const void* kept = &kept;
    size_t bytes = 0;
    uint64_t sum = 0;
    EXPECT_EQ(rueda_mem_kept(context, "name", 1, 1, rank, &kept, &bytes, &sum), RUEDA_NOT_FOUND);
    EXPECT_EQ(kept, nullptr);
    EXPECT_EQ(rueda_mem_kept(context, nullptr, 1, 1, rank, &kept, &bytes, &sum),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(rueda_mem_kept(context, "name", 1, 1, rank, nullptr, &bytes, &sum),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(rueda_mem_kept(context, "name", 1, 1, rank, &kept, nullptr, &sum),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(rueda_mem_kept(context, "name", 1, 1, rank, &kept, &bytes, nullptr),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK);
  });
}

}  // namespace
}  // namespace rueda::testing
