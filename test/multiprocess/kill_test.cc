// kill -9 of a rank at a random moment of an allreduce: every other rank gets ABORTED, naming the
// lost rank, within a second; nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <set>

#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kTrials = 10;  // each takes seconds
#else
constexpr int kTrials = 50;
#endif
constexpr int64_t kLimitNs = 1'000'000'000;
constexpr int kInFlight = 4;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    files.insert(entry.path().string());
  }
  return files;
}

// What the test and its ranks tell each other.
struct Board {
  std::atomic<int64_t> rounds;     // done by the victim
  std::atomic<int64_t> killed_at;  // just before the kill
  std::atomic<int64_t> noticed_at[8];
};

// Several allreduces in flight, so that the kill may hit a fused bucket, or one that waits. Returns
// false once they fail; what they fail with must name the victim.
bool RunRound(rueda_context* context, int victim, std::vector<std::vector<float>>& data) {
  std::vector<std::unique_ptr<TensorOf>> tensors;
  std::vector<rueda_handle> handles;
  bool ok = true;
  for (int t = 0; t < kInFlight && ok; ++t) {
    tensors.push_back(std::make_unique<TensorOf>(data[t]));
    const std::string name = "t" + std::to_string(t);
    const rueda_operation operation = Allreduce(name.c_str(), tensors[t]->get(), RUEDA_MAX);
    rueda_handle handle = 0;
    const rueda_status status = rueda_submit(context, &operation, 1, nullptr, &handle);
    ok = status == RUEDA_OK;
    if (ok) {
      handles.push_back(handle);
    } else {
      EXPECT_EQ(status, RUEDA_ABORTED) << rueda_last_error();
    }
  }
  for (size_t t = 0; t < handles.size(); ++t) {
    const rueda_status status = rueda_wait(context, handles[t], RUEDA_FOREVER);
    if (status == RUEDA_OK) {
      EXPECT_EQ(data[t][0], 1.0f);
    } else {
      ok = false;
      EXPECT_EQ(status, RUEDA_ABORTED) << rueda_last_error();
      rueda_error error = RUEDA_ERROR_INIT;
      EXPECT_EQ(rueda_handle_error(context, handles[t], &error), RUEDA_OK);
      EXPECT_EQ(error.rank, victim) << error.message;
      EXPECT_EQ(error.recoverable, 1);
      EXPECT_GT(error.pid, 0);
      EXPECT_THAT(error.message, ::testing::HasSubstr("rank " + std::to_string(victim)));
    }
    EXPECT_EQ(rueda_release(context, handles[t]), RUEDA_OK);
  }
  return ok;
}

void RunUntilLost(rueda_context* context, int rank, int victim, int64_t elements, Board* board) {
  std::vector<std::vector<float>> data(kInFlight, std::vector<float>(elements, 1));
  while (RunRound(context, victim, data)) {
    if (rank == victim) ++board->rounds;
  }
  board->noticed_at[rank] = Now();
}

// A child that outlives its rank, as a data loader's worker may, with copies of all that was open.
// It ends when this test has closed the pipe, and all ranks have gone. One that is made by clone
// itself, which tells nobody in it, keeps everything open.
enum class Child { kNone, kForked, kCloned };
void LeaveAChild(Child kind, const int (&pipe)[2]) {
  if ((kind == Child::kForked ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) != 0) {
    close(pipe[0]);
    return;
  }
  close(pipe[1]);
  char byte;
  (void)!read(pipe[0], &byte, 1);
  _exit(0);
}

class Kill : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, Kill, ::testing::ValuesIn([] {
                           std::vector<Setup> setups;
                           for (const Setup& setup : AllSetups()) {
                             if (setup.ranks == Ranks::kProcesses) setups.push_back(setup);
                           }
                           return setups;
                         }()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(Kill, EveryOtherRankIsToldWithinASecond) {
  const std::set<std::string> files_before = SharedMemoryFiles();
  // The seed is 0 but in test/soak.
  std::mt19937 random(12345 + ::testing::UnitTest::GetInstance()->random_seed());
  int64_t slowest = 0;
  for (int trial = 0; trial < kTrials && !HasFailure(); ++trial) {
    const int size = GetParam().AtLeast(2 + static_cast<int>(random() % 3));
    const int victim = static_cast<int>(random() % size);
    const int64_t elements = std::vector<int64_t>{1, 1'000, 250'000, 4'000'000}[random() % 4];
    const int64_t rounds = 1 + static_cast<int64_t>(random() % 20);
    auto* board = static_cast<Board*>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(board, MAP_FAILED);
    const Child child = trial % 2 == 0   ? Child::kNone
                        : trial % 4 == 1 ? Child::kForked
                                         : Child::kCloned;
    int lifeline[2];
    ASSERT_EQ(pipe(lifeline), 0);
    const RunOptions options{
        size, GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
    const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
      rueda_context* context = nullptr;
      ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
      if (child != Child::kNone) LeaveAChild(child, lifeline);
      RunUntilLost(context, rank, victim, elements, board);
      EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
      rueda_context_destroy(context);
    });
    // WNOWAIT: a victim that ends by itself is a failure, told below.
    siginfo_t ended = {};
    while (board->rounds < rounds && ended.si_pid == 0) {
      waitid(P_PID, pids[victim], &ended, WEXITED | WNOHANG | WNOWAIT);
      usleep(50);  // the moment is meant to be random
    }
    board->killed_at = Now();
    kill(pids[victim], SIGKILL);
    for (int rank = 0; rank < size; ++rank) {
      const int status = AwaitProcess(pids[rank]);
      if (status == 0) {  // else its flight recorder's dump may tell why
        std::filesystem::remove(::testing::TempDir() + "/rueda-recorder." +
                                std::to_string(pids[rank]) + ".txt");
      }
      if (rank == victim) continue;
      EXPECT_EQ(status, 0) << "rank " << rank << " of " << size << ", victim " << victim
                           << ", trial " << trial;
      const int64_t took = board->noticed_at[rank] - board->killed_at;
      EXPECT_LT(took, kLimitNs) << "rank " << rank << ", trial " << trial;
      slowest = std::max(slowest, took);
    }
    close(lifeline[0]);
    close(lifeline[1]);
    munmap(board, sizeof(Board));
  }
  EXPECT_EQ(SharedMemoryFiles(), files_before);
  std::printf("slowest notice of %d trials: %.2f ms\n", kTrials,
              static_cast<double>(slowest) / 1e6);
}

// A parent may not look after its children for long: what has ended writes to nobody's memory.
TEST_P(Kill, ARankThatNobodyHasReapedIsGone) {
  const int size = GetParam().AtLeast(2);
  const int victim = size - 1;
  const RunOptions options{
      size, GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    constexpr size_t kElements = 100'000;
    void* memory = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, kElements * sizeof(float), &memory), RUEDA_OK);
    const TensorOf tensor(memory, {kElements}, RUEDA_FLOAT32);
    rueda_status status = RUEDA_OK;
    while (status == RUEDA_OK) {
      status = Execute(context, Allreduce("t", tensor.get()));
      if (rank == victim) raise(SIGKILL);
    }
    EXPECT_EQ(status, RUEDA_ABORTED) << rueda_last_error();
    rueda_context_destroy(context);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK) << rueda_last_error();
    std::filesystem::remove(::testing::TempDir() + "/rueda-recorder." + std::to_string(getpid()) +
                            ".txt");
  });
  for (int rank = 0; rank < size; ++rank) {  // the victim comes last
    EXPECT_EQ(AwaitProcess(pids[rank]), rank == victim ? SIGKILL : 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace rueda::testing
