// Jobs under the limits on address space and file sizes that shells and batch systems set (ulimit
// -v and -f): the ranks share less memory, or say which limit is too small. No rank is killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = kMiB << 10;

void Limit(__rlimit_resource what, size_t bytes) {
  const rlimit limit = {bytes, bytes};
  ASSERT_EQ(setrlimit(what, &limit), 0);
}

// From now on this process can map so many bytes more.
void LeaveAddressSpace(size_t bytes) {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  ASSERT_TRUE(file >> pages);
  Limit(RLIMIT_AS, pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + bytes);
}

// Sums ones that lie in the arena on every rank.
void SumInArena(rueda_context* context, size_t elements) {
  void* memory = nullptr;
  ASSERT_EQ(rueda_mem_alloc(context, elements * sizeof(float), &memory), RUEDA_OK)
      << rueda_last_error();
  float* const values = static_cast<float*>(memory);
  for (size_t i = 0; i < elements; ++i) values[i] = 1;
  const TensorOf tensor(values, {static_cast<int64_t>(elements)}, kDTypeOf<float>);
  ASSERT_EQ(Execute(context, Allreduce("in arenas", tensor.get())), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(values[0], rueda_size(context));
  EXPECT_EQ(values[elements - 1], rueda_size(context));
  EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK);
}

void End(rueda_context* context) {
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
  rueda_context_destroy(context);
}

Setup Processes() {
  return {"processes", Ranks::kProcesses, {}};
}

class MemoryLimits : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's shadow needs all of the address space";
#endif
  }
};

// Each process has limits of its own; ThreadRanksShareOneAddressSpace is about threads.
class ProcessesUnderLimits : public MemoryLimits, public ::testing::WithParamInterface<Setup> {
 protected:
  RunOptions AtLeast(int ranks) const {
    return {GetParam().AtLeast(ranks), GetParam(), {{"log_level", "off"}}};
  }
  // Joins, which a limit of rank `victim` forbids. Another host may have begun when it hears of it,
  // or hear no more than that the rank is gone; a launcher would know.
  void ExpectNamedAtTheStart(int rank, int victim, const std::string& limit, const Join& join) {
    const bool elsewhere = GetParam().multiple_of == 2 && rank != victim;
    rueda_context* context = nullptr;
    const rueda_status status = join(&context);
    if (elsewhere && status == RUEDA_OK) {
      EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr(limit));
    } else if (!elsewhere) {
      EXPECT_EQ(status, RUEDA_RESOURCE_EXHAUSTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr(limit));
    }
    if (rank != victim) {
      EXPECT_THAT(rueda_last_error(), HasSubstr("rank " + std::to_string(victim)));
    }
    rueda_context_destroy(context);
  }
};
std::vector<Setup> OfProcesses() {
  std::vector<Setup> setups = FewSetups();
  std::erase_if(setups, [](const Setup& setup) { return setup.ranks == Ranks::kThreads; });
  return setups;
}
INSTANTIATE_TEST_SUITE_P(All, ProcessesUnderLimits, ::testing::ValuesIn(OfProcesses()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(ProcessesUnderLimits, ArenasFitTheAddressSpaceThatIsLeft) {
  RunJoiners(AtLeast(3), [](int, const Join& join) {
    LeaveAddressSpace(2 * kGiB);
    for (int membership = 0; membership < 2; ++membership) {
      rueda_context* context = nullptr;
      ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
      SumInArena(context, 4 * kMiB);
      End(context);
    }
  });
}

TEST_P(ProcessesUnderLimits, TheTightestLimitHoldsForAllArenas) {
  RunJoiners(AtLeast(3), [](int rank, const Join& join) {
    if (rank == 1) LeaveAddressSpace(2 * kGiB);
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    SumInArena(context, 4 * kMiB);
    void* memory = nullptr;
    EXPECT_EQ(rueda_mem_alloc(context, kGiB, &memory), RUEDA_RESOURCE_EXHAUSTED);
    End(context);
  });
}

TEST_P(ProcessesUnderLimits, MemoryThatOutlivesAMembershipStaysWithinThem) {
  RunJoiners(AtLeast(3), [](int rank, const Join& join) {
    LeaveAddressSpace(2 * kGiB);
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    void* kept = nullptr;
    if (rank != 2) {
      ASSERT_EQ(rueda_mem_alloc(context, kMiB, &kept), RUEDA_OK);
      memset(kept, 7, kMiB);
    }
    End(context);
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    SumInArena(context, kMiB);
    if (rank != 2) {
      EXPECT_EQ(static_cast<char*>(kept)[kMiB - 1], 7);
      EXPECT_EQ(rueda_mem_free(kept), RUEDA_OK);
    }
    End(context);
  });
}

TEST_F(MemoryLimits, MemoryThatOutlivesAMembershipIsNotCountedTwice) {
  RunJoiners({1, Processes(), {}}, [](int, const Join& join) {
    mallopt(M_ARENA_MAX, 1);  // else a thread's may have taken 64 MiB by the second start, or not
    LeaveAddressSpace(170 * kMiB);  // for the control segment, and one arena of some 75 MiB
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    void* kept = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, kMiB, &kept), RUEDA_OK);
    End(context);
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_mem_free(kept), RUEDA_OK);
    End(context);
  });
}

TEST_P(ProcessesUnderLimits, TooLittleAddressSpaceIsNamedOnAllRanks) {
  RunJoiners(AtLeast(2), [&](int rank, const Join& join) {
    if (rank == 1) LeaveAddressSpace(60 * kMiB);
    ExpectNamedAtTheStart(rank, 1, "(RLIMIT_AS, ulimit -v) is ", join);
  });
}

// What a process set needs is mapped when there is one.
TEST_F(MemoryLimits, ARankNeedsSome35MiB) {
  RunJoiners({4, Processes(), {}}, [](int, const Join& join) {
    mallopt(M_ARENA_MAX, 1);
    LeaveAddressSpace(220 * kMiB);
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    SumInArena(context, kMiB);
    int32_t set = 0;
    const int32_t ranks[] = {0, 1, 2, 3};
    for (int i = 1; i <= 3; ++i) {
      ASSERT_EQ(rueda_process_set_add(context, ranks, i, RUEDA_FOREVER, &set), RUEDA_OK)
          << rueda_last_error();
    }
    End(context);
  });
}

TEST_F(MemoryLimits, ProcessSetsThatFindNoRoomEndTheJobByName) {
  RunJoiners({3, Processes(), {{"log_level", "off"}}}, [](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    if (rank == 1) LeaveAddressSpace(kMiB);
    int32_t set = 0;
    const int32_t ranks[] = {0, 1};
    const rueda_status added = rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set);
    EXPECT_TRUE(added == RUEDA_ABORTED || (rank != 1 && added == RUEDA_OK));  // not told yet
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
    EXPECT_THAT(rueda_last_error(), HasSubstr("(RLIMIT_AS, ulimit -v) is "));
    EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1"));
    rueda_context_destroy(context);
  });
}

// The ranks are threads: one address space for all of their arenas.
TEST_F(MemoryLimits, ThreadRanksShareOneAddressSpace) {
  EXPECT_EXIT(
      {
        LeaveAddressSpace(2 * kGiB);
        RunRanks({3, {"threads", Ranks::kThreads, {}}},
                 [](rueda_context* context, int) { SumInArena(context, kMiB); });
        _exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ProcessesUnderLimits, ArenasFitTheLimitOnFiles) {
  RunJoiners(AtLeast(2), [&](int rank, const Join& join) {
    Limit(RLIMIT_FSIZE, kGiB + static_cast<size_t>(rank) * 100);
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    SumInArena(context, kMiB);
    void* memory = nullptr;
    EXPECT_EQ(rueda_mem_alloc(context, 2 * kGiB, &memory), RUEDA_RESOURCE_EXHAUSTED);
    End(context);
  });
}

// What the ranks of a host share has areas of fewer process sets then.
TEST_P(ProcessesUnderLimits, ALimitOnFilesOfAFewHundredMegabytesIsEnough) {
  RunJoiners(AtLeast(2), [&](int, const Join& join) {
    Limit(RLIMIT_FSIZE, 192 * kMiB);
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    SumInArena(context, kMiB);
    End(context);
  });
}

TEST_P(ProcessesUnderLimits, ALimitOnFilesThatIsTooSmallIsNamedOnAllRanks) {
  RunJoiners(AtLeast(2), [&](int rank, const Join& join) {
    if (rank == 0) Limit(RLIMIT_FSIZE, kMiB);
    ExpectNamedAtTheStart(
        rank, 0, "the limit on the size of a file (RLIMIT_FSIZE, ulimit -f) is 1048576 bytes",
        join);
  });
}

TEST(FileLimit, ATimelineAndALogThatMayNotGrowRaiseNoSignal) {
  RunJoiners({2, Processes(), {}}, [](int rank, const Join& join) {
    const std::string stem = ::testing::TempDir() + "limited-" + std::to_string(getpid());
    const std::string early = stem + ".early.json", late = stem + ".late.json";
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    if (rank == 0) {
      ASSERT_EQ(rueda_timeline_start(context, early.c_str()), RUEDA_OK) << rueda_last_error();
      const int log = open(stem.c_str(), O_CREAT | O_WRONLY, 0600);
      ASSERT_EQ(write(log, "0123456789", 10), 10);
      ASSERT_EQ(dup2(log, STDERR_FILENO), STDERR_FILENO);
      Limit(RLIMIT_FSIZE, 10);
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    if (rank == 0) {
      EXPECT_NE(rueda_timeline_stop(context), RUEDA_OK);  // logs it too
      EXPECT_THAT(rueda_last_error(), HasSubstr("File too large"));
      EXPECT_NE(rueda_timeline_start(context, late.c_str()), RUEDA_OK);
      EXPECT_THAT(rueda_last_error(), HasSubstr("File too large"));
    }
    End(context);
    for (const std::string& path : {stem, early, late}) unlink(path.c_str());
  });
}

}  // namespace
}  // namespace rueda::testing
