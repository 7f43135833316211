// Beginnings and ends of jobs: cycles, leaving early, aborting and resetting, stalls, ranks that
// don't come.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kCycles = 20;
#else
constexpr int kCycles = 100;
#endif

int CountEntries(const char* directory) {
  DIR* open = opendir(directory);
  int count = 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

// Threads of this process once there are no more than `expected`, or as there are after a while:
// the kernel lists a thread for a moment after it has been joined.
int CountThreads(int expected) {
  int count = CountEntries("/proc/self/task");
  for (int look = 0; count > expected && look < 10'000; ++look) {
    usleep(1'000);
    count = CountEntries("/proc/self/task");
  }
  return count;
}

class Lifecycle : public ::testing::TestWithParam<Setup> {
 protected:
  int SizeFor(int size) const { return GetParam().AtLeast(size); }
};
INSTANTIATE_TEST_SUITE_P(All, Lifecycle, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(Lifecycle, ManyInitsAndShutdownsLeaveNothingBehind) {
  for (const int size : {2, 4}) {
    RunJoiners({size, GetParam()}, [&](int rank, const Join& join) {
      int descriptors = 0, threads = 0;
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        rueda_context* context = nullptr;
        ASSERT_EQ(join(&context), RUEDA_OK) << "cycle " << cycle << ": " << rueda_last_error();
        uint64_t membership = 0;
        ASSERT_EQ(rueda_context_membership(context, &membership), RUEDA_OK);
        EXPECT_EQ(membership, static_cast<uint64_t>(cycle + 1));
        std::vector<float> values(100, static_cast<float>(rank));
        const TensorOf tensor(values);
        ASSERT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(values[99], static_cast<float>(size * (size - 1) / 2));
        ASSERT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
        rueda_context_destroy(context);
        if (GetParam().ranks == Ranks::kThreads) continue;  // other ranks' are counted too
        if (cycle == 0) {
          descriptors = CountEntries("/proc/self/fd");
          threads = CountEntries("/proc/self/task");
        } else {
          ASSERT_EQ(CountEntries("/proc/self/fd"), descriptors) << "cycle " << cycle;
          const int now = CountThreads(threads);
          ASSERT_LE(now, threads) << "cycle " << cycle;
          threads = now;
        }
      }
    });
  }
}

TEST_P(Lifecycle, WhatNeedsARankThatHasShutDownFailsAtOnce) {
  const int size = SizeFor(2);
  RunJoiners({size, GetParam()}, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    if (rank == 0) {
      EXPECT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_FAILED_PRECONDITION);
      EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("'t'"), HasSubstr("has shut down")));
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
}

TEST_P(Lifecycle, ShutdownLetsOperationsInFlightEnd) {
  RunJoiners({SizeFor(2), GetParam()}, [&](int, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<float> values(1'000'000, 1);
    const TensorOf tensor(values);
    const rueda_operation operation = Allreduce("t", tensor.get());
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_wait(context, handle, 0), RUEDA_OK);
    EXPECT_GT(values[999'999], 1.0f);
    rueda_context_destroy(context);
  });
}

TEST_P(Lifecycle, AbortReachesEveryRankAndResetBeginsAnew) {
  const int size = SizeFor(3);
  const RunOptions options{
      size, GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  RunJoiners(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_context_reset(context), RUEDA_FAILED_PRECONDITION);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(100, 1);
      const TensorOf tensor(values);
      const rueda_status first = Execute(context, Allreduce("first", tensor.get()));
      if (rank == 1) {
        EXPECT_EQ(first, RUEDA_OK) << rueda_last_error();
        EXPECT_EQ(rueda_abort(context, "loss is NaN"), RUEDA_OK);
      } else {  // the abort may overtake it
        EXPECT_TRUE(first == RUEDA_OK || first == RUEDA_ABORTED) << rueda_last_error();
      }
      EXPECT_EQ(Execute(context, Allreduce("never", tensor.get())), RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1 aborted the job: loss is NaN"));
      EXPECT_EQ(rueda_is_initialized(context), 0);
      ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_is_initialized(context), 1);
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
}

// A context that is destroyed without shutting down ends the job for the others.
TEST_P(Lifecycle, DestroyWithoutShutdownIsToldToTheOthers) {
  const RunOptions options{
      SizeFor(2), GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  RunJoiners(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    if (rank == 0) {
      EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("without shutting down"));
      EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
    }
    rueda_context_destroy(context);
  });
}

TEST_P(Lifecycle, StalledOperationFailsWithTheNamesOfTheMissing) {
  int told[2];  // the others tell rank 1 that they have seen it
  ASSERT_EQ(pipe(told), 0);
  const int size = SizeFor(3);
  const RunOptions options{size, GetParam(), {{"stall_timeout_s", "0.1"}, {"log_level", "error"}}};
  RunRanks(options, [&](rueda_context* context, int rank) {
    std::vector<float> values(100, 1);
    const TensorOf tensor(values);
    char byte = 0;
    if (rank == 1) {
      for (int others = 1; others < size; ++others) EXPECT_EQ(read(told[0], &byte, 1), 1);
    } else {
      EXPECT_EQ(Execute(context, Allreduce("lonely", tensor.get())), RUEDA_CANCELLED);
      // A host that is busy may be late with what it knows.
      EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("'lonely'"),
                                            ContainsRegex("missing: ranks? ([02]( and |, ))?1")));
      EXPECT_EQ(write(told[1], &byte, 1), 1);
    }
    // The name is usable again; who is late once more makes the others fail once more.
    for (int round = 0; round < 3; ++round) {
      rueda_status status = RUEDA_CANCELLED;
      while (status == RUEDA_CANCELLED) {
        values.assign(100, 1);
        status = Execute(context, Allreduce("lonely", tensor.get()));
      }
      ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(values[99], static_cast<float>(size));
    }
  });
  close(told[0]);
  close(told[1]);
}

// The operation is submitted while a waiter turns the engine; then nobody waits any more, and the
// background thread, asleep since before, must know of the new deadline.
TEST_P(Lifecycle, StalledOperationFailsThoughNobodyWaits) {
  int told[2];  // rank 0 tells the others that it has seen it
  ASSERT_EQ(pipe(told), 0);
  const int size = SizeFor(2);
  const RunOptions options{size, GetParam(), {{"stall_timeout_s", "0.1"}, {"log_level", "error"}}};
  struct Late {
    rueda_context* context;
    rueda_operation operation;
    rueda_handle handle = 0;
  };
  RunRanks(options, [&](rueda_context* context, int rank) {
    std::vector<float> values(100, 1), others(100, 1);
    const TensorOf tensor(values), other(others);
    if (rank != 0) {
      EXPECT_EQ(Execute(context, Allreduce("first", tensor.get())), RUEDA_OK);
      EXPECT_EQ(Execute(context, Allreduce("second", tensor.get())), RUEDA_OK);
      char byte = 0;
      EXPECT_EQ(read(told[0], &byte, 1), 1);
      return;
    }
    Late late = {context, Allreduce("lonely", other.get())};
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.callback = [](void* user, rueda_handle, rueda_status) {
      Late* op = static_cast<Late*>(user);
      EXPECT_EQ(rueda_submit(op->context, &op->operation, 1, nullptr, &op->handle), RUEDA_OK);
    };
    completion.user = &late;
    completion.flags = RUEDA_COMPLETION_INLINE;
    const rueda_operation first = Allreduce("first", tensor.get());
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &first, 1, &completion, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    EXPECT_EQ(Execute(context, Allreduce("second", tensor.get())), RUEDA_OK);
    int32_t done = 0;
    while (done == 0) {  // a poll turns nothing
      ASSERT_EQ(rueda_poll(context, late.handle, &done), RUEDA_OK);
      usleep(1'000);
    }
    EXPECT_EQ(rueda_wait(context, late.handle, 0), RUEDA_CANCELLED);
    const std::string bytes(static_cast<size_t>(size), '!');
    EXPECT_EQ(write(told[1], bytes.data(), bytes.size()), size);
    rueda_release(context, handle);
    rueda_release(context, late.handle);
  });
  close(told[0]);
  close(told[1]);
}

TEST_P(Lifecycle, ThousandsOfOperationsMayBeInFlight) {
  const int size = SizeFor(2);
  RunRanks({size, GetParam()}, [&](rueda_context* context, int rank) {
    constexpr int kCount = 6'000;  // more than the log holds
    std::vector<float> values(kCount, 1);
    std::vector<std::unique_ptr<TensorOf>> tensors;
    std::vector<rueda_handle> handles(kCount);
    for (int i = 0; i < kCount; ++i) {
      const int t = rank == 0 ? i : kCount - 1 - i;
      tensors.push_back(
          std::make_unique<TensorOf>(&values[t], std::vector<int64_t>{1}, RUEDA_FLOAT32));
      const std::string name = "t" + std::to_string(t);
      const rueda_operation operation = Allreduce(name.c_str(), tensors.back()->get());
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[i]), RUEDA_OK)
          << rueda_last_error();
    }
    for (const rueda_handle handle : handles) {
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    }
    for (const float value : values) ASSERT_EQ(value, static_cast<float>(size));
  });
}

// Processes only ------------------------------------------------------------------------------

Setup Processes() {
  return {"processes", Ranks::kProcesses, {}};
}

TEST(Start, RankThatDoesNotComeIsNamed) {
  RunJoiners({3, Processes(), {{"start_timeout_s", "3"}}}, [](int rank, const Join& join) {
    if (rank == 1) return;
    rueda_context* context = nullptr;
    EXPECT_EQ(join(&context), RUEDA_DEADLINE_EXCEEDED);
    EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1 did not come"));
  });
}

class StartAgain : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, StartAgain, ::testing::ValuesIn(FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(StartAgain, MeetsThoseWhoComeLate) {
  int first_has_failed[2];
  ASSERT_EQ(pipe(first_has_failed), 0);
  const int size = GetParam().AtLeast(3);
  RunJoiners({size, GetParam(), {{"start_timeout_s", "3"}}}, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    char bytes[3] = {};
    if (rank == 0) {
      EXPECT_EQ(join(&context), RUEDA_DEADLINE_EXCEEDED) << rueda_last_error();
      ASSERT_EQ(write(first_has_failed[1], bytes, size - 1), size - 1);
    } else {
      ASSERT_EQ(read(first_has_failed[0], bytes, 1), 1);
    }
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    uint64_t membership = 0;
    EXPECT_EQ(rueda_context_membership(context, &membership), RUEDA_OK);
    EXPECT_EQ(membership, 1u);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
  close(first_has_failed[0]);
  close(first_has_failed[1]);
}

// Training `n` times alone would be a silent mistake.
TEST(Start, UnderAnotherLauncherFailsByName) {
  RunJoiners({1, Processes()}, [](int, const Join&) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
      setenv("SLURM_STEP_ID", "0", 1);
      setenv(name, "2", 1);
      rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
      options.flags = RUEDA_INIT_READ_ENVIRONMENT;
      rueda_context* context = nullptr;
      EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_FAILED_PRECONDITION);
      EXPECT_EQ(context, nullptr);
      EXPECT_THAT(rueda_last_error(),
                  AllOf(HasSubstr(name + std::string("=2")), HasSubstr("ruedarun -np 2")));
      unsetenv(name);
    }
  });
}

// The knob comes from each process's own environment.
TEST(Start, SettingsThatDifferAreNamedOnEveryRank) {
  const std::string job = "differ-" + std::to_string(getpid());
  const std::vector<int> pids = StartProcesses({3, Processes()}, [&](int rank, const Join&) {
    setenv("RUEDA_RANK", std::to_string(rank).c_str(), 1);
    setenv("RUEDA_SIZE", "3", 1);
    setenv("RUEDA_JOB_ID", job.c_str(), 1);
    setenv("RUEDA_FUSION_THRESHOLD", rank == 1 ? "1024" : "2048", 1);
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.flags = RUEDA_INIT_READ_ENVIRONMENT;
    rueda_context* context = nullptr;
    EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_FAILED_PRECONDITION);
    EXPECT_THAT(
        rueda_last_error(),
        HasSubstr("RUEDA_FUSION_THRESHOLD differs between the ranks: 1024 on rank 1; 2048 on "
                  "ranks 0, 2"));
  });
  for (const int pid : pids) EXPECT_EQ(AwaitProcess(pid), 0);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Stalls, AreWarnedOfOnceByOneRank) {
  const std::string log = ::testing::TempDir() + "/stall_log." + std::to_string(getpid());
  RunRanks({2, Processes(), {{"stall_warn_s", "0.05"}}}, [&](rueda_context* context, int rank) {
    if (rank == 0) {
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(fd, STDERR_FILENO);
      close(fd);
    }
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    const rueda_operation operation = Allreduce("slow", tensor.get());
    if (rank == 1) usleep(200'000);  // time itself is under test
    ASSERT_EQ(Execute(context, operation), RUEDA_OK);
  });
  const std::string text = ReadFile(log);
  EXPECT_THAT(text, HasSubstr("[rueda 0] W stall: allreduce 'slow' has waited for 0."));
  EXPECT_THAT(text, HasSubstr("missing: rank 1 (has submitted nothing)"));
  EXPECT_EQ(text.find("stall:"), text.rfind("stall:")) << text;
  unlink(log.c_str());
}

// Each gets two bells and an arena of each other one.
TEST(Lifecycle, ManyRanksStartWithALowLimitOfDescriptors) {
  static constexpr int kManyRanks = 24;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RunRanks({kManyRanks, Processes()}, [](rueda_context* context, int) {
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    ASSERT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(values[9], kManyRanks);
  });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Lifecycle, TooLowAHardLimitIsNamed) {
  RunJoiners({4, Processes()}, [](int, const Join& join) {
    const rlimit low = {64, 64};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    rueda_context* context = nullptr;
    EXPECT_EQ(join(&context), RUEDA_RESOURCE_EXHAUSTED);
    EXPECT_THAT(rueda_last_error(), HasSubstr("4 ranks on a host need about 84 file descriptors"));
  });
}

// Descriptors of this process that a rank's end, or its waits, are known by.
int CountSocketsAndWaits() {
  int count = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
    for (const char* kind : {"socket:", "[eventpoll]", "[eventfd]", "[pidfd]"}) {
      count += what.find(kind) != std::string::npos;
    }
  }
  return count;
}

TEST(Lifecycle, AForkedChildHasNothingOfItsParentsAndMayBeginAnew) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // ThreadSanitizer knows no threads there; AddressSanitizer's allocator may stay locked.
  GTEST_SKIP() << "sanitizers do not know a child of a process that has threads";
#endif
  RunJoiners({2, Processes()}, [](int, const Join& join) {
    const int before = CountSocketsAndWaits();
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    EXPECT_GT(CountSocketsAndWaits(), before);
    const pid_t child = fork();
    if (child == 0) {
      EXPECT_EQ(CountSocketsAndWaits(), before);
      rueda_context* own = nullptr;
      EXPECT_EQ(join(&own), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(Execute(own, Barrier()), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_shutdown(own), RUEDA_OK) << rueda_last_error();
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(AwaitProcess(child), 0);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
}

TEST(Lifecycle, MemoryOfAParentStaysAsItIsWhateverItsChildDoes) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers do not know a child of a process that has threads";
#endif
  RunJoiners({2, Processes()}, [](int, const Join& join) {
    constexpr size_t kBytes = 1 << 20;
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    void* memory = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, kBytes, &memory), RUEDA_OK) << rueda_last_error();
    std::memset(memory, 1, kBytes);
    const pid_t child = fork();
    if (child == 0) {
      EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
      rueda_context* own = nullptr;
      EXPECT_EQ(join(&own), RUEDA_OK) << rueda_last_error();
      void* more = nullptr;  // of an arena of its own
      EXPECT_EQ(rueda_mem_alloc(own, kBytes, &more), RUEDA_OK) << rueda_last_error();
      EXPECT_NE(more, memory);
      std::memset(more, 2, kBytes);
      EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(static_cast<char*>(more)[kBytes - 1], 2);
      EXPECT_EQ(rueda_mem_free(more), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_shutdown(own), RUEDA_OK) << rueda_last_error();
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(AwaitProcess(child), 0);
    const char* const bytes = static_cast<char*>(memory);
    EXPECT_EQ(std::count(bytes, bytes + kBytes, 1), static_cast<ptrdiff_t>(kBytes));
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
}

TEST(Recorder, WritesItsRingsOnSigusr2) {
  const std::string directory = ::testing::TempDir();
  RunRanks({2, Processes(), {{"recorder_dir", directory}}}, [&](rueda_context* context, int rank) {
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    ASSERT_EQ(Execute(context, Allreduce("recorded", tensor.get())), RUEDA_OK);
    const std::string path = directory + "/rueda-recorder." + std::to_string(getpid()) + ".txt";
    raise(SIGUSR2);
    const std::string text = ReadFile(path);
    EXPECT_THAT(text, AllOf(HasSubstr("# rueda flight recorder"), HasSubstr("name recorded"),
                            HasSubstr("bucket_done"), HasSubstr("rank " + std::to_string(rank))));
    unlink(path.c_str());
  });
}

}  // namespace
}  // namespace rueda::testing
