// The device mirror itself, on the fake device: everything of a small program goes there, what the
// test has looks as if it had been the CPU, and what is written where it must not be is found.
#include "test/support/device_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "test/support/fake_cuda/control.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using fake_cuda::Fake;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DeviceMirror : public ::testing::TestWithParam<Ranks> {
 protected:
  void Run(const std::function<void(rueda_context* context, int rank)>& body) {
    before_ = CountMirrored();
    RunOptions options;
    options.setup.ranks = GetParam();
    RunRanks(options, body);
  }
  int64_t Mirrored() const { return CountMirrored().mirrored - before_.mirrored; }
  int64_t OnTheCpu(OnCpu reason) const {
    return CountMirrored().on_cpu[static_cast<int>(reason)] -
           before_.on_cpu[static_cast<int>(reason)];
  }
  int64_t OnTheCpu() const {
    int64_t all = 0;
    for (int i = 0; i < static_cast<int>(OnCpu::kCount); ++i)
      all += OnTheCpu(static_cast<OnCpu>(i));
    return all;
  }
  void TearDown() override {
    EXPECT_EQ(Fake().live_events(), 0);
    EXPECT_EQ(Fake().live_streams(), 0);
    EXPECT_EQ(Fake().live_communicators(), 0);
    EXPECT_EQ(Fake().live_bytes(), 0);
  }

 private:
  MirrorCounts before_;
};
INSTANTIATE_TEST_SUITE_P(Fake, DeviceMirror, ::testing::Values(Ranks::kThreads, Ranks::kProcesses),
                         [](const auto& ranks) {
                           return ranks.param == Ranks::kThreads ? "threads" : "processes";
                         });

TEST_P(DeviceMirror, EverySubmitOfASimpleProgramGoesToTheDevice) {
  Run([](rueda_context* context, int rank) {
    for (int i = 0; i < 6; ++i) {  // each of the streams, and both ways to wait
      std::vector<float> values(5, rank + 1.0f), more(3, 1.0f), output(5);
      const TensorOf tensor(values), another(more), out(output);
      rueda_operation apart = Allreduce("apart", tensor.get());
      apart.output = out.get();
      ASSERT_EQ(Execute(context, apart), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(output, Each(3.0f));
      EXPECT_THAT(values, Each(rank + 1.0f));
      const rueda_operation group[] = {Allreduce("a", tensor.get()), Allreduce("b", another.get())};
      rueda_handle handle = 0;
      ASSERT_EQ(rueda_submit(context, group, 2, nullptr, &handle), RUEDA_OK);
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_THAT(values, Each(3.0f));
      EXPECT_THAT(more, Each(2.0f));
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    }
  });
  EXPECT_EQ(Mirrored(), 2 * 6 * 3);
  EXPECT_EQ(OnTheCpu(), 0);
}

TEST_P(DeviceMirror, ResultsAreInTheHostsMemoryWhoeverGaveIt) {
  Run([](rueda_context* context, int rank) {
    std::vector<int32_t> own(static_cast<size_t>(rank) + 1, rank), memory;
    const TensorOf tensor(own);
    rueda_operation operation = Allgather("g", tensor.get());
    rueda_result result = ExecuteAndTake(context, operation);
    ASSERT_EQ(result.tensor.device.type, RUEDA_CPU);
    const auto* data = static_cast<const int32_t*>(result.tensor.data);
    EXPECT_THAT(std::vector<int32_t>(data, data + 3), ElementsAre(0, 1, 1));
    rueda_result_free(&result);
    EXPECT_EQ(result.owner, nullptr);
    operation.allocate = [](void* user, int32_t, const int64_t* shape, int32_t) -> void* {
      auto& vector = *static_cast<std::vector<int32_t>*>(user);
      vector.assign(static_cast<size_t>(shape[0]), -1);
      return vector.data();
    };
    operation.allocate_user = &memory;
    result = ExecuteAndTake(context, operation);
    EXPECT_EQ(result.tensor.data, memory.data());
    EXPECT_THAT(memory, ElementsAre(0, 1, 1));
    rueda_result_free(&result);
  });
  EXPECT_EQ(Mirrored(), 4);
}

TEST_P(DeviceMirror, AReleasedHandlesCallbackFindsTheResult) {
  Run([](rueda_context* context, int rank) {
    struct Told {
      std::vector<float> values;
      std::atomic<int> seen{0};
    } told;
    told.values.assign(10, static_cast<float>(rank + 1));
    const TensorOf tensor(told.values);
    const rueda_operation operation = Allreduce("t", tensor.get());
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.user = &told;
    completion.callback = [](void* user, rueda_handle, rueda_status) {
      auto& mine = *static_cast<Told*>(user);
      mine.seen = static_cast<int>(mine.values[9]);
      mine.seen.notify_all();
    };
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &operation, 1, &completion, &handle), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    told.seen.wait(0);
    EXPECT_EQ(told.seen, 3);
  });
}

TEST_P(DeviceMirror, WhatIsForTheCpuGoesThereAndIsCounted) {
  Run([](rueda_context* context, int) {
    std::vector<float> values(600, 1.0f);
    const TensorOf tensor(values);
    ASSERT_EQ(Execute(context, Allreduce("a", tensor.get(), RUEDA_ADASUM)), RUEDA_OK);
    rueda_operation operation = Allreduce("c", tensor.get());
    operation.compressor = "topk:0.5";
    ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    operation.compressor = "int8";
    ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    rueda_result result = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, nullptr, 0, "x", 1, &result), RUEDA_OK);
    rueda_result_free(&result);
  });
  EXPECT_EQ(Mirrored(), 2);
  EXPECT_EQ(OnTheCpu(OnCpu::kAdasum), 2);
  EXPECT_EQ(OnTheCpu(OnCpu::kCompressor), 2);
  EXPECT_EQ(OnTheCpu(OnCpu::kBytes), 2);
  EXPECT_EQ(OnTheCpu(), 6);
  EXPECT_THAT(ToString(CountMirrored()), AllOf(HasSubstr("adasum"), HasSubstr("strings of bytes")));
}

// Tensors of one memory are where they are to each other, and at odd places aligned all the same.
TEST_P(DeviceMirror, PlacesAreKept) {
  Run([](rueda_context* context, int rank) {
    std::vector<char> memory(4096, 0);
    for (int offset = 0; offset < 8; ++offset) {
      auto* const at = memory.data() + offset;
      const float one = static_cast<float>(rank + 1);
      for (int i = 0; i < 10; ++i) memcpy(at + 4 * i, &one, 4);
      const TensorOf first(at, {4}, RUEDA_FLOAT32), second(at + 16, {6}, RUEDA_FLOAT32);
      const rueda_operation group[] = {Allreduce("a", first.get()), Allreduce("b", second.get())};
      ASSERT_EQ(rueda_execute(context, group, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
          << rueda_last_error();
      for (int i = 0; i < 10; ++i) {
        float sum = 0;
        memcpy(&sum, at + 4 * i, 4);
        EXPECT_EQ(sum, 3) << "offset " << offset << " element " << i;
      }
    }
  });
  EXPECT_EQ(Mirrored(), 2 * 8);
  EXPECT_EQ(OnTheCpu(), 0);
}

// What comes back from the device is all zeros here.
TEST(DeviceMirrorFailure, WhatFailsOrLiesWhereItMustNotBeIsATestsFailure) {
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    RunRanks({1, {}}, [](rueda_context* context, int) {
      std::vector<float> values(5, 1.0f);
      const TensorOf tensor(values);
      Fake().fail_next("transfer", -1, 1, RUEDA_INTERNAL, "no way back");
      (void)Execute(context, Allreduce("t", tensor.get()));
    });
  }
  ASSERT_EQ(failures.size(), 2);
  EXPECT_THAT(failures.GetTestPartResult(0).message(), HasSubstr("no way back"));
  EXPECT_THAT(failures.GetTestPartResult(1).message(), HasSubstr("'t' wrote beside its tensors"));
  Fake().reset();
}

}  // namespace
}  // namespace rueda::testing
