// Jobs where a filter of system calls forbids one: they use another, or say which one is forbidden.
// Nothing hangs, and no rank is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <vector>

#include "test/launcher/job.h"
#include "test/support/forbid.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  int call;
  bool needed_by_ranks;
  bool needed_by_ruedarun;
};
void PrintTo(const Case& a_case, std::ostream* out) {
  *out << a_case.name;
}

class ForbiddenCalls : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  Case call() const { return std::get<0>(GetParam()); }
  int error() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(
    All, ForbiddenCalls,
    ::testing::Combine(::testing::Values(Case{"getrandom", SYS_getrandom, false, false},
                                         Case{"epoll_pwait2", SYS_epoll_pwait2, false, false},
                                         Case{"pidfd_open", SYS_pidfd_open, false, true},
                                         Case{"waitid", SYS_waitid, false, true},
                                         Case{"memfd_create", SYS_memfd_create, true, true}),
                       ::testing::Values(EPERM, ENOSYS)),
    [](const auto& one) {
      return std::string(std::get<0>(one.param).name) +
             (std::get<1>(one.param) == EPERM ? "_EPERM" : "_ENOSYS");
    });

TEST_P(ForbiddenCalls, AreDoneWithoutOrNamedByRanks) {
  for (const auto& setup : FewSetups()) {
    SCOPED_TRACE(setup.name);
    RunJoiners({2, setup, {{"log_level", "off"}}}, [&](int, const Join& join) {
      ASSERT_TRUE(Forbid(call().call, error()));  // of a thread: for it and those it starts
      rueda_context* context = nullptr;
      const rueda_status status = join(&context);
      if (call().needed_by_ranks) {
        EXPECT_NE(status, RUEDA_OK);
        EXPECT_THAT(rueda_last_error(), HasSubstr(call().name));
        return;
      }
      ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();
      std::vector<float> values(100'000, 1);
      const TensorOf tensor(values);
      ASSERT_EQ(Execute(context, Allreduce("sum", tensor.get())), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(values[0], 2);
      EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
      rueda_context_destroy(context);
    });
  }
}

TEST_P(ForbiddenCalls, AreDoneWithoutOrNamedByRuedarun) {
  Job::Setup setup;
  setup.forbidden_call = call().call;
  setup.forbidden_error = error();
  Job job({"-np", "2", HELLO}, setup);
  const int status = job.Wait();
  if (call().needed_by_ruedarun) {
    EXPECT_EQ(status, 1);
    EXPECT_THAT(job.err(), ::testing::StartsWith("ruedarun: "));
    EXPECT_THAT(job.err(), HasSubstr(call().name));
    EXPECT_EQ(job.err().find('\n'), job.err().size() - 1) << job.err();
    return;
  }
  EXPECT_EQ(status, 0) << job.err();
  EXPECT_EQ(LinesOf(0, job.out()), "rank 0 of 2: average 0.5\n");
  EXPECT_EQ(LinesOf(1, job.out()), "rank 1 of 2: average 0.5\n");
  EXPECT_EQ(job.err(), "");
}

}  // namespace
}  // namespace rueda::testing
