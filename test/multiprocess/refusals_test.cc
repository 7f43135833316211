// What the system refuses while a job runs: memory, threads, system calls. Either nothing comes of
// it, or the membership ends with an error that says so, on all ranks. Nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "test/support/forbid.h"
#include "test/support/refuse.h"
#include "test/support/refuse_each.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kCannotRefuse[] = "the sanitizer stands before the libraries itself";

class Refusals : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (!CanRefuse()) GTEST_SKIP() << kCannotRefuse;
    std::set_terminate([] {  // for the log
      PrintRefused(STDERR_FILENO);
      std::abort();
    });
  }
  int size() const { return GetParam().AtLeast(2); }
};
INSTANTIATE_TEST_SUITE_P(All, Refusals, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

void Sums(rueda_context* context, std::string* first) {
  std::vector<float> values(1'000, 1);
  const TensorOf tensor(values);
  for (const char* name : {"a", "b"}) {
    const rueda_operation operation = Allreduce(name, tensor.get());
    const rueda_status status =
        Call([&] { return rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr); });
    if (status != RUEDA_OK) return Note(status, first);
  }
}

void Callbacks(rueda_context* context, std::string* first) {
  std::vector<float> values(1'000, 1);
  const TensorOf tensor(values);
  std::atomic<int> called{0};
  std::vector<rueda_handle> handles;
  for (const uint32_t flags : {0u, uint32_t{RUEDA_COMPLETION_INLINE}}) {
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.user = &called;
    completion.flags = flags;
    completion.callback = [](void* user, rueda_handle, rueda_status) {
      ++*static_cast<std::atomic<int>*>(user);
    };
    const rueda_operation operation = Allreduce(flags == 0 ? "late" : "inline", tensor.get());
    handles.push_back(0);
    const rueda_status status =
        Call([&] { return rueda_submit(context, &operation, 1, &completion, &handles.back()); });
    if (status != RUEDA_OK) {
      Note(status, first);
      handles.pop_back();
      (void)rueda_abort(context, rueda_last_error());  // the others must not wait for it
      break;
    }
  }
  for (const rueda_handle handle : handles) {
    const rueda_status status = Call([&] { return rueda_wait(context, handle, RUEDA_FOREVER); });
    if (status != RUEDA_OK) Note(status, first);
  }
  // Each comes exactly once, whatever happens.
  while (called < static_cast<int>(handles.size())) usleep(100);
  EXPECT_EQ(called, static_cast<int>(handles.size()));
}

void Sets(rueda_context* context, std::string* first) {
  const int32_t ranks[] = {0, 1};
  const int world = rueda_size(context);
  int32_t id = -1;
  rueda_status status = Call([&] {
    return rueda_process_set_add(context, ranks, world == 2 ? 1 : 2, RUEDA_FOREVER, &id);
  });
  if (status == RUEDA_OK) {
    status = Call([&] { return rueda_process_set_remove(context, id, RUEDA_FOREVER); });
  }
  if (status != RUEDA_OK) Note(status, first);
}

void Gathers(rueda_context* context, std::string* first) {
  std::vector<float> values(static_cast<size_t>(10 + rueda_rank(context)), 1);
  const TensorOf tensor(values);
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLGATHER;
  operation.input = tensor.get();
  rueda_handle handle = 0;
  rueda_status status =
      Call([&] { return rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle); });
  rueda_result result = RUEDA_RESULT_INIT;
  if (status == RUEDA_OK) {
    status = Call([&] { return rueda_result_take(context, handle, 0, &result); });
  }
  if (status != RUEDA_OK) return Note(status, first);
  rueda_result_free(&result);
}

// What tells a number and no status: the number, or -1 (0) and why.
void Questions(rueda_context* context, std::string* first) {
  rueda_group* group = nullptr;
  const int rank = rueda_rank(context);
  const int size = rueda_size(context);
  const auto ask = [&](int32_t expected, int32_t otherwise, std::function<int32_t()> question) {
    const int32_t answer = Call(question);
    if (answer == expected) return;
    EXPECT_EQ(answer, otherwise);
    Note(RUEDA_RESOURCE_EXHAUSTED, first);
  };
  ask(rank, -1, [&] { return rueda_process_set_rank(context, RUEDA_WORLD); });
  ask(size, -1, [&] { return rueda_process_set_size(context, RUEDA_WORLD); });
  ask(-1, -1, [&] { return rueda_process_set_size(context, 77); });
  ask(-1, -1, [&] { return rueda_process_set_rank(nullptr, RUEDA_WORLD); });
  ask(-1, -1, [&] { return rueda_rank(nullptr); });
  ask(0, 0, [&] { return rueda_is_initialized(nullptr); });
  const rueda_status made = Call([&] { return rueda_group_create(2, &group); });
  if (made != RUEDA_OK) Note(made, first);
  (void)Call([&] {
    rueda_group_destroy(group);
    rueda_result_free(nullptr);
    rueda_result short_one = RUEDA_RESULT_INIT;
    short_one.size = sizeof(size_t);
    rueda_result_free(&short_one);
    return 0;
  });
}

void RefuseEach(const Setup& setup, int size, void (*work)(rueda_context*, std::string*)) {
  RefuseEach(Refusable::kNew, {size, setup}, NamesMissingMemory(), work);
}

TEST_P(Refusals, OfMemoryInASum) {
  RefuseEach(GetParam(), size(), Sums);
}
TEST_P(Refusals, OfMemoryBesideCallbacks) {
  RefuseEach(GetParam(), size(), Callbacks);
}
TEST_P(Refusals, OfMemoryForAProcessSet) {
  RefuseEach(GetParam(), size(), Sets);
}
TEST_P(Refusals, OfMemoryForAResult) {
  RefuseEach(GetParam(), size(), Gathers);
}

TEST_P(Refusals, OfMemoryForAnAnswer) {
  RefuseEach(GetParam(), size(), Questions);
}

// The others, who wait, are told whatever is refused; and nothing is thrown.
TEST_P(Refusals, OfMemoryForADestruction) {
  bool was_refused = true;
  for (int n = 0; was_refused; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    Refusal refusal;
    const RunOptions options = {
        size(), GetParam(), {{"log_level", "off"}, {"recorder_dir", "/nowhere"}}};
    RunJoiners(options, [&](int rank, const Join& join) {
      SetExempt(true);
      rueda_context* context = nullptr;
      ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
      if (rank != 0) {
        EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
        rueda_context_destroy(context);
        return;
      }
      RefuseNth(Refusable::kNew, n);
      (void)Call([&] {
        rueda_context_destroy(context);
        return 0;
      });
      refusal.Tell();
      EXPECT_EQ(rueda_rank(context), -1);
    });
    was_refused = refusal.Ask();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(Refusals, OfAThreadForCallbacksIsTheCallers) {
  RunRanks({size(), GetParam()}, [](rueda_context* context, int rank) {
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    const rueda_operation operation = Allreduce("t", tensor.get());
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.callback = [](void*, rueda_handle, rueda_status) {};
    rueda_handle handle = 0;
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();  // all have started
    if (rank == 0) {
      RefuseNth(Refusable::kThread, 0);
      EXPECT_EQ(rueda_submit(context, &operation, 1, &completion, &handle),
                RUEDA_RESOURCE_EXHAUSTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("starting the thread for callbacks"));
      StopRefusing();
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_submit(context, &operation, 1, &completion, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

class AtTheStart : public Refusals {};
INSTANTIATE_TEST_SUITE_P(All, AtTheStart, ::testing::ValuesIn(FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(AtTheStart, AThreadThatIsRefusedIsNamedOnAllRanks) {
  const char* const what =
      GetParam().multiple_of == 2 ? "starting a lane thread" : "starting the engine's thread";
  SetExempt(true);  // this thread starts the other ranks, where they are threads
  RunJoiners({size(), GetParam(), {{"log_level", "off"}}}, [&](int rank, const Join& join) {
    SetExempt(rank != 0);
    if (rank == 0) RefuseNth(Refusable::kThread, 0);
    rueda_context* context = nullptr;
    const rueda_status status = join(&context);
    if (rank == 0) {
      EXPECT_EQ(status, RUEDA_RESOURCE_EXHAUSTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr(what));
      return;
    }
    ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();  // it had begun
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
    EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank 0"), HasSubstr(what)));
    (void)rueda_shutdown(context);
    rueda_context_destroy(context);
  });
  SetExempt(false);
}

// A large sum of ranks 0 and 1 is under way when the membership ends for another reason, in the
// middle of rank 0's turn: nobody touches the tensor any more when its callback has come, which
// comes once.
class AfterTheEnd : public Refusals {};
std::vector<Setup> OnTwoHosts() {
  std::vector<Setup> setups = AllSetups();
  std::erase_if(setups, [](const Setup& setup) { return setup.multiple_of != 2; });
  return setups;
}
INSTANTIATE_TEST_SUITE_P(All, AfterTheEnd, ::testing::ValuesIn(OnTwoHosts()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(AfterTheEnd, NoTensorIsTouched) {
  RunOptions options = {4, GetParam(), {{"process_sets", "0,1"}, {"log_level", "off"}}};
  options.may_fail = true;
  RunRanks(options, [](rueda_context* context, int rank) {
    struct Under {
      std::vector<float> values;
      std::atomic<int> called{0};
    } under;
    under.values.assign(rank < 2 ? 16 << 20 : 1, 1);
    const TensorOf tensor(under.values);
    rueda_handle handle = 0;
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
    if (rank < 2) {
      rueda_operation operation = Allreduce("large", tensor.get());
      operation.process_set = 1;
      rueda_completion completion = RUEDA_COMPLETION_INIT;
      completion.user = &under;
      completion.flags = RUEDA_COMPLETION_INLINE;
      completion.callback = [](void* user, rueda_handle, rueda_status status) {
        Under& mine = *static_cast<Under*>(user);
        ++mine.called;
        if (status != RUEDA_OK) std::fill(mine.values.begin(), mine.values.end(), -7.0f);
      };
      ASSERT_EQ(rueda_submit(context, &operation, 1, &completion, &handle), RUEDA_OK);
    }
    if (rank == 0)
      RefuseNth(Refusable::kThread, 0);  // which the lane of a set on two hosts would need
    const int32_t ranks[] = {0, 2};
    int32_t id = -1;
    rueda_status status = rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &id);
    if (rank == 0) {
      // Among threads it may be rank 2's that is refused, when this rank has its own.
      if (status == RUEDA_OK) status = Execute(context, Barrier());
      EXPECT_EQ(status, RUEDA_ABORTED);
      EXPECT_THAT(rueda_last_error(), HasSubstr("starting a lane thread"));
      StopRefusing();
      rueda_error error = RUEDA_ERROR_INIT;
      EXPECT_EQ(rueda_context_error(context, &error), RUEDA_OK);
      EXPECT_TRUE(error.rank == 0 || error.rank == 2) << "whose doing it is: " << error.rank;
      EXPECT_EQ(error.pid, 0) << "nobody was lost";
    }
    if (rank < 2) {
      (void)rueda_wait(context, handle, RUEDA_FOREVER);
      (void)rueda_shutdown(context);
      EXPECT_EQ(under.called, 1);
      if (under.values[0] == -7.0f) {
        EXPECT_EQ(std::count(under.values.begin(), under.values.end(), -7.0f),
                  static_cast<ptrdiff_t>(under.values.size()));
      }
    }
  });
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Linux before 5.11 has no epoll_pwait2, and filters of system calls may not know it.
class OldKernels : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, OldKernels, ::testing::ValuesIn(FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(OldKernels, SleepWithoutEpollPwait2) {
  for (const int error : {ENOSYS, EPERM}) {
    const auto body = [&](int rank, const Join& join) {
      ASSERT_TRUE(Forbid(SYS_epoll_pwait2, error));
      rueda_context* context = nullptr;
      ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
      const double before = CpuSeconds();
      if (rank == 1) usleep(500'000);  // time is what is tested: the other one waits meanwhile
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
      EXPECT_LT(CpuSeconds() - before, 0.25) << "it does not sleep";
      EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
      rueda_context_destroy(context);
    };
    RunJoiners({GetParam().AtLeast(2), GetParam()}, body);
  }
}

}  // namespace
}  // namespace rueda::testing
