// CUDA tensors through the C API, on the fake CUDA device (test/support/fake_cuda): who waits for
// whom, what is refused, what is given back. What CUDA and NCCL themselves do is for the tests with
// the label gpu.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rueda/rueda.hpp"
#include "test/support/fake_cuda/control.h"
#include "test/support/fake_cuda/device_vector.h"
#include "test/support/fake_cuda/on_device.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using fake_cuda::CallersStream;
using fake_cuda::DeviceVector;
using fake_cuda::Fake;
using fake_cuda::OnDevice;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

rueda_handle Submitted(rueda_context* context, const rueda_operation& operation) {
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK) << rueda_last_error();
  return handle;
}

void Refused(rueda_context* context, const rueda_operation& operation, rueda_status status,
             const std::string& words) {
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), status) << words;
  EXPECT_THAT(rueda_last_error(), HasSubstr(words));
}

// The same body on threads and on processes; everything that was opened is closed at the end.
class Cuda : public ::testing::TestWithParam<Ranks> {
 protected:
  using Body = std::function<void(rueda_context* context, int rank, int device)>;
  void Run(int size, const Body& body, bool may_fail = false) {
    RunOptions options;
    options.size = size;
    options.setup.ranks = GetParam();
    options.may_fail = may_fail;
    RunRanks(options, [&](rueda_context* context, int rank) { body(context, rank, rank % 2); });
  }
  void TearDown() override {
    if (GetParam() == Ranks::kProcesses) return;
    EXPECT_EQ(Fake().live_events(), 0);
    EXPECT_EQ(Fake().live_streams(), 0);
    EXPECT_EQ(Fake().live_communicators(), 0);
    EXPECT_EQ(Fake().live_bytes(), 0);
    Fake().reset();
  }
};
INSTANTIATE_TEST_SUITE_P(Fake, Cuda, ::testing::Values(Ranks::kThreads, Ranks::kProcesses),
                         [](const auto& ranks) {
                           return ranks.param == Ranks::kThreads ? "threads" : "processes";
                         });

TEST_P(Cuda, AnAllreduceSumsOverTheRanksInPlaceAndApart) {
  Run(3, [](rueda_context* context, int rank, int device) {
    for (const size_t size : {1, 1000, 100'000}) {
      const OnDevice<float> in_place(device, std::vector<float>(size, rank + 1.0f));
      ASSERT_EQ(Execute(context, in_place.Sum("in place")), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(in_place.Values(), Each(6.0f));
      const OnDevice<float> output(device, std::vector<float>(size, 0.0f));
      const OnDevice<float> input(device, std::vector<float>(size, rank + 1.0f));
      rueda_operation apart = input.Operation(RUEDA_ALLREDUCE, "apart");
      apart.output = &output.tensor();
      apart.reduce_op = RUEDA_AVERAGE;
      ASSERT_EQ(Execute(context, apart), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(output.Values(), Each(2.0f));
      EXPECT_THAT(input.Values(), Each(rank + 1.0f));
    }
  });
}

// Submitting waits for nothing, and the operation for what the caller's stream had been given.
TEST_P(Cuda, AnOperationBeginsBehindTheCallersStreamAndTheStreamGoesOnBehindIt) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device), other(device);
    OnDevice<float> tensor(device, std::vector<float>(1000, -1000.0f), stream.get());
    auto* const data = static_cast<float*>(tensor.tensor().data);
    // Twice, as only the first time anything is made.
    for (int step = 0; step < 2; ++step) {
      stream.Hold();
      stream.Enqueue([=] { std::fill_n(data, 1000, rank + 1.0f); });
      const rueda_handle handle = Submitted(context, tensor.Sum("t"));
      EXPECT_GE(stream.pending(), 2) << "the stream was not busy any more behind the submit";
      ASSERT_EQ(rueda_wait_on_stream(context, handle, other.get()), RUEDA_OK) << rueda_last_error();
      EXPECT_GE(stream.pending(), 2) << "wait_on_stream waited for the device";
      int32_t done = 1;
      ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
      EXPECT_EQ(done, 0);
      float found = 0;
      other.Enqueue([&] { found = data[999]; });
      stream.Release();
      other.Drain();
      EXPECT_EQ(found, 3);
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
      // Of one that is over, too.
      ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      stream.Drain();
    }
  });
}

TEST_P(Cuda, AReadyEventTakesTheStreamsPlace) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device), busy(device);
    fake_cuda::Message words;
    void* event = nullptr;
    ASSERT_EQ(fake_cuda::Cuda().open_event(device, &event, words), 0);
    OnDevice<float> tensor(device, std::vector<float>(10, 0.0f), busy.get());
    auto* const data = static_cast<float*>(tensor.tensor().data);
    stream.Hold();
    stream.Enqueue([=] { std::fill_n(data, 10, rank + 1.0f); });
    ASSERT_EQ(fake_cuda::Cuda().record(device, event, stream.get(), words), 0);
    busy.Hold();  // which is not looked at
    tensor.exec().ready_event = event;
    const rueda_handle handle = Submitted(context, tensor.Sum("t"));
    stream.Release();
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    EXPECT_THAT(tensor.Values(), Each(3.0f));
    busy.Release();
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    fake_cuda::Cuda().close_event(device, event);
  });
}

// Several small ones behind one that is under way leave as one bucket: a copy in, one allreduce, a
// copy out.
TEST_P(Cuda, WhatComesBehindABusyLaneIsFusedAndPackedByOneKernel) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    const OnDevice<float> warm_up(device, {1, 1, 1}, stream.get());
    ASSERT_EQ(Execute(context, warm_up.Sum("warm-up")), RUEDA_OK) << rueda_last_error();
    const OnDevice<float> first(device, std::vector<float>(10, 1.0f), stream.get());
    std::vector<std::unique_ptr<OnDevice<float>>> small;
    std::vector<rueda_handle> handles;
    stream.Hold();
    handles.push_back(Submitted(context, first.Sum("first")));
    ASSERT_EQ(rueda_wait_on_stream(context, handles[0], stream.get()), RUEDA_OK);
    ASSERT_EQ(Execute(context, Barrier("all have the first one under way")), RUEDA_OK);
    if (rank == 0) Fake().start_log();
    for (int i = 0; i < 5; ++i) {
      small.push_back(std::make_unique<OnDevice<float>>(
          device, std::vector<float>(static_cast<size_t>(i) + 1, static_cast<float>(i)),
          stream.get()));
      const std::string name = "s" + std::to_string(i);
      handles.push_back(Submitted(context, small.back()->Sum(name.c_str())));
    }
    ASSERT_EQ(Execute(context, Barrier("all have submitted all")), RUEDA_OK);
    stream.Release();
    for (const rueda_handle handle : handles) {
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    }
    for (int i = 0; i < 5; ++i) EXPECT_THAT(small[i]->Values(), Each(2.0f * i));
    if (rank != 0) return;
    int copies = 0, sums = 0;
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = device})) {
      if (call.function == std::string("copy")) ++copies;
      if (call.function == std::string("allreduce")) {
        ++sums;
        EXPECT_EQ(call.count, 15);
      }
    }
    EXPECT_EQ(sums, 1);
    EXPECT_EQ(copies, 2);
  });
}

// A group is one bucket for certain: what is enqueued for it, call by call.
TEST_P(Cuda, AGroupIsPackedReducedAndUnpackedBehindTheCallersStream) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    const OnDevice<float> a(device, {1, 2}, stream.get()), gap(device, {9, 9}, stream.get()),
        b(device, {3}, stream.get());
    rueda_operation operations[] = {a.Sum("a"), b.Sum("b")};
    operations[1].exec = operations[0].exec;
    for (int step = 0; step < 2; ++step) {
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
      if (step == 1 && rank == 0) Fake().start_log();
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
      // It is not done before the stream comes behind it, which would need no event.
      stream.Hold();
      rueda_handle handle = 0;
      ASSERT_EQ(rueda_submit(context, operations, 2, nullptr, &handle), RUEDA_OK)
          << rueda_last_error();
      ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
      stream.Release();
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    }
    EXPECT_THAT(a.Values(), ElementsAre(4, 8));
    EXPECT_THAT(b.Values(), ElementsAre(12));
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    std::vector<std::string> calls;
    int32_t lane = -1, ready = -1, done = -1;
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = device})) {
      if (call.function == std::string("transfer")) continue;    // the test's own
      if (call.function == std::string("open_event")) continue;  // where none was free
      calls.emplace_back(call.function);
      if (call.stream != stream.number() && lane < 0) lane = call.stream;
      if (calls.size() == 1) {
        EXPECT_EQ(call.stream, stream.number());
        ready = call.event;
      } else if (calls.size() == 2) {
        EXPECT_EQ(call.event, ready) << "the lane waits for something else";
      } else if (calls.size() == 6) {
        done = call.event;
      } else if (calls.size() > 6) {
        EXPECT_EQ(call.event, done) << calls.back();
      }
      if (calls.size() >= 2 && calls.size() <= 6) {
        EXPECT_EQ(call.stream, lane) << calls.back();
      }
    }
    ASSERT_GE(calls.size(), 8u);
    calls.resize(6);
    EXPECT_THAT(calls, ElementsAre("record", "wait", "copy", "allreduce", "copy", "record"));
  });
}

TEST_P(Cuda, TensorsThatLieOneBehindTheOtherAreNotCopied) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  Run(2, [](rueda_context* context, int rank, int device) {
    const auto flat = std::make_shared<DeviceVector<float>>(
        device, std::vector<float>(100, static_cast<float>(rank)));
    const OnDevice<float> a(device, flat, 0, 30), b(device, flat, 30, 30), c(device, flat, 60, 40);
    const rueda_operation operations[] = {a.Sum("a"), b.Sum("b"), c.Sum("c")};
    if (rank == 0) Fake().start_log();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    ASSERT_EQ(rueda_execute(context, operations, 3, RUEDA_FOREVER, nullptr), RUEDA_OK)
        << rueda_last_error();
    EXPECT_THAT(flat->Download(), Each(1.0f));
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = device})) {
      EXPECT_STRNE(call.function, "copy");
      if (call.function == std::string("allreduce")) {
        EXPECT_EQ(call.count, 100);
      }
    }
  });
}

TEST_P(Cuda, InputsThatLieOneBehindTheOtherAndOutputsThatDontArePacked) {
  Run(2, [](rueda_context* context, int rank, int device) {
    const auto flat = std::make_shared<DeviceVector<float>>(
        device, std::vector<float>(50, static_cast<float>(rank + 1)));
    const OnDevice<float> a(device, flat, 0, 30), b(device, flat, 30, 20);
    const OnDevice<float> sum_of_b(device, std::vector<float>(20, 0.0f));
    const OnDevice<float> sum_of_a(device, std::vector<float>(30, 0.0f));
    rueda_operation operations[] = {a.Sum("a"), b.Sum("b")};
    operations[0].output = &sum_of_a.tensor();
    operations[1].output = &sum_of_b.tensor();
    ASSERT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
        << rueda_last_error();
    EXPECT_THAT(sum_of_a.Values(), Each(3.0f));
    EXPECT_THAT(sum_of_b.Values(), Each(3.0f));
    EXPECT_THAT(flat->Download(), Each(rank + 1.0f));
  });
}

// With the knob NCCL only carries what is added up; which bits that gives is for the tests of
// conformance.
TEST_P(Cuda, WhereResultsMustNotVaryNcclAddsNothingUp) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  RunOptions options;
  options.setup.ranks = GetParam();
  options.knobs = {{"deterministic", "1"}};
  RunRanks(options, [&](rueda_context* context, int rank) {
    if (rank == 0) Fake().start_log();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    const OnDevice<float> tensor(rank, std::vector<float>(1000, 1.0f));
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    EXPECT_THAT(tensor.Values(), Each(2.0f));
    int kernels = 0;
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = rank})) {
      EXPECT_STRNE(call.function, "allreduce");
      if (call.function == std::string("reduce")) ++kernels;
    }
    EXPECT_EQ(kernels, 1);
  });
}

TEST_P(Cuda, UrgentOperationsDontWaitForTheOthers) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream busy(device), stream(device);
    const OnDevice<float> slow(device, {1.0f}, busy.get());
    const OnDevice<float> fast(device, {static_cast<float>(rank)}, stream.get());
    busy.Hold();
    const rueda_handle handle = Submitted(context, slow.Sum("slow"));
    ASSERT_EQ(rueda_wait_on_stream(context, handle, busy.get()), RUEDA_OK) << rueda_last_error();
    rueda_operation urgent = fast.Sum("fast");
    urgent.priority = 1;
    ASSERT_EQ(Execute(context, urgent), RUEDA_OK) << rueda_last_error();
    EXPECT_THAT(fast.Values(), ElementsAre(1));
    int32_t done = 1;
    ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
    EXPECT_EQ(done, 0);
    busy.Release();
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

TEST_P(Cuda, UrgentOperationsHaveAStreamOfTheHighestPriority) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  Run(2, [](rueda_context* context, int rank, int device) {
    if (rank == 0) Fake().start_log();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    for (const int priority : {0, 1}) {
      const OnDevice<float> tensor(device, {1.0f});
      rueda_operation operation = tensor.Sum("t");
      operation.priority = priority;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    }
    std::map<int32_t, int64_t> urgent;  // by stream
    std::vector<int64_t> found;
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = device})) {
      if (call.function == std::string("open_stream")) urgent[call.stream] = call.count;
      if (call.function == std::string("allreduce")) found.push_back(urgent.at(call.stream));
    }
    EXPECT_THAT(found, ElementsAre(0, 1));
  });
}

TEST_P(Cuda, RanksThatDifferInPriorityAreToldSo) {
  Run(2, [](rueda_context* context, int rank, int device) {
    const OnDevice<float> tensor(device, {1.0f});
    rueda_operation operation = tensor.Sum("t");
    operation.priority = rank;
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("priority"));
  });
}

// Device tensors and others in one job, in whatever order each rank likes.
TEST_P(Cuda, CpuAndCudaTensorsMixInOneJob) {
  Run(3, [](rueda_context* context, int rank, int device) {
    for (int step = 0; step < 5; ++step) {
      std::vector<float> host(100, static_cast<float>(rank));
      const TensorOf view(host);
      const OnDevice<float> there(device, std::vector<float>(100, static_cast<float>(rank)));
      std::vector<rueda_handle> handles;
      if (rank == 1) handles.push_back(Submitted(context, Allreduce("host", view.get())));
      handles.push_back(Submitted(context, there.Sum("there")));
      if (rank != 1) handles.push_back(Submitted(context, Allreduce("host", view.get())));
      for (const rueda_handle handle : handles) {
        ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      }
      EXPECT_THAT(host, Each(3.0f));
      EXPECT_THAT(there.Values(), Each(3.0f));
    }
  });
}

TEST_P(Cuda, OneTensorOnTheCpuAndOnADeviceIsAMismatchOnAllRanks) {
  Run(2, [](rueda_context* context, int rank, int device) {
    std::vector<float> host(3, 1.0f);
    const TensorOf view(host);
    const OnDevice<float> there(device, {1, 1, 1});
    const rueda_operation operation = rank == 0 ? Allreduce("t", view.get()) : there.Sum("t");
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("device"), HasSubstr("on CUDA")));
  });
}

TEST_P(Cuda, WhatCantBeIsRefusedAtOnceAndLeavesNoTrace) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    OnDevice<float> tensor(device, {1, 2}, stream.get());
    const OnDevice<float> elsewhere(1 - device, {1, 2});
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    Refused(context, elsewhere.Sum("t"), RUEDA_INVALID_ARGUMENT,
            "this rank uses device " + std::to_string(device));
    rueda_tensor none = tensor.tensor();
    none.device.id = 7;
    rueda_operation operation = tensor.Sum("t");
    operation.input = &none;
    operation.exec = nullptr;
    Refused(context, operation, RUEDA_INVALID_ARGUMENT, "no CUDA device 7");
    float host[2] = {};
    rueda_tensor lying = tensor.tensor();
    lying.data = host;
    operation.input = &lying;
    Refused(context, operation, RUEDA_INVALID_ARGUMENT, "'t': the tensor says that it is on CUDA");
    int64_t one = 1;
    rueda_tensor odd = tensor.tensor();
    odd.shape = &one;
    odd.byte_offset = 2;
    operation.input = &odd;
    Refused(context, operation, RUEDA_INVALID_ARGUMENT, "not aligned to 4 bytes");
    operation = tensor.Sum("t");
    operation.compressor = "powersgd:2";
    Refused(context, operation, RUEDA_UNIMPLEMENTED, "on CUDA there are fp16, bf16 and int8");
    operation = tensor.Sum("t");
    operation.reduce_op = RUEDA_ADASUM;
    Refused(context, operation, RUEDA_UNIMPLEMENTED, "adasum is for tensors on the CPU");
    Fake().set_capturing(device, stream.get(), 1);
    Refused(context, tensor.Sum("t"), RUEDA_FAILED_PRECONDITION, "a graph is being captured");
    Fake().set_capturing(device, stream.get(), 0);
    rueda_exec& exec = tensor.exec();
    exec.device.id = 1 - device;
    Refused(context, tensor.Sum("t"), RUEDA_INVALID_ARGUMENT, "exec says CUDA device");
    exec.device.id = device;
    exec.size = 0;
    Refused(context, tensor.Sum("t"), RUEDA_INVALID_ARGUMENT,
            "rueda_exec.size is 0, which no version has");
    exec.size = sizeof exec;
    const rueda_handle handle = Submitted(context, tensor.Sum("t"));
    Fake().set_capturing(device, stream.get(), 1);
    EXPECT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_FAILED_PRECONDITION);
    Fake().set_capturing(device, stream.get(), 0);
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
    EXPECT_THAT(tensor.Values(), ElementsAre(4, 8));
    rueda_device own = {0, 0};
    EXPECT_EQ(rueda_local_device(context, RUEDA_CUDA, &own), RUEDA_OK);
    EXPECT_EQ(own.id, device) << rank;
  });
}

// Only an accepted operation decides which device this rank uses.
TEST_P(Cuda, ARefusedOperationLeavesTheChoiceOfTheDevice) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(1 - device);
    const OnDevice<float> elsewhere(1 - device, {1.0f}, stream.get());
    float host = 0;
    rueda_tensor lying = elsewhere.tensor();
    lying.data = &host;
    rueda_operation operation = elsewhere.Sum("t");
    operation.input = &lying;
    Refused(context, operation, RUEDA_INVALID_ARGUMENT, "no device's memory");
    Fake().set_capturing(1 - device, stream.get(), 1);
    Refused(context, elsewhere.Sum("t"), RUEDA_FAILED_PRECONDITION, "a graph is being captured");
    Fake().set_capturing(1 - device, stream.get(), 0);
    operation = elsewhere.Sum("t");
    operation.prescale = INFINITY;  // which is seen when its event has been recorded
    Refused(context, operation, RUEDA_INVALID_ARGUMENT, "not finite");
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    rueda_device own = {0, -1};
    ASSERT_EQ(rueda_local_device(context, RUEDA_CUDA, &own), RUEDA_OK);
    EXPECT_EQ(own.id, device);
    const OnDevice<float> tensor(device, {rank + 1.0f});
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    EXPECT_THAT(tensor.Values(), ElementsAre(3));
    Refused(context, elsewhere.Sum("t"), RUEDA_INVALID_ARGUMENT, "this rank uses device");
  });
}

// A tensor of no elements may have any address, as on the CPU.
TEST_P(Cuda, WhereThereIsNothingAnyAddressWillDo) {
  Run(2, [](rueda_context* context, int rank, int device) {
    const OnDevice<float> full(device, {rank + 1.0f});
    float host = 0;
    int64_t none = 0;
    rueda_tensor empty = full.tensor();
    empty.shape = &none;
    for (void* const data : {static_cast<void*>(&host), reinterpret_cast<void*>(1)}) {
      empty.data = data;
      rueda_operation operations[] = {full.Sum("a"), full.Sum("b")};
      operations[0].input = &empty;
      ASSERT_EQ(Execute(context, operations[0]), RUEDA_OK) << rueda_last_error();
      const float before = full.Values()[0];
      ASSERT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
          << rueda_last_error();
      EXPECT_GT(full.Values()[0], before);
      // One rank's part may be empty where the others' are not.
      rueda_operation gather = full.Operation(RUEDA_ALLGATHER, "g");
      if (rank == 0) gather.input = &empty;
      rueda_result result = ExecuteAndTake(context, gather);
      EXPECT_EQ(result.tensor.shape[0], 1);
      rueda_result_free(&result);
    }
  });
}

TEST_P(Cuda, ResultsOfUnknownSizeAreOnTheDevice) {
  Run(3, [](rueda_context* context, int rank, int device) {
    const OnDevice<float> own(
        device, std::vector<float>(static_cast<size_t>(rank), static_cast<float>(rank)));
    // Size and splits are known when it is enqueued, while the device has not begun.
    CallersStream stream(device);
    const OnDevice<float> held(device, {static_cast<float>(rank)}, stream.get());
    stream.Hold();
    const rueda_handle handle = Submitted(context, held.Operation(RUEDA_ALLGATHER, "held"));
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK) << rueda_last_error();
    rueda_result early = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_result_take(context, handle, 0, &early), RUEDA_OK) << rueda_last_error();
    int64_t splits[3] = {};
    size_t count = 0;
    ASSERT_EQ(rueda_result_splits(context, handle, 0, splits, 3, &count), RUEDA_OK);
    EXPECT_THAT(splits, ElementsAre(1, 1, 1));
    stream.Release();
    stream.Drain();
    const auto* const held_values = static_cast<const float*>(early.tensor.data);
    EXPECT_THAT(std::vector<float>(held_values, held_values + 3), ElementsAre(0, 1, 2));
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    rueda_result_free(&early);

    rueda_result result = ExecuteAndTake(context, own.Operation(RUEDA_ALLGATHER, "g"));
    EXPECT_EQ(result.tensor.device.type, RUEDA_CUDA);
    EXPECT_EQ(result.tensor.device.id, device);
    EXPECT_EQ(result.tensor.shape[0], 3);
    const auto* const values = static_cast<const float*>(result.tensor.data);
    EXPECT_THAT(std::vector<float>(values, values + 3), ElementsAre(1, 2, 2));
    rueda_result_free(&result);
  });
}

// The first thing on a device that a process set does may concern two of its ranks only.
TEST_P(Cuda, ASendAndItsReceiveNeedNobodyElse) {
  Run(3, [](rueda_context* context, int rank, int device) {
    if (rank != 1) {
      const OnDevice<float> tensor(device, {rank == 0 ? 5.0f : 0.0f});
      rueda_operation operation = RUEDA_OPERATION_INIT;
      operation.kind = rank == 0 ? RUEDA_SEND : RUEDA_RECV;
      operation.name = "pair";
      (rank == 0 ? operation.input : operation.output) = &tensor.tensor();
      operation.root = 2 - rank;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(tensor.Values(), ElementsAre(5));
    }
    const OnDevice<float> tensor(device, {1.0f});
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    EXPECT_THAT(tensor.Values(), ElementsAre(3));
  });
}

// One that has joined takes part on its own device, though it never had a tensor there.
TEST_P(Cuda, ARankThatHasJoinedTakesPart) {
  Run(3, [](rueda_context* context, int rank, int device) {
    if (rank != 1) {
      for (const rueda_reduce_op op : {RUEDA_SUM, RUEDA_AVERAGE, RUEDA_AVERAGE_LIVE, RUEDA_MIN}) {
        const OnDevice<float> a(device, {6.0f, 6.0f}), gap(device, {9.0f}), b(device, {12.0f});
        rueda_operation operations[] = {a.Sum("a"), b.Sum("b")};
        for (rueda_operation& operation : operations) operation.reduce_op = op;
        ASSERT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
            << rueda_last_error();
        const float factor = op == RUEDA_SUM ? 2.0f : op == RUEDA_AVERAGE ? 2.0f / 3 : 1.0f;
        EXPECT_FLOAT_EQ(a.Values()[1], 6 * factor) << op;
        EXPECT_FLOAT_EQ(b.Values()[0], 12 * factor) << op;
      }
    }
    int32_t last = -1;
    ASSERT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, &last), RUEDA_OK);
  });
}

// What a rank has no place for goes through it all the same, of any size.
TEST_P(Cuda, AnOutputThatDoesNotFitIsThatRanksErrorAlone) {
  Run(3, [](rueda_context* context, int rank, int device) {
    constexpr size_t kElements = 600'000;  // of all more than a buffer has at first
    const OnDevice<float> own(device, std::vector<float>(kElements, static_cast<float>(rank)));
    const OnDevice<float> all(device, std::vector<float>(rank == 1 ? 1 : 3 * kElements, 7.0f));
    rueda_operation operation = own.Operation(RUEDA_ALLGATHER, "g");
    operation.output = &all.tensor();
    EXPECT_EQ(Execute(context, operation), rank == 1 ? RUEDA_INVALID_ARGUMENT : RUEDA_OK)
        << rueda_last_error();
    EXPECT_EQ(all.Values().back(), rank == 1 ? 7 : 2);
    ASSERT_EQ(Execute(context, own.Sum("t")), RUEDA_OK) << rueda_last_error();
  });
}

// Whatever their size: memory is for what is packed or added up.
TEST_P(Cuda, WhatOnlyHandsDataOnTakesNoMemory) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  Run(3, [](rueda_context* context, int rank, int device) {
    const OnDevice<float> own(device, {1, 2, 3});
    if (rank == 0) Fake().start_log();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    for (const rueda_kind kind : {RUEDA_BROADCAST, RUEDA_ALLGATHER, RUEDA_GATHER, RUEDA_ALLTOALL}) {
      rueda_operation operation = own.Operation(kind, "t");
      operation.root = kind == RUEDA_BROADCAST || kind == RUEDA_GATHER ? 1 : -1;
      rueda_handle handle = Submitted(context, operation);
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    }
    for (const fake_cuda_call& call : fake_cuda::LogOf({.device = device})) {
      EXPECT_STRNE(call.function, "allocate_buffer");
    }
  });
}

TEST_P(Cuda, ProcessSetsHaveCommunicatorsOfTheirOwn) {
  Run(3, [](rueda_context* context, int rank, int device) {
    for (int round = 0; round < 3; ++round) {
      const int32_t ranks[] = {0, 2};
      int32_t set = -1;
      ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK);
      const OnDevice<float> all(device, {1.0f}), two(device, {1.0f});
      const rueda_handle handle = Submitted(context, all.Sum("all"));
      if (rank != 1) {
        rueda_operation operation = two.Sum("two");
        operation.process_set = set;
        ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        EXPECT_THAT(two.Values(), ElementsAre(2));
      }
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_THAT(all.Values(), ElementsAre(3));
      ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK);
    }
  });
}

// A training runs ahead of its device: the next step's operations have the names of those that are
// still to be done there.
TEST_P(Cuda, ANameMayBeUsedAgainOnceAStreamIsOrderedBehindIt) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    const OnDevice<float> tensor(device, {1.0f}, stream.get());
    const OnDevice<float> a(device, {1.0f}, stream.get()), b(device, {1.0f}, stream.get());
    stream.Hold();
    for (int step = 0; step < 10; ++step) {
      const rueda_handle handle = Submitted(context, tensor.Sum("t"));
      rueda_operation group[] = {a.Sum("a"), b.Sum("b")};
      group[1].exec = group[0].exec;
      rueda_handle both = 0;
      ASSERT_EQ(rueda_submit(context, group, 2, nullptr, &both), RUEDA_OK) << rueda_last_error();
      for (const rueda_handle each : {handle, both}) {
        ASSERT_EQ(rueda_wait_on_stream(context, each, stream.get()), RUEDA_OK)
            << rueda_last_error();
        ASSERT_EQ(rueda_release(context, each), RUEDA_OK);
      }
      if (step < 9) continue;
      // One that is not yet, all the same.
      const OnDevice<float> late(device, {1.0f}, stream.get());
      const rueda_handle held = rank == 0 ? Submitted(context, late.Sum("late")) : 0;
      if (rank == 0) {
        Refused(context, late.Sum("late"), RUEDA_INVALID_ARGUMENT, "in flight");
      }
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
      stream.Release();
      const rueda_handle last = rank == 0 ? held : Submitted(context, late.Sum("late"));
      ASSERT_EQ(rueda_wait(context, last, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, last), RUEDA_OK);
    }
    stream.Drain();
    EXPECT_THAT(tensor.Values(), ElementsAre(1024));
    EXPECT_THAT(b.Values(), ElementsAre(1024));
  });
}

// A set that is added when the world has its communicator gets its own out of that at once, and no
// step makes one; where NCCL can't split the members meet when they need it.
TEST_P(Cuda, ProcessSetsAreSplitFromTheWorldsCommunicator) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the log is one process's";
  for (const int works : {1, 0}) {
    Fake().set_split(works);
    std::atomic<int> at_once{0};
    Run(3, [&](rueda_context* context, int rank, int device) {
      const OnDevice<float> all(device, {1.0f}), two(device, {1.0f});
      ASSERT_EQ(Execute(context, all.Sum("all")), RUEDA_OK) << rueda_last_error();
      if (rank == 0) Fake().start_log();
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
      const int32_t ranks[] = {1, 2};
      int32_t set = -1;
      ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK);
      // Behind it on every rank's device thread.
      ASSERT_EQ(Execute(context, all.Sum("all")), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
      if (rank == 0) {
        for (const fake_cuda_call& call : fake_cuda::LogOf()) {
          EXPECT_STRNE(call.function, "connect");
          if (call.function == std::string("split") && call.status == 0) ++at_once;
        }
      }
      ASSERT_EQ(Execute(context, Barrier("rank 0 has read the log")), RUEDA_OK);
      if (rank != 0) {
        for (const int priority : {0, 1}) {
          rueda_operation operation = two.Sum("two");
          operation.process_set = set;
          operation.priority = priority;
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        }
        EXPECT_THAT(two.Values(), ElementsAre(4));
      }
      ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK);
    });
    EXPECT_EQ(at_once, works == 1 ? 3 : 0);
  }
}

// NCCL splits only what has nothing under way; the fake's device fails otherwise.
TEST_P(Cuda, ASplitWaitsForWhatTheWorldHasUnderWay) {
  Run(3, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    const OnDevice<float> all(device, {1.0f}, stream.get()), two(device, {1.0f});
    ASSERT_EQ(Execute(context, all.Sum("all")), RUEDA_OK) << rueda_last_error();
    const int32_t ranks[] = {0, 1, 2};
    int32_t before = -1, set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &before), RUEDA_OK);
    stream.Hold();
    const rueda_handle handle = Submitted(context, all.Sum("all"));
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_process_set_add(context, ranks + 1, 2, RUEDA_FOREVER, &set), RUEDA_OK);
    // One that goes meanwhile keeps nobody.
    ASSERT_EQ(rueda_process_set_remove(context, before, RUEDA_FOREVER), RUEDA_OK);
    // Time for a device's thread that does not wait.
    for (int i = 0; i < 100; ++i) ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    stream.Release();
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    EXPECT_THAT(all.Values(), ElementsAre(9));
    if (rank != 0) {
      rueda_operation operation = two.Sum("two");
      operation.process_set = set;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(two.Values(), ElementsAre(2));
    }
    ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK);
  });
}

// Not only when the job ends.
TEST_P(Cuda, TheCommunicatorOfARemovedSetGoes) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "they are counted in one process";
  Run(3, [](rueda_context* context, int, int device) {
    const OnDevice<float> tensor(device, {1.0f});
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    const int32_t ranks[] = {0, 1};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK)
        << rueda_last_error();
    ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK);
    while (Fake().live_communicators() > 3) std::this_thread::yield();
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

TEST_P(Cuda, ABarrierOnADeviceIsOrderedByStreams) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    rueda_exec exec = RUEDA_EXEC_INIT;
    exec.device = {RUEDA_CUDA, device};
    exec.stream = stream.get();
    rueda_operation barrier = Barrier("b");
    barrier.exec = &exec;
    stream.Hold();
    const rueda_handle handle = Submitted(context, barrier);
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK) << rueda_last_error();
    std::atomic<bool> passed{false};
    stream.Enqueue([&] { passed = true; });
    EXPECT_FALSE(passed) << rank;
    stream.Release();
    stream.Drain();
    EXPECT_TRUE(passed);
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

TEST_P(Cuda, ABarrierOnADeviceWaitsForTheOthersStreams) {
  Run(2, [](rueda_context* context, int rank, int device) {
    CallersStream stream(device);
    rueda_exec exec = RUEDA_EXEC_INIT;
    exec.device = {RUEDA_CUDA, device};
    exec.stream = stream.get();
    rueda_operation barrier = Barrier("b");
    barrier.exec = &exec;
    if (rank == 1) stream.Hold();
    const rueda_handle handle = Submitted(context, barrier);
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK) << rueda_last_error();
    // Time for one that waits for nobody.
    for (int i = 0; i < 100; ++i) ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    int32_t done = 1;
    ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
    EXPECT_EQ(done, 0) << rank;
    ASSERT_EQ(Execute(context, Barrier("both have looked")), RUEDA_OK);
    stream.Release();
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

// The C++ API in place; what would need memory of its own says so.
TEST_P(Cuda, TheCppApiWorksInPlace) {
  Run(2, [](rueda_context* context, int rank, int device) {
    rueda_set_thread_context(context);
    CallersStream stream(device);
    DeviceVector<float> memory(device, {1.0f, 2.0f});
    const TensorView view = TensorView(memory.data(), {2}).on_cuda(device, stream.get());
    allreduce_(view, {.name = "a", .op = Sum});
    EXPECT_THAT(memory.Download(), ElementsAre(2, 4));
    stream.Hold();
    const Handle<> handle = allreduce_async_(view, {.name = "b", .op = Average});
    wait_on_stream(handle, stream.get());
    EXPECT_FALSE(poll(handle)) << rank;
    stream.Release();
    synchronize(handle);
    EXPECT_THAT(memory.Download(), ElementsAre(2, 4));
    try {
      (void)allreduce(view, {.name = "c", .op = Sum});
      ADD_FAILURE() << "a result on the CPU of a tensor on CUDA";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("works in place"));
    }
    EXPECT_THAT([&] { Tensor copy(view); },
                ThrowsMessage<Error>(HasSubstr("there is none for a tensor on CUDA")));
    rueda_set_thread_context(nullptr);
  });
}

// A group is ordered behind one stream; it is refused rather than run beside the others.
TEST_P(Cuda, AGroupIsOnOneDeviceAndOneStream) {
  Run(2, [](rueda_context* context, int rank, int device) {
    rueda_set_thread_context(context);
    CallersStream stream(device), other(device);
    DeviceVector<float> memory(device, {1.0f, 2.0f});
    std::vector<float> host = {1};
    const TensorView a = TensorView(memory.data(), {1}).on_cuda(device, stream.get());
    const TensorView b = TensorView(memory.data() + 1, {1}).on_cuda(device, other.get());
    const auto refused = [](const std::vector<TensorView>& group, const char* words) {
      EXPECT_THAT([&] { grouped_allreduce_(group, {.name = "g", .op = Sum}); },
                  ThrowsMessage<Error>(AllOf(HasSubstr("operation 1 ('g.1')"), HasSubstr(words))));
      EXPECT_THAT([&] { (void)grouped_allreduce_async_(group, {.name = "g", .op = Sum}); },
                  ThrowsMessage<Error>(HasSubstr(words)));
    };
    refused({a, b}, "the tensors of a group are given to one stream");
    refused({a, TensorView(b).on_cuda(1 - device, stream.get())},
            "; all of a group are on one device");
    refused({a, host}, " and on the CPU; all of a group are on one device");
    refused({host, a}, "tensors on the CPU and on CUDA device");
    TensorView with_stream = host;
    with_stream.stream = stream.get();
    EXPECT_THAT([&] { allreduce_(with_stream, {.name = "s", .op = Sum}); },
                ThrowsMessage<Error>(HasSubstr("an operation on the CPU has no stream")));
    EXPECT_THAT([&] { (void)allreduce_async_(with_stream, {.name = "s", .op = Sum}); },
                ThrowsMessage<Error>(HasSubstr("an operation on the CPU has no stream")));
    grouped_allreduce_({a, TensorView(b).on_cuda(device, stream.get())}, {.name = "g", .op = Sum});
    EXPECT_THAT(memory.Download(), ElementsAre(2, 4)) << rank;
    rueda_set_thread_context(nullptr);
  });
}

// A handle that nobody waits for: the tensor is in use until the operation ends, no longer.
TEST_P(Cuda, AReleasedHandleGoesOnAndItsCallbackTellsTheEnd) {
  Run(2, [](rueda_context* context, int rank, int device) {
    const OnDevice<float> tensor(device, {static_cast<float>(rank)});
    std::atomic<int> called{0};
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.user = &called;
    completion.callback = [](void* user, rueda_handle, rueda_status status) {
      EXPECT_EQ(status, RUEDA_OK);
      static_cast<std::atomic<int>*>(user)->fetch_add(1);
      static_cast<std::atomic<int>*>(user)->notify_all();
    };
    rueda_handle handle = 0;
    const rueda_operation operation = tensor.Sum("t");
    ASSERT_EQ(rueda_submit(context, &operation, 1, &completion, &handle), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    called.wait(0);
    EXPECT_THAT(tensor.Values(), ElementsAre(1));
  });
}

// The same compressed sum on the device and on the CPU, under names of their own.
void CompressedSumHasTheCpusBits(rueda_context* context, int rank, int device,
                                 const std::string& name, const char* compressor,
                                 rueda_reduce_op op, size_t size, int step) {
  const std::string cpu_name = "cpu/" + name, device_name = "device/" + name;
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(rank) * 31 + 1)) *
                static_cast<float>(step + 1);
  }
  const OnDevice<float> there(device, values);
  const TensorOf here(values);
  rueda_operation on_cpu = Allreduce(cpu_name.c_str(), here.get(), op);
  rueda_operation on_device = there.Sum(device_name.c_str());
  on_device.reduce_op = op;
  on_cpu.compressor = on_device.compressor = compressor;
  on_cpu.prescale = on_device.prescale = 0.3;
  ASSERT_EQ(Execute(context, on_device), RUEDA_OK) << rueda_last_error();
  ASSERT_EQ(Execute(context, on_cpu), RUEDA_OK) << rueda_last_error();
  ASSERT_EQ(there.Values(), values) << name << " step " << step;
}

// Compressed sums on a device have the bits of those on the CPU, with what is remembered of the
// steps before.
TEST_P(Cuda, CompressedSumsHaveTheCpusBits) {
  Run(3, [](rueda_context* context, int rank, int device) {
    for (const char* compressor : {"fp16", "bf16", "int8", "int8,no_feedback"}) {
      for (const size_t size : {1, 600, 5000}) {
        const std::string name = std::string(compressor) + "/" + std::to_string(size);
        for (int step = 0; step < 3; ++step) {
          CompressedSumHasTheCpusBits(context, rank, device, name, compressor, RUEDA_AVERAGE, size,
                                      step);
        }
      }
    }
  });
}

// What is remembered is of another range when a tensor has another size: by blocks of 512 on three
// ranks, of four blocks the last one has those from 2 on, of five from 3 on, two of both.
TEST_P(Cuda, WhatCompressionRemembersOfAnotherSizeIsForgotten) {
  Run(3, [](rueda_context* context, int rank, int device) {
    int step = 0;
    for (const size_t blocks : {4, 4, 5, 5, 4, 40, 1, 40}) {
      CompressedSumHasTheCpusBits(context, rank, device, "t", "int8", RUEDA_SUM, blocks * 512,
                                  step++);
    }
  });
}

// Whoever has joined adds up for the others, and gives nothing.
TEST_P(Cuda, CompressedSumsOfTheOthersHaveTheCpusBits) {
  for (const int joined : {0, 1, 2}) {
    Run(3, [&](rueda_context* context, int rank, int device) {
      for (const rueda_reduce_op op : {RUEDA_SUM, RUEDA_AVERAGE, RUEDA_AVERAGE_LIVE}) {
        for (int step = 0; step < 2 && rank != joined; ++step) {
          CompressedSumHasTheCpusBits(context, rank, device, "t" + std::to_string(op), "int8", op,
                                      5000, step);
        }
      }
      ASSERT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr), RUEDA_OK)
          << rueda_last_error();
    });
  }
}

// What was lost is saved from the device, and given back to it.
TEST_P(Cuda, WhatCompressionRemembersIsSavedAndLoaded) {
  Run(2, [](rueda_context* context, int rank, int device) {
    const auto step = [&](const char* compressor, size_t size = 1000) {
      const OnDevice<float> tensor(device, std::vector<float>(size, 0.1f + 0.01f * rank));
      rueda_operation operation = tensor.Sum("t");
      operation.compressor = compressor;
      EXPECT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      return tensor.Values();
    };
    const std::vector<float> first = step("fp16");
    rueda_result own = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_compression_save(context, RUEDA_WORLD, &own), RUEDA_OK) << rueda_last_error();
    const std::vector<float> second = step("fp16");
    const std::vector<float> third = step("fp16");
    EXPECT_NE(second, third);
    std::vector<int64_t> sizes(2);
    rueda_result all = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_allgather_bytes(context, RUEDA_WORLD, "saved", own.tensor.data,
                                    static_cast<size_t>(own.tensor.shape[0]), &all, sizes.data()),
              RUEDA_OK);
    const auto* const bytes = static_cast<const char*>(all.tensor.data);
    const void* const parts[] = {bytes, bytes + sizes[0]};
    const size_t lengths[] = {static_cast<size_t>(sizes[0]), static_cast<size_t>(sizes[1])};
    ASSERT_EQ(rueda_compression_load(context, RUEDA_WORLD, parts, lengths, 2), RUEDA_OK)
        << rueda_last_error();
    EXPECT_EQ(step("fp16"), second);
    EXPECT_EQ(step("fp16"), third);
    // What was loaded does not come back once it is of another size.
    (void)step("fp16", 600);
    EXPECT_EQ(step("fp16"), first);
    EXPECT_EQ(step("fp16"), second);
    rueda_result_free(&own);
    rueda_result_free(&all);
  });
}

// Whatever the device refuses ends the membership with its words on all ranks.
TEST_P(Cuda, AFailureOfTheDeviceReachesAllRanks) {
  Run(
      2,
      [](rueda_context* context, int rank, int device) {
        const OnDevice<float> tensor(device, {1.0f});
        ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
        if (rank == 1)
          Fake().fail_next("allreduce", device, 0, RUEDA_INTERNAL, "no more electrons");
        EXPECT_EQ(Execute(context, tensor.Sum("t")), RUEDA_ABORTED);
        EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank 1"), HasSubstr("no more electrons")));
      },
      /*may_fail=*/true);
}

// It uses the tensors.
TEST_P(Cuda, WhatARefusedBucketHasOnTheStreamIsWaitedFor) {
  ::testing::internal::CaptureStderr();
  Run(
      2,
      [](rueda_context* context, int rank, int device) {
        CallersStream stream(device);
        const OnDevice<float> a(device, {1, 2}, stream.get()), gap(device, {9, 9}, stream.get()),
            b(device, {3}, stream.get());
        rueda_operation operations[] = {a.Sum("a"), b.Sum("b")};
        operations[1].exec = operations[0].exec;
        ASSERT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
            << rueda_last_error();
        if (rank == 1) Fake().fail_next("allreduce", device, 0, RUEDA_INTERNAL, "no more");
        stream.Hold();  // and so the copy that packs them
        EXPECT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, nullptr), RUEDA_ABORTED);
        stream.Release();
        stream.Drain();
      },
      /*may_fail=*/true);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("[rueda 1] W an aborted operation is still on the device"));
}

// Also while the members of a communicator wait for each other to make it, long before that would
// be given up.
TEST_P(Cuda, AFailureToMakeACommunicatorReachesAllRanks) {
  for (const std::string function : {"make_id", "connect", "await"}) {
    Run(
        2,
        [&](rueda_context* context, int rank, int device) {
          const int culprit = function == "make_id" ? 0 : 1;
          const OnDevice<float> tensor(device, {1.0f});
          if (rank == culprit) {
            Fake().fail_next(function.c_str(), function == "make_id" ? -1 : device, 0,
                             RUEDA_INTERNAL, "no more electrons");
          }
          EXPECT_EQ(Execute(context, tensor.Sum("t")), RUEDA_ABORTED) << function;
          EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank " + std::to_string(culprit)),
                                                HasSubstr("no more electrons")));
        },
        /*may_fail=*/true);
  }
}

// A member that does not come in time is as much as one that can't be reached: the membership ends.
TEST_P(Cuda, MembersWaitForEachOtherForSoLongAndNoLonger) {
  RunOptions options;
  options.size = 3;
  options.setup.ranks = GetParam();
  options.knobs = {{"nccl_timeout_s", "0.1"}};
  options.may_fail = true;
  RunRanks(options, [&](rueda_context* context, int rank) {
    // Where NCCL splits they wait for its communicator, else for the name of one.
    Fake().set_split(GetParam() == Ranks::kThreads ? 1 : 0);
    const int device = rank % 2;
    CallersStream stream(device);
    const OnDevice<float> all(device, {1.0f}), two(device, {1.0f});
    ASSERT_EQ(Execute(context, all.Sum("all")), RUEDA_OK) << rueda_last_error();
    // Nothing that the others would wait for, and yet it is under way: no split before.
    const OnDevice<float> nothing(device, {}, stream.get());
    if (rank == 0) stream.Hold();
    const rueda_handle handle = Submitted(context, nothing.Sum("nothing"));
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
    const int32_t ranks[] = {0, 1};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK);
    rueda_operation operation = rank == 2 ? all.Sum("all") : two.Sum("two");
    operation.process_set = rank == 2 ? RUEDA_WORLD : set;
    EXPECT_EQ(Execute(context, operation), RUEDA_ABORTED);
    stream.Release();
    (void)rueda_release(context, handle);
  });
}

// What is under way is over when its handle says so, and the device is as good as before.
TEST_P(Cuda, AnAbortEndsWhatIsUnderWayOnTheDevice) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "what they tell each other is one process's";
  constexpr size_t kElements = 1'000'000;  // it takes the fake a while to spoil them
  // Memberships: in which rank 1 holds it; which are over for rank 0.
  std::atomic<int> held{0}, over{0};
  Run(
      2,
      [&](rueda_context* context, int rank, int device) {
        const OnDevice<float> small(device, {1.0f});
        for (int membership = 0; membership < 3; ++membership) {
          CallersStream stream(device);
          const OnDevice<float> tensor(device, std::vector<float>(kElements, 1.0f), stream.get());
          const auto last = [&] {
            return static_cast<const float*>(tensor.tensor().data)[kElements - 1];
          };
          ASSERT_EQ(Execute(context, small.Sum("small")), RUEDA_OK) << rueda_last_error();
          if (rank == 1) stream.Hold();
          const rueda_handle handle = Submitted(context, tensor.Sum("t"));
          ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
          if (rank == 0) {
            held.wait(membership);
            ASSERT_EQ(rueda_abort(context, "enough"), RUEDA_OK);
          } else {
            held = membership + 1;
            held.notify_all();
            over.wait(membership);
            stream.Release();
          }
          EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_ABORTED);
          const float left = last();
          if (rank == 0) {
            over = membership + 1;
            over.notify_all();
          }
          ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
          ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
          stream.Drain();
          if (rank == 0) {
            EXPECT_EQ(last(), left) << "it was still written to";
          }
        }
        ASSERT_EQ(Execute(context, small.Sum("small")), RUEDA_OK) << rueda_last_error();
      },
      /*may_fail=*/true);
}

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// A rank that is killed in the middle of an operation: the others' end with its name.
TEST(CudaKill, TheOthersAreToldWhoDiedAlsoWhileTheirDeviceWaits) {
  RunOptions options;
  options.size = 3;
  options.setup.ranks = Ranks::kProcesses;
  auto* const killed = static_cast<std::atomic<int64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    const int device = rank % 2;
    CallersStream stream(device);
    const OnDevice<float> tensor(device, {1.0f}, stream.get());
    ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
    if (rank == 1) stream.Hold();  // its part never comes
    const rueda_handle handle = Submitted(context, tensor.Sum("t"));
    ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
    (void)Execute(context, Barrier());  // rank 1 may be gone before the others hear of its end
    if (rank == 1) {
      *killed = Now();
      kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_ABORTED);
    const int64_t told = Now();
    EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1"));
    EXPECT_LT(told - *killed, 10'000'000'000);  // not never; how long is measured elsewhere
    rueda_context_destroy(context);
  });
  for (int rank = 0; rank < options.size; ++rank) {
    const int status = AwaitProcess(pids[static_cast<size_t>(rank)]);
    if (rank == 1) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_EQ(status, 0) << "rank " << rank;
    }
  }
  munmap(killed, 4096);
}

// A stream that does not get to where operations wait for it holds up nobody who leaves a failed
// membership. What the device still uses is freed when it gets there.
TEST_P(Cuda, AContextIsDestroyedThoughAStreamIsStuck) {
  std::unique_ptr<CallersStream> streams[2];
  const std::vector<float> ones(1000, 1.0f);
  std::unique_ptr<OnDevice<float>> tensors[2], odd_ones[2];
  ::testing::internal::CaptureStderr();
  Run(
      2,
      [&](rueda_context* context, int rank, int device) {
        streams[rank] = std::make_unique<CallersStream>(device);
        CallersStream& stream = *streams[rank];
        tensors[rank] = std::make_unique<OnDevice<float>>(device, ones, stream.get());
        OnDevice<float>& tensor = *tensors[rank];
        ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
        rueda_operation urgent = tensor.Sum("urgent");
        urgent.priority = 1;
        ASSERT_EQ(Execute(context, urgent), RUEDA_OK) << rueda_last_error();
        stream.Hold();
        rueda_operation compressed = tensor.Sum("compressed");
        compressed.compressor = "int8";
        // A kernel of the library's writes its result, which is the library's memory.
        odd_ones[rank] =
            std::make_unique<OnDevice<float>>(device, std::vector<float>(3, 1.0f), stream.get());
        rueda_operation scatter = odd_ones[rank]->Operation(RUEDA_REDUCESCATTER, "odd");
        scatter.reduce_op = RUEDA_SUM;
        for (const rueda_operation& operation : {tensor.Sum("t"), urgent, compressed, scatter}) {
          const rueda_handle handle = Submitted(context, operation);
          ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK)
              << rueda_last_error();
          ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
        }
        // The other may be told of the end before it hears that all have come.
        (void)Execute(context, Barrier("all have them under way"));
        if (rank == 0) {
          ASSERT_EQ(rueda_abort(context, "enough"), RUEDA_OK);
        }
        while (Execute(context, Barrier("the end")) != RUEDA_ABORTED) continue;
        // A new membership begins all the same.
        ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
        const OnDevice<float> other(device, {1.0f});
        ASSERT_EQ(Execute(context, other.Sum("t")), RUEDA_OK) << rueda_last_error();
      },
      /*may_fail=*/true);
  const std::string said = ::testing::internal::GetCapturedStderr();
  size_t warnings = 0;
  for (size_t at = 0; (at = said.find("still on the device", at)) != std::string::npos; ++at) {
    ++warnings;
  }
  EXPECT_EQ(warnings, 2) << said;  // one a rank
  if (GetParam() == Ranks::kProcesses) return;
  for (const auto& stream : streams) stream->Release();
  for (const auto& stream : streams) stream->Drain();
  while (Fake().live_events() > 0) {
    rueda_context* context = nullptr;
    const rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK);
    ASSERT_EQ(rueda_shutdown(context), RUEDA_OK);
    rueda_context_destroy(context);
  }
  // A device on which memory was used after its release has failed.
  for (const auto& tensor : tensors) (void)tensor->Values();
}

// What NCCL's own threads notice ends the membership, though every process is well.
TEST_P(Cuda, AConnectionThatNcclHasLostEndsTheMembership) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the fake's members are one process's";
  Run(
      2,
      [](rueda_context* context, int rank, int device) {
        const OnDevice<float> tensor(device, {1.0f});
        ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
        if (rank == 0) Fake().kill_device(1);
        EXPECT_EQ(Execute(context, tensor.Sum("t")), RUEDA_ABORTED);
        EXPECT_THAT(rueda_last_error(), HasSubstr("rank "));
      },
      /*may_fail=*/true);
}

// Each of a process set's communicators is looked at, not only the first that it has made.
TEST_P(Cuda, AConnectionThatALaterCommunicatorHasLostEndsTheMembershipToo) {
  if (GetParam() == Ranks::kProcesses) GTEST_SKIP() << "the fake's members are one process's";
  Run(
      2,
      [](rueda_context* context, int rank, int device) {
        const OnDevice<float> tensor(device, {1.0f});
        rueda_operation pair = RUEDA_OPERATION_INIT;
        pair.kind = rank == 0 ? RUEDA_SEND : RUEDA_RECV;
        pair.name = "pair";
        (rank == 0 ? pair.input : pair.output) = &tensor.tensor();
        pair.root = 1 - rank;
        ASSERT_EQ(Execute(context, pair), RUEDA_OK) << rueda_last_error();
        if (rank == 0) Fake().start_log();
        ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
        ASSERT_EQ(Execute(context, tensor.Sum("t")), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
        if (rank == 0) {
          for (const fake_cuda_call& call : fake_cuda::LogOf({.device = 1})) {
            if (call.function == std::string("connect")) Fake().kill_member(call.communicator);
          }
        }
        EXPECT_EQ(Execute(context, tensor.Sum("t")), RUEDA_ABORTED);
        EXPECT_THAT(rueda_last_error(), HasSubstr("rank "));
      },
      /*may_fail=*/true);
}

// What fails on the device behind the calls: of a lone member no communicator tells.
TEST_P(Cuda, AFailureBehindTheCallsEndsTheMembership) {
  Run(
      1,
      [](rueda_context* context, int, int device) {
        CallersStream stream(device);
        const OnDevice<float> tensor(device, {1.0f}, stream.get());
        stream.Hold();
        const rueda_handle handle = Submitted(context, tensor.Sum("t"));
        ASSERT_EQ(rueda_wait_on_stream(context, handle, stream.get()), RUEDA_OK);
        Fake().fail_device(device, "an illegal access");
        EXPECT_EQ(rueda_wait(context, handle, 20'000'000'000), RUEDA_ABORTED);
        EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank 0"), HasSubstr("an illegal access")));
        (void)rueda_release(context, handle);
      },
      /*may_fail=*/true);
}

// Ranks choose devices by their local rank, before they have a tensor on one.
TEST_P(Cuda, TheDeviceOfARankIsThatOfItsLocalRank) {
  Run(3, [](rueda_context* context, int rank, int device) {
    rueda_device proposed = {0, -1};
    ASSERT_EQ(rueda_local_device(context, RUEDA_CUDA, &proposed), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(proposed.type, RUEDA_CUDA);
    EXPECT_EQ(proposed.id, rueda_local_rank(context) % 2);
    // It was not decided on.
    const OnDevice<float> other(1 - device, {1.0f});
    ASSERT_EQ(Execute(context, other.Sum("t")), RUEDA_OK) << rank << rueda_last_error();
    ASSERT_EQ(rueda_local_device(context, RUEDA_CUDA, &proposed), RUEDA_OK);
    EXPECT_EQ(proposed.id, 1 - device);
  });
}

// A rank without a device: its own CUDA tensors are refused with the reason; CPU tensors go on; for
// others' it can't do its part.
TEST(CudaLess, ARankWithoutADeviceSaysSo) {
  RunOptions options;
  options.setup.ranks = Ranks::kProcesses;
  RunJoiners(options, [](int rank, const Join& join) {
    if (rank == 1) {
      ASSERT_EQ(setenv("FAKE_CUDA_DEVICES", "0", 1), 0);
    }
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<float> host(3, 1.0f);
    const TensorOf view(host);
    rueda_status status;
    if (rank == 1) {
      rueda_device device = {0, 0};
      EXPECT_EQ(rueda_local_device(context, RUEDA_CUDA, &device), RUEDA_FAILED_PRECONDITION);
      EXPECT_THAT(rueda_last_error(), HasSubstr("there is no CUDA device"));
      rueda_tensor there = *view.get();
      there.device = {RUEDA_CUDA, 0};
      Refused(context, Allreduce("there", &there), RUEDA_FAILED_PRECONDITION,
              "'there': there is no CUDA device");
      ASSERT_EQ(Execute(context, Allreduce("host", view.get())), RUEDA_OK) << rueda_last_error();
      EXPECT_THAT(host, Each(2.0f));
      status = rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr);
    } else {
      ASSERT_EQ(Execute(context, Allreduce("host", view.get())), RUEDA_OK) << rueda_last_error();
      const OnDevice<float> there(0, {1.0f});
      status = Execute(context, there.Sum("there"));
    }
    EXPECT_EQ(status, RUEDA_ABORTED);
    EXPECT_THAT(rueda_last_error(),
                AllOf(HasSubstr("rank 1 can't take part in allreduce 'there' on CUDA"),
                      HasSubstr("there is no CUDA device")));
    (void)rueda_shutdown(context);
    rueda_context_destroy(context);
  });
}

// A new membership after a failed one has devices as the first one had.
TEST_P(Cuda, AfterAResetItGoesOn) {
  Run(
      2,
      [](rueda_context* context, int rank, int device) {
        const OnDevice<float> tensor(device, {1.0f});
        for (int membership = 0; membership < 3; ++membership) {
          const OnDevice<float> fresh(device, {1.0f});
          const rueda_status status = Execute(context, fresh.Sum("t"));
          if (rank == 0) {  // the other may be told of the end before it hears of its sum
            ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();
            EXPECT_THAT(fresh.Values(), ElementsAre(2));
            ASSERT_EQ(rueda_abort(context, "once more"), RUEDA_OK);
          }
          while (Execute(context, tensor.Sum("t")) != RUEDA_ABORTED) continue;
          ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
        }
      },
      /*may_fail=*/true);
}

}  // namespace
}  // namespace rueda::testing
