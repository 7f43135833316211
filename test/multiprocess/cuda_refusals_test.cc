// What the system refuses a rank while the fake CUDA device is used: memory and threads for the
// lanes there. As refusals_test; the device itself (test/support/fake_cuda) is refused nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "test/support/fake_cuda/on_device.h"
#include "test/support/refuse.h"
#include "test/support/refuse_each.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using fake_cuda::Fake;
using fake_cuda::OnDevice;
using ::testing::ContainsRegex;

class CudaRefusals : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (!CanRefuse()) GTEST_SKIP() << "the sanitizer stands before the libraries itself";
    std::set_terminate([] {  // for the log
      PrintRefused(STDERR_FILENO);
      std::abort();
    });
  }
  void TearDown() override {
    if (GetParam().ranks == Ranks::kProcesses) return;
    EXPECT_EQ(Fake().live_streams(), 0);
    EXPECT_EQ(Fake().live_communicators(), 0);
    EXPECT_EQ(Fake().live_bytes(), 0);
    Fake().reset();
  }
  RunOptions options() const { return {GetParam().AtLeast(3), GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Fake, CudaRefusals, ::testing::ValuesIn(FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

// A sum, two that are packed, the urgent lane's own, and one in a new process set.
void Sums(rueda_context* context, std::string* first) {
  const int device = rueda_rank(context) % 2;
  const OnDevice<float> a(device, {1, 2}), gap(device, {9, 9}), b(device, {3});
  const auto execute = [&](const rueda_operation* operations, size_t count) {
    const rueda_status status =
        Call([&] { return rueda_execute(context, operations, count, RUEDA_FOREVER, nullptr); });
    if (status != RUEDA_OK) Note(status, first);
    return status == RUEDA_OK;
  };
  rueda_operation operations[] = {a.Sum("a"), b.Sum("b")};
  operations[1].exec = operations[0].exec;
  if (!execute(operations, 1) || !execute(operations, 2)) return;
  rueda_operation urgent = a.Sum("urgent");
  urgent.priority = 1;
  if (!execute(&urgent, 1)) return;
  const int32_t ranks[] = {0, 2};
  int32_t id = -1;
  const rueda_status made =
      Call([&] { return rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &id); });
  if (made != RUEDA_OK) return Note(made, first);
  operations[0].process_set = id;
  if (rueda_process_set_rank(context, id) >= 0) (void)execute(operations, 1);
}

TEST_P(CudaRefusals, OfMemoryAreNamedOnAllRanks) {
  RefuseEach(Refusable::kNew, options(), NamesMissingMemory(), Sums);
}

TEST_P(CudaRefusals, OfThreadsAreNamedOnAllRanks) {
  // Among threads it may be any that is refused.
  const std::string who = GetParam().ranks == Ranks::kThreads ? "rank [0-9]" : "rank 0";
  const std::string what = ".*starting (the device's thread|a lane's watcher|a lane thread)";
  RefuseEach(Refusable::kThread, options(), ContainsRegex(who + what), Sums);
}

}  // namespace
}  // namespace rueda::testing
