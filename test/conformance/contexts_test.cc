// Several jobs at once in the same processes: worlds of some of the ranks beside each other and
// beside the world of all, and contexts used in turns, with operations of every kind in both.
//
// A job of some of the ranks is one of its own: its members give themselves ranks in it, and meet
// by another job_id (threads: another group).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test/conformance/tasks.h"
#include "test/support/jobs.h"

namespace rueda::testing {
namespace {

class Contexts : public JobTest {
 protected:
  int SizeFor(int size) const { return GetParam().AtLeast(size); }
};
INSTANTIATE_TEST_SUITE_P(All, Contexts, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// A job of two of the ranks, which anybody may begin to join.
class Part {
 public:
  Part(const Setup& setup, const char* name)
      : setup_(setup), job_id_("part-" + std::to_string(getpid()) + "-" + name) {
    if (setup.ranks == Ranks::kThreads) {
      EXPECT_EQ(rueda_group_create(2, &group_), RUEDA_OK);
    } else {
      secret_fd_ = memfd_create("part-secret", 0);
      EXPECT_EQ(write(secret_fd_, "fedcba9876543210fedcba9876543210", 32), 32);
    }
  }
  Part(const Part&) = delete;
  ~Part() {
    rueda_group_destroy(group_);
    if (secret_fd_ >= 0) close(secret_fd_);
  }

  rueda_status Join(int rank, rueda_context** context) const {
    std::vector<std::string> words;
    for (const auto& [name, value] : setup_.knobs) words.insert(words.end(), {name, value});
    if (group_ == nullptr) {
      words.insert(words.end(), {"rank", std::to_string(rank), "size", "2", "job_id", job_id_,
                                 "secret_fd", std::to_string(secret_fd_)});
    }
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
    init.knobs = pointers.data();
    init.knob_count = pointers.size() / 2;
    init.group = group_;
    if (group_ != nullptr) init.group_rank = rank;
    return rueda_init(RUEDA_VERSION, &init, context);
  }

 private:
  const Setup setup_;
  const std::string job_id_;
  rueda_group* group_ = nullptr;
  int secret_fd_ = -1;
};

// One operation of every kind in each of the contexts, all in flight at once: submitted and waited
// for in an order that is this rank's own.
void MixKinds(const std::vector<rueda_context*>& contexts, uint32_t seed, std::mt19937* own) {
  struct Use {
    Use(rueda_context* context, Task the_task)
        : task(std::move(the_task)), running(context, task, rueda_rank(context)) {}
    const Task task;
    Running running;
  };
  std::vector<std::unique_ptr<Use>> uses;
  for (rueda_context* const context : contexts) {
    for (const rueda_kind kind : kTaskKinds) {
      // The contexts' own values, under the same names.
      const uint32_t values = seed * 10 + static_cast<uint32_t>(rueda_size(context)) * 7;
      Task task = SmallTask(kind, "t" + std::to_string(kind), rueda_size(context), values);
      if (seed % 3 == 0) task.rows = 5'000;
      if (!task.Has(rueda_rank(context))) continue;
      uses.push_back(std::make_unique<Use>(context, std::move(task)));
    }
  }
  std::shuffle(uses.begin(), uses.end(), *own);
  for (auto& use : uses) ASSERT_NO_FATAL_FAILURE(use->running.Submit());
  std::shuffle(uses.begin(), uses.end(), *own);
  for (auto& use : uses) ASSERT_NO_FATAL_FAILURE(use->running.Check(use->task.members));
}

void Leave(rueda_context* context) {
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
  rueda_context_destroy(context);
}

// Ranks 1 and 3 of four, and the others; then all four, in the same processes.
TEST_P(Contexts, SomeOfTheRanksAreAJobBesideTheOthers) {
  const Part odd(GetParam(), "odd"), even(GetParam(), "even");
  RunJoiners({4, GetParam()}, [&](int rank, const testing::Join& join) {
    std::mt19937 own(static_cast<uint32_t>(rank));
    rueda_context *part = nullptr, *all = nullptr;
    ASSERT_EQ((rank % 2 == 1 ? odd : even).Join(rank / 2, &part), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_rank(part), rank / 2);
    ASSERT_EQ(rueda_size(part), 2);
    float sum = static_cast<float>(rank);
    const TensorOf tensor(&sum, {}, RUEDA_FLOAT32);
    ASSERT_EQ(Execute(part, Allreduce("sum", tensor.get())), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(sum, rank % 2 == 1 ? 4 : 2);
    for (uint32_t i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(MixKinds({part}, i, &own));
    ASSERT_EQ(join(&all), RUEDA_OK) << rueda_last_error();
    for (uint32_t i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(MixKinds({all, part}, i, &own));
    // One of the parts ends, and the other and the whole go on.
    if (rank % 2 == 1) Leave(part);
    for (uint32_t i = 0; i < 5; ++i) {
      ASSERT_NO_FATAL_FAILURE(rank % 2 == 1 ? MixKinds({all}, i, &own)
                                            : MixKinds({part, all}, i, &own));
    }
    if (rank % 2 == 0) Leave(part);
    Leave(all);
  });
}

TEST_P(Contexts, TwoOfTheSameRanksTakeTurnsWithEveryKind) {
  const RunOptions options{
      SizeFor(3), GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  RunJoiners(options, [&](int rank, const testing::Join& join) {
    std::mt19937 own(static_cast<uint32_t>(rank));
    rueda_context *first = nullptr, *second = nullptr;
    ASSERT_EQ(join(&first), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(join(&second), RUEDA_OK) << rueda_last_error();
    for (uint32_t i = 0; i < 20; ++i) {
      ASSERT_NO_FATAL_FAILURE(MixKinds({first, second}, i, &own));
    }
    // What fails in one does not reach the other.
    ASSERT_EQ(Execute(second, Barrier()), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_abort(first, "on purpose"), RUEDA_OK);
    EXPECT_EQ(Execute(first, Barrier()), RUEDA_ABORTED);
    for (uint32_t i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(MixKinds({second}, i, &own));
    Leave(second);
    EXPECT_EQ(rueda_shutdown(first), RUEDA_ABORTED);
    rueda_context_destroy(first);
  });
}

// One of the threads turns the engine while it waits, and would do so for ever.
TEST_P(Contexts, AnAbortEndsWhatOtherThreadsWaitFor) {
  const RunOptions options{
      SizeFor(2), GetParam(), {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}}};
  RunJoiners(options, [&](int rank, const testing::Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    if (rank != 0) {
      EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
    } else {
      std::vector<std::thread> waiters;
      for (int i = 0; i < 3; ++i) {
        waiters.emplace_back([context, i] {
          float value = 1;
          const TensorOf tensor(&value, {1}, RUEDA_FLOAT32);
          const std::string name = "alone " + std::to_string(i);
          EXPECT_EQ(Execute(context, Allreduce(name.c_str(), tensor.get(), RUEDA_SUM)),
                    RUEDA_ABORTED);
        });
      }
      AwaitSleepOfOthers();
      EXPECT_EQ(rueda_abort(context, "on purpose"), RUEDA_OK);
      for (std::thread& waiter : waiters) waiter.join();
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
    rueda_context_destroy(context);
  });
}

}  // namespace
}  // namespace rueda::testing
