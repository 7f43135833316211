// The C API's edges: bad input is refused at once with words that help, handles and callbacks
// behave, nothing is disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#include "core/base/limits.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A context of one rank.
class Api : public ::testing::Test {
 protected:
  void SetUp() override {
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context_), RUEDA_OK) << rueda_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(rueda_shutdown(context_), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context_);
  }
  // Submits, and expects a refusal whose message has all of `words`.
  void ExpectRefused(const rueda_operation& operation, rueda_status status, const char* words) {
    rueda_handle handle = 77;
    EXPECT_EQ(rueda_submit(context_, &operation, 1, nullptr, &handle), status);
    EXPECT_THAT(rueda_last_error(), HasSubstr(words));
    EXPECT_EQ(handle, 0u);
  }
  rueda_context* context_ = nullptr;
  std::vector<float> values_ = {1, 2, 3, 4};
  TensorOf tensor_{values_};
};

TEST(Init, RefusesBadOptionsByName) {
  const auto expect = [](const std::vector<const char*>& knobs, const char* words) {
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.knobs = knobs.data();
    options.knob_count = knobs.size() / 2;
    rueda_context* context = nullptr;
    EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_INVALID_ARGUMENT) << words;
    EXPECT_THAT(rueda_last_error(), HasSubstr(words));
    EXPECT_EQ(context, nullptr);
  };
  expect({"fusion_treshold", "1"}, "did you mean fusion_threshold?");
  expect({"process_sets", "0,1"}, "'1' is neither a rank from 0 to 0 nor a range of them");
  expect({"process_sets", "x"}, "process_sets=x: 'x' is neither");
  expect({"process_sets", "0"}, "exists already, as set 0");
  expect({"fusion_threshold", "big"}, "fusion_threshold=big: expected a whole number");
  expect({"backend", "tcp"}, "backend=tcp: expected one of auto, shm, gloo");
  expect({"rank", "0"}, "RUEDA_RANK is set but RUEDA_SIZE is not");
  expect({"rank", "2", "size", "2"}, "RUEDA_RANK=2 is not below RUEDA_SIZE=2");
  expect({"rank", "0", "size", "2"}, "RUEDA_JOB_ID");
  rueda_context* context = nullptr;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  EXPECT_EQ(rueda_init(RUEDA_VERSION, nullptr, &context), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, nullptr), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_init(RUEDA_VERSION + (1 << 16), &options, &context), RUEDA_FAILED_PRECONDITION);
  EXPECT_THAT(rueda_last_error(), HasSubstr("compiled against"));
  options.size = 8;
  EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("RUEDA_INIT_OPTIONS_INIT"));
}

TEST(Init, CallsBeforeItFailAtOnce) {
  std::vector<float> values(1);
  const TensorOf tensor(values);
  const rueda_operation operation = Allreduce("t", tensor.get());
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(nullptr, &operation, 1, nullptr, &handle), RUEDA_FAILED_PRECONDITION);
  EXPECT_THAT(rueda_last_error(), HasSubstr("Call init first"));
  EXPECT_EQ(rueda_wait(nullptr, 1, 0), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(rueda_rank(nullptr), -1);
  EXPECT_EQ(rueda_is_initialized(nullptr), 0);
  EXPECT_EQ(rueda_shutdown(nullptr), RUEDA_FAILED_PRECONDITION);
  rueda_context_destroy(nullptr);
}

TEST_F(Api, NullPointersAreRefused) {
  const rueda_operation operation = Allreduce("t", tensor_.get());
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(context_, nullptr, 1, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_submit(context_, &operation, 0, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_submit(context_, &operation, 1, nullptr, nullptr), RUEDA_INVALID_ARGUMENT);
  ExpectRefused(Allreduce("t", nullptr), RUEDA_INVALID_ARGUMENT, "('t'): `input` is null");
  const TensorOf no_data(nullptr, {4}, RUEDA_FLOAT32);
  ExpectRefused(Allreduce("t", no_data.get()), RUEDA_INVALID_ARGUMENT, "data pointer is null");
  rueda_tensor no_shape = *tensor_.get();
  no_shape.shape = nullptr;
  ExpectRefused(Allreduce("t", &no_shape), RUEDA_INVALID_ARGUMENT, "shape is null");
  EXPECT_EQ(rueda_poll(context_, 1, nullptr), RUEDA_INVALID_ARGUMENT);
}

TEST_F(Api, TensorsAreChecked) {
  rueda_tensor tensor = *tensor_.get();
  tensor.device.type = 7;  // Vulkan
  ExpectRefused(Allreduce("t", &tensor), RUEDA_UNIMPLEMENTED,
                "DLPack device type 7; known are RUEDA_CPU (1), RUEDA_CUDA (2), ");
  tensor.device.type = RUEDA_CUDA_HOST;
  EXPECT_EQ(Execute(context_, Allreduce("t", &tensor)), RUEDA_OK) << rueda_last_error();
  tensor = *tensor_.get();
  for (const rueda_dtype dtype :
       {rueda_dtype{3, 64, 1}, {2, 8, 1}, {5, 32, 1}, {10, 16, 1}, {11, 8, 1}, {2, 32, 4}}) {
    tensor.dtype = dtype;
    ExpectRefused(Allreduce("t", &tensor), RUEDA_UNIMPLEMENTED, "supported are uint8, int8, ");
  }
  tensor = *tensor_.get();
  tensor.ndim = 33;
  ExpectRefused(Allreduce("t", &tensor), RUEDA_INVALID_ARGUMENT, "ndim is 33");
  const TensorOf negative(values_.data(), {-1, 2}, RUEDA_FLOAT32);
  ExpectRefused(Allreduce("t", negative.get()), RUEDA_INVALID_ARGUMENT, "negative dimension");
  const TensorOf huge(values_.data(), {INT64_MAX, 2}, RUEDA_FLOAT32);
  ExpectRefused(Allreduce("t", huge.get()), RUEDA_INVALID_ARGUMENT, "more than 2^63");
  const TensorOf square(values_.data(), {2, 2}, RUEDA_FLOAT32);
  tensor = *square.get();
  int64_t transposed[] = {1, 2};
  tensor.strides = transposed;
  ExpectRefused(Allreduce("t", &tensor), RUEDA_INVALID_ARGUMENT, "not contiguous");
  int64_t row_major[] = {2, 1};
  tensor.strides = row_major;
  EXPECT_EQ(Execute(context_, Allreduce("t", &tensor)), RUEDA_OK);
  tensor = *tensor_.get();
  int64_t two[] = {2};
  tensor.byte_offset = 4;
  tensor.shape = two;
  rueda_operation operation = Allreduce("t", &tensor);
  operation.postscale = 10;
  EXPECT_EQ(Execute(context_, operation), RUEDA_OK);
  EXPECT_EQ(values_, (std::vector<float>{1, 20, 30, 4}));
}

TEST_F(Api, OutputsMustMatchTheirInputs) {
  rueda_operation operation = Allreduce("t", tensor_.get());
  std::vector<float> three(3);
  const TensorOf other_shape(three);
  operation.output = other_shape.get();
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "input has shape [4], output [3]");
  std::vector<int32_t> ints(4);
  const TensorOf other_dtype(ints);
  operation.output = other_dtype.get();
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "input is float32, output is int32");
  std::vector<float> six(6);
  const TensorOf low(six.data(), {4}, RUEDA_FLOAT32), high(six.data() + 2, {4}, RUEDA_FLOAT32);
  operation.input = low.get();
  operation.output = high.get();
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "overlap");
}

TEST_F(Api, OperationsAreChecked) {
  rueda_operation operation = Allreduce("t", tensor_.get());
  operation.size = 12;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "RUEDA_OPERATION_INIT");
  operation = Allreduce("t", tensor_.get());
  ExpectRefused(Allreduce("t", tensor_.get(), RUEDA_NO_REDUCE_OP), RUEDA_INVALID_ARGUMENT,
                "no reduce operation");
  operation = Allreduce("t", tensor_.get());
  operation.priority = 1;
  EXPECT_EQ(Execute(context_, operation), RUEDA_OK) << rueda_last_error();
  operation = Allreduce("t", tensor_.get());
  operation.compressor = "zip";
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT,
                "compressor 'zip': unknown; there are none, fp16");
  operation.compressor = "int8";
  operation.reduce_op = RUEDA_MAX;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "'int8': only sums and averages");
  operation = Barrier();
  operation.compressor = "int8";
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "'int8': only allreduces and reducescatters");
  operation = Allreduce("t", tensor_.get());
  operation.flags = RUEDA_OPERATION_WAIT_SOON | 4;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT,
                "rueda_operation.flags: 5; known are RUEDA_OPERATION_WAIT_SOON (1) and ");
  operation = Allreduce("t", tensor_.get());
  operation.prescale = 1 / 0.0;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "not finite");
  operation = Broadcast("t", tensor_.get(), 0);
  operation.postscale = 2;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "only reductions");
  operation = Barrier();
  operation.input = tensor_.get();
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "a barrier takes no tensors");
  operation = Allreduce("t", tensor_.get());
  operation.process_set = 3;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "no process set 3");
  ExpectRefused(Broadcast("t", tensor_.get(), 1), RUEDA_INVALID_ARGUMENT, "root 1 is not a rank");
  ExpectRefused(Broadcast("t", tensor_.get(), -1), RUEDA_INVALID_ARGUMENT, "root -1 is not a rank");
  uint8_t flags[1] = {1};
  const TensorOf boolean(flags, {1}, RUEDA_BOOL);
  ExpectRefused(Allreduce("t", boolean.get(), RUEDA_AVERAGE), RUEDA_INVALID_ARGUMENT, "bool");
  ExpectRefused(Allreduce("t", boolean.get(), RUEDA_ADASUM), RUEDA_INVALID_ARGUMENT, "bool");
  ExpectRefused(Allreduce("t", tensor_.get(), RUEDA_BXOR), RUEDA_INVALID_ARGUMENT, "bxor of float");
  const TensorOf scalar(values_.data(), {}, RUEDA_FLOAT32);
  ExpectRefused(Allgather("t", scalar.get()), RUEDA_INVALID_ARGUMENT, "scalar");
  EXPECT_EQ(Execute(context_, Allreduce("t", scalar.get())), RUEDA_OK) << rueda_last_error();
  rueda_exec exec = RUEDA_EXEC_INIT;
  exec.stream = &exec;
  operation = Allreduce("t", tensor_.get());
  operation.exec = &exec;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "no stream and no event");
  exec = RUEDA_EXEC_INIT;
  exec.device.type = RUEDA_CUDA;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "exec says CUDA device 0, the tensors are on");
}

TEST_F(Api, UnknownEnumeratorsAreRefusedAndTheKnownOnesListed) {
  const char* const kinds =
      "known are RUEDA_ALLREDUCE (0), RUEDA_BROADCAST (1), RUEDA_ALLGATHER (2), RUEDA_BARRIER (3), "
      "RUEDA_ALLTOALL (4), RUEDA_REDUCESCATTER (5), RUEDA_REDUCE (6), RUEDA_GATHER (7), "
      "RUEDA_SCATTER (8), RUEDA_SEND (9), RUEDA_RECV (10)";
  const char* const reduce_ops =
      "known are RUEDA_SUM (0), RUEDA_AVERAGE (1), RUEDA_MIN (2), RUEDA_MAX (3), RUEDA_PRODUCT "
      "(4), "
      "RUEDA_BAND (5), RUEDA_BOR (6), RUEDA_BXOR (7), RUEDA_ADASUM (8), RUEDA_AVERAGE_LIVE (9)";
  for (const int number : {-1, 11, 12, 99, INT_MIN, INT_MAX}) {
    // The enumerators of a header that has more; ours need not be able to hold them.
    rueda_operation operation = Allreduce("t", tensor_.get());
    memcpy(&operation.kind, &number, sizeof number);
    ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, kinds);
    operation = Allreduce("t", tensor_.get());
    memcpy(&operation.reduce_op, &number, sizeof number);  // RUEDA_NO_REDUCE_OP among them
    ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, reduce_ops);
  }
  const int ten = 10;  // a reduce operation that is to come, not "none"
  rueda_operation operation = Allreduce("t", tensor_.get());
  memcpy(&operation.reduce_op, &ten, sizeof ten);
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, reduce_ops);
}

// What rueda.h says beside rueda_operation.
TEST(Operations, IgnoreWhatTheirKindDoesNotUseAndRefuseWhatContradictsIt) {
  RunRanks({2}, [](rueda_context* context, int rank) {
    struct Row {
      rueda_kind kind;
      bool output, reduce_op, compressor, root, splits;  // used
    };
    constexpr Row kRows[] = {
        {RUEDA_ALLREDUCE, true, true, true, false, false},
        {RUEDA_BROADCAST, true, false, false, true, false},
        {RUEDA_ALLGATHER, true, false, false, false, false},
        {RUEDA_BARRIER, true, false, false, false, false},
        {RUEDA_ALLTOALL, true, false, false, false, true},
        {RUEDA_REDUCESCATTER, true, true, true, false, false},
        {RUEDA_REDUCE, false, true, false, true, false},
        {RUEDA_GATHER, false, false, false, true, false},
        {RUEDA_SCATTER, true, false, false, true, true},
        {RUEDA_SEND, false, false, false, true, false},
        {RUEDA_RECV, true, false, false, true, false},
    };
    const auto refused = [&](const rueda_operation& operation) {
      rueda_handle handle = 0;
      return rueda_submit(context, &operation, 1, nullptr, &handle) == RUEDA_INVALID_ARGUMENT;
    };
    std::vector<float> values = {1, 2, 3, 4}, received(4);
    const TensorOf tensor(values), output(received);
    const int64_t splits[] = {2, 2};
    rueda_tensor nonsense = *tensor.get();
    nonsense.ndim = -7;
    for (const Row& row : kRows) {
      rueda_operation operation = OfKind(row.kind, "t", tensor.get());
      if (row.kind == RUEDA_SEND || row.kind == RUEDA_RECV) {
        operation.kind = rank == 0 ? RUEDA_SEND : RUEDA_RECV;
        operation.root = 1 - rank;
        if (operation.kind == RUEDA_RECV) {
          operation.input = &nonsense;
          operation.output = output.get();
        } else {
          operation.output = &nonsense;
        }
      } else {
        operation.root = row.root ? 0 : 99;
        if (!row.output && rank != 0) operation.output = &nonsense;
      }
      if (row.kind == RUEDA_BARRIER) operation.input = nullptr;
      operation.reduce_op = row.reduce_op ? RUEDA_SUM : RUEDA_BXOR;
      EXPECT_EQ(Execute(context, operation), RUEDA_OK) << row.kind << ": " << rueda_last_error();
      if (!row.reduce_op) {
        rueda_operation scaled = operation;
        scaled.prescale = 2;
        EXPECT_TRUE(refused(scaled)) << row.kind;
        scaled = operation;
        scaled.postscale = 2;
        EXPECT_TRUE(refused(scaled)) << row.kind;
      }
      if (!row.compressor) {
        rueda_operation compressed = operation;
        compressed.compressor = "fp16";
        EXPECT_TRUE(refused(compressed)) << row.kind;
      }
      if (!row.splits) {
        rueda_operation split = operation;
        split.splits = splits;
        split.split_count = 2;
        EXPECT_TRUE(refused(split)) << row.kind;
      }
    }
  });
}

// One clear line for a program that has CUDA tensors where there is no CUDA; the CPU goes on.
TEST_F(Api, WithoutADeviceCudaTensorsAreRefusedAndTheCpuGoesOn) {
  rueda_device device = {0, 0};
  if (rueda_local_device(context_, RUEDA_CUDA, &device) == RUEDA_OK) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  const std::string why = rueda_last_error();
  EXPECT_THAT(why, HasSubstr("CUDA"));
  EXPECT_THAT(why, Not(HasSubstr("\n")));
  rueda_tensor tensor = *tensor_.get();
  tensor.device = {RUEDA_CUDA, 0};
  ExpectRefused(Allreduce("t", &tensor), RUEDA_FAILED_PRECONDITION, why.c_str());
  EXPECT_EQ(Execute(context_, Allreduce("t", tensor_.get())), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_local_device(context_, RUEDA_CPU, &device), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(device.type, RUEDA_CPU);
  EXPECT_EQ(rueda_local_device(context_, 7, &device), RUEDA_UNIMPLEMENTED);
  EXPECT_EQ(rueda_local_device(context_, RUEDA_CPU, nullptr), RUEDA_INVALID_ARGUMENT);
}

TEST_F(Api, TensorsOfOneOperationAreOnOneDevice) {
  rueda_tensor output = *tensor_.get();
  output.device = {RUEDA_CUDA, 1};
  rueda_operation operation = Allreduce("t", tensor_.get());
  operation.output = &output;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "on the CPU and on CUDA device 1");
}

TEST_F(Api, OperationsOnTheCpuHaveNoStream) {
  rueda_handle handle = 0;
  const rueda_operation operation = Allreduce("t", tensor_.get());
  ASSERT_EQ(rueda_submit(context_, &operation, 1, nullptr, &handle), RUEDA_OK);
  EXPECT_EQ(rueda_wait_on_stream(context_, handle, &handle), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("has no stream"));
  EXPECT_EQ(rueda_wait_on_stream(context_, handle, nullptr), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_release(context_, handle), RUEDA_OK);
}

TEST_F(Api, SplitsGoWithTwoKindsAlone) {
  const int64_t splits[] = {4};
  rueda_operation operation = Allreduce("t", tensor_.get());
  operation.splits = splits;
  operation.split_count = 1;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "only alltoall and scatter take splits");
  operation.kind = RUEDA_ALLTOALL;
  operation.split_count = 0;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "split_count is 0");
  operation.splits = nullptr;
  operation.split_count = 1;
  ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "splits is null");
}

TEST_F(Api, AFaultIsAnErrorOfTheOperation) {
  rueda_operation operation = Allreduce("t", tensor_.get());
  const std::string longest(1'024, 'x');
  for (const char* fault : {"the tensor is a cat", longest.c_str()}) {
    operation.fault = fault;
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context_, &operation, 1, nullptr, &handle), RUEDA_OK);
    EXPECT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(rueda_last_error(), std::string("rank 0: allreduce 't': ") + fault);
    EXPECT_EQ(rueda_release(context_, handle), RUEDA_OK);
  }
  operation.fault = nullptr;
  rueda_operation group[] = {operation, operation};
  group[1].name = "u";
  group[1].fault = "a dog";
  rueda_handle handle = 0;
  ASSERT_EQ(rueda_submit(context_, group, 2, nullptr, &handle), RUEDA_OK);
  EXPECT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_last_error(), std::string("rank 0: allreduce 'u': a dog"));
  EXPECT_EQ(rueda_release(context_, handle), RUEDA_OK);
  const std::string too_long(1'025, 'x');
  for (const char* fault : {"", "\xFF", too_long.c_str()}) {
    operation.fault = fault;
    ExpectRefused(operation, RUEDA_INVALID_ARGUMENT, "the fault is not UTF-8");
  }
}

TEST_F(Api, TheContextTellsHowItsMembershipFailed) {
  rueda_error error = RUEDA_ERROR_INIT;
  ASSERT_EQ(rueda_context_error(context_, &error), RUEDA_OK);
  EXPECT_EQ(error.code, RUEDA_OK);
  rueda_context* other = nullptr;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.name = "doomed";
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &other), RUEDA_OK);
  ASSERT_EQ(rueda_abort(other, "enough"), RUEDA_OK);
  EXPECT_EQ(Execute(other, Barrier()), RUEDA_ABORTED);
  ASSERT_EQ(rueda_context_error(other, &error), RUEDA_OK);
  EXPECT_EQ(error.code, RUEDA_ABORTED);
  EXPECT_STREQ(error.cause, "rank 0 aborted the job: enough");
  EXPECT_THAT(error.message, HasSubstr("enough"));
  EXPECT_EQ(rueda_shutdown(other), RUEDA_ABORTED);
  rueda_context_destroy(other);
}

TEST_F(Api, AMembershipWasAnEpoch) {
  uint64_t membership = 0, epoch = 0;
  ASSERT_EQ(rueda_context_membership(context_, &membership), RUEDA_OK);
  EXPECT_GT(membership, 0u);
  ASSERT_EQ(rueda_context_epoch(context_, &epoch), RUEDA_OK);
  EXPECT_EQ(epoch, membership);
  EXPECT_EQ(rueda_context_epoch(context_, nullptr), RUEDA_INVALID_ARGUMENT);
}

TEST_F(Api, EveryDtypeComesBackAsItWent) {
  for (const rueda_dtype dtype :
       {RUEDA_UINT8, RUEDA_INT8, RUEDA_INT16, RUEDA_UINT16, RUEDA_INT32, RUEDA_UINT32, RUEDA_INT64,
        RUEDA_UINT64, RUEDA_FLOAT8_E4M3FN, RUEDA_FLOAT8_E5M2, RUEDA_FLOAT16, RUEDA_BFLOAT16,
        RUEDA_FLOAT32, RUEDA_FLOAT64, RUEDA_COMPLEX64, RUEDA_COMPLEX128, RUEDA_BOOL}) {
    std::vector<char> input(size_t{3} * dtype.bits / 8);
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<char>(i + 1);
    const TensorOf tensor(input.data(), {3}, dtype);
    const rueda_operation gather = Allgather("t", tensor.get());
    rueda_result result = ExecuteAndTake(context_, gather);
    EXPECT_EQ(memcmp(&result.tensor.dtype, &dtype, sizeof dtype), 0)
        << "code " << int{dtype.code} << ", " << int{dtype.bits} << " bits";
    EXPECT_EQ(memcmp(result.tensor.data, input.data(), input.size()), 0);
    rueda_result_free(&result);
  }
}

TEST_F(Api, NamesAreChecked) {
  ExpectRefused(Allreduce("", tensor_.get()), RUEDA_INVALID_ARGUMENT, "name is empty");
  const std::string longest(1'024, 'x'), too_long(1'025, 'x'), endless(64 << 10, 'y');
  ExpectRefused(Allreduce(too_long.c_str(), tensor_.get()), RUEDA_INVALID_ARGUMENT, "1024 bytes");
  ExpectRefused(Allreduce(endless.c_str(), tensor_.get()), RUEDA_INVALID_ARGUMENT, "1024 bytes");
  EXPECT_EQ(Execute(context_, Allreduce(longest.c_str(), tensor_.get())), RUEDA_OK);
  ExpectRefused(Allreduce("\xff\xfe", tensor_.get()), RUEDA_INVALID_ARGUMENT, "not UTF-8");
  ExpectRefused(Allreduce("\xed\xa0\x80", tensor_.get()), RUEDA_INVALID_ARGUMENT, "not UTF-8");
  ExpectRefused(Allreduce("\xc0\xaf", tensor_.get()), RUEDA_INVALID_ARGUMENT, "not UTF-8");
  EXPECT_EQ(Execute(context_, Allreduce("größe/層", tensor_.get())), RUEDA_OK);
}

TEST_F(Api, GroupsAreTakenWholeOrNotAtAll) {
  std::vector<float> other(2);
  const TensorOf second(other);
  rueda_operation bad[] = {Allreduce("a", tensor_.get()), Allreduce("b", nullptr)};
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(context_, bad, 2, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("operation 1 ('b')"));
  // Nothing of it is left behind: the name is free.
  EXPECT_EQ(Execute(context_, Allreduce("a", tensor_.get())), RUEDA_OK);
  rueda_operation twice[] = {Allreduce("a", tensor_.get()), Allreduce("a", second.get())};
  EXPECT_EQ(rueda_submit(context_, twice, 2, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("twice in the group"));
  rueda_operation mixed[] = {Allreduce("a", tensor_.get()), Broadcast("b", second.get(), 0)};
  EXPECT_EQ(rueda_submit(context_, mixed, 2, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  rueda_operation half_named[] = {Allreduce("a", tensor_.get()), Allreduce(nullptr, second.get())};
  EXPECT_EQ(rueda_submit(context_, half_named, 2, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
  rueda_operation barriers[] = {Barrier("a"), Barrier("b")};
  EXPECT_EQ(rueda_submit(context_, barriers, 2, nullptr, &handle), RUEDA_INVALID_ARGUMENT);
}

TEST_F(Api, HandlesAreNotFoundOnceReleased) {
  const rueda_operation operation = Allreduce("t", tensor_.get());
  rueda_handle handle = 0;
  ASSERT_EQ(rueda_submit(context_, &operation, 1, nullptr, &handle), RUEDA_OK);
  ASSERT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK);
  ASSERT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK) << "waiting does not release";
  ASSERT_EQ(rueda_release(context_, handle), RUEDA_OK);
  int32_t done = 0;
  EXPECT_EQ(rueda_poll(context_, handle, &done), RUEDA_NOT_FOUND);
  EXPECT_EQ(rueda_wait(context_, handle, 0), RUEDA_NOT_FOUND);
  EXPECT_EQ(rueda_release(context_, handle), RUEDA_NOT_FOUND);
  EXPECT_EQ(rueda_wait(context_, 0, 0), RUEDA_NOT_FOUND);
  EXPECT_EQ(rueda_wait(context_, ~0ull, 0), RUEDA_NOT_FOUND);
  rueda_handle next = 0;  // the slot is used again, the handle is not
  ASSERT_EQ(rueda_submit(context_, &operation, 1, nullptr, &next), RUEDA_OK);
  EXPECT_NE(next, handle);
  EXPECT_EQ(rueda_wait(context_, handle, 0), RUEDA_NOT_FOUND);
  ASSERT_EQ(rueda_wait(context_, next, RUEDA_FOREVER), RUEDA_OK);
  ASSERT_EQ(rueda_release(context_, next), RUEDA_OK);
}

TEST_F(Api, MoreMayEndWellThanThereAreHandles) {
  rueda_operation operation = Allreduce("t", tensor_.get());
  operation.flags = RUEDA_OPERATION_RELEASE;
  rueda_handle handle = 5;
  for (int i = 0; i <= kHandlesMax; ++i) {
    ASSERT_EQ(rueda_execute(context_, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK);
    ASSERT_EQ(handle, 0u);
  }
}

TEST_F(Api, CallbacksComeOnceAndMaySubmitAgain) {
  struct State {
    rueda_context* context;
    const rueda_tensor* tensor;
    std::mutex mutex;
    std::condition_variable changed;
    int calls = 0;
  } state{context_, tensor_.get(), {}, {}, 0};
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.user = &state;
  completion.callback = [](void* user, rueda_handle handle, rueda_status status) {
    State& s = *static_cast<State*>(user);
    EXPECT_EQ(status, RUEDA_OK);
    // On the callback thread everything is allowed, waiting too.
    EXPECT_EQ(rueda_wait(s.context, handle, RUEDA_FOREVER), RUEDA_OK);
    EXPECT_EQ(rueda_release(s.context, handle), RUEDA_OK);
    EXPECT_EQ(Execute(s.context, Allreduce("from callback", s.tensor)), RUEDA_OK);
    EXPECT_EQ(rueda_shutdown(s.context), RUEDA_FAILED_PRECONDITION);
    const std::lock_guard<std::mutex> lock(s.mutex);
    ++s.calls;
    s.changed.notify_all();
  };
  const rueda_operation operation = Allreduce("t", tensor_.get());
  for (int i = 0; i < 100; ++i) {
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context_, &operation, 1, &completion, &handle), RUEDA_OK)
        << rueda_last_error();
    std::unique_lock<std::mutex> lock(state.mutex);
    state.changed.wait(lock, [&] { return state.calls == i + 1; });
  }
}

TEST_F(Api, CompletionsAreAddedAtAnyTimeAndInlineOnesAreRefused) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> calls;
    void Add(int number) {
      const std::lock_guard<std::mutex> lock(mutex);
      calls.push_back(number);
      changed.notify_all();
    }
  } state;
  rueda_completion first = RUEDA_COMPLETION_INIT;
  first.user = &state;
  rueda_completion second = first;
  first.callback = [](void* user, rueda_handle, rueda_status) {
    static_cast<State*>(user)->Add(1);
  };
  second.callback = [](void* user, rueda_handle, rueda_status) {
    static_cast<State*>(user)->Add(2);
  };
  rueda_completion refused = first;
  refused.flags = RUEDA_COMPLETION_INLINE;
  const rueda_operation operation = Allreduce("t", tensor_.get());
  rueda_handle handle = 0;
  ASSERT_EQ(rueda_submit(context_, &operation, 1, nullptr, &handle), RUEDA_OK);
  EXPECT_EQ(rueda_on_completion(context_, handle, &refused), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("RUEDA_COMPLETION_INLINE"));
  ASSERT_EQ(rueda_on_completion(context_, handle, &first), RUEDA_OK);
  ASSERT_EQ(rueda_on_completion(context_, handle, &second), RUEDA_OK);
  ASSERT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK);
  ASSERT_EQ(rueda_on_completion(context_, handle, &first), RUEDA_OK);  // it has ended
  ASSERT_EQ(rueda_release(context_, handle), RUEDA_OK);
  EXPECT_EQ(rueda_on_completion(context_, handle, &first), RUEDA_NOT_FOUND);
  std::unique_lock<std::mutex> lock(state.mutex);
  state.changed.wait(lock, [&] { return state.calls.size() == 3; });
  EXPECT_THAT(state.calls, ::testing::UnorderedElementsAre(1, 2, 1));
}

TEST_F(Api, AnAllocatorThatThrowsFailsItsOperationAlone) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLGATHER;
  operation.name = "gathered";
  operation.input = tensor_.get();
  operation.allocate = [](void*, int32_t, const int64_t*, int32_t) -> void* {
    throw std::bad_alloc();
  };
  EXPECT_EQ(Execute(context_, operation), RUEDA_RESOURCE_EXHAUSTED);
  EXPECT_EQ(Execute(context_, Allreduce("next", tensor_.get())), RUEDA_OK);
}

TEST_F(Api, ACallbackThatThrowsEndsTheProgram) {
  for (const uint32_t flags : {0u, static_cast<uint32_t>(RUEDA_COMPLETION_INLINE)}) {
    // In a process of its own, as is the context.
    const pid_t child = fork();
    if (child == 0) {
      std::set_terminate([] { _exit(77); });
      rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
      const char* const knobs[] = {"log_level", "off"};
      options.knobs = knobs;
      options.knob_count = 1;
      rueda_context* context = nullptr;
      if (rueda_init(RUEDA_VERSION, &options, &context) != RUEDA_OK) _exit(1);
      rueda_completion completion = RUEDA_COMPLETION_INIT;
      completion.callback = [](void*, rueda_handle, rueda_status) {
        throw std::runtime_error("boom");
      };
      completion.flags = flags;
      const rueda_operation operation = Allreduce("t", tensor_.get());
      rueda_handle handle = 0;
      if (rueda_submit(context, &operation, 1, &completion, &handle) != RUEDA_OK) _exit(1);
      (void)rueda_wait(context, handle, RUEDA_FOREVER);
      while (true) pause();
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77) << status;
  }
}

TEST_F(Api, ThreadsOfTheLibraryTakeNoSignals) {
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  std::atomic<int> blocked{-1};
  completion.user = &blocked;
  completion.callback = [](void* user, rueda_handle, rueda_status) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    bool all = true;
    for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGPROF, SIGUSR2}) {
      all &= sigismember(&mask, signal) == 1;
    }
    *static_cast<std::atomic<int>*>(user) = all;
  };
  const rueda_operation operation = Allreduce("t", tensor_.get());
  rueda_handle handle = 0;
  ASSERT_EQ(rueda_submit(context_, &operation, 1, &completion, &handle), RUEDA_OK);
  EXPECT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK);  // turned here, or not
  while (blocked == -1) std::this_thread::yield();
  EXPECT_EQ(blocked, 1);
  EXPECT_EQ(rueda_release(context_, handle), RUEDA_OK);
}

TEST_F(Api, InlineCallbacksMaySubmitButNotWait) {
  struct State {
    rueda_context* context;
    const rueda_tensor* tensor;
    std::atomic<rueda_handle> second{0};
  } state{context_, tensor_.get()};
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.user = &state;
  completion.flags = RUEDA_COMPLETION_INLINE;
  completion.callback = [](void* user, rueda_handle, rueda_status status) {
    State& s = *static_cast<State*>(user);
    EXPECT_EQ(status, RUEDA_OK);
    const rueda_operation next = Allreduce("second", s.tensor);
    rueda_handle handle = 0;
    EXPECT_EQ(rueda_execute(s.context, &next, 1, RUEDA_FOREVER, nullptr),
              RUEDA_FAILED_PRECONDITION);
    EXPECT_EQ(rueda_submit(s.context, &next, 1, nullptr, &handle), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_wait(s.context, handle, 1), RUEDA_FAILED_PRECONDITION);
    EXPECT_EQ(rueda_shutdown(s.context), RUEDA_FAILED_PRECONDITION);
    s.second = handle;
  };
  const rueda_operation operation = Allreduce("first", tensor_.get());
  rueda_handle handle = 0;
  ASSERT_EQ(rueda_submit(context_, &operation, 1, &completion, &handle), RUEDA_OK);
  ASSERT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK);
  while (state.second == 0) std::this_thread::yield();
  ASSERT_EQ(rueda_wait(context_, state.second, RUEDA_FOREVER), RUEDA_OK);
  ASSERT_EQ(rueda_release(context_, handle), RUEDA_OK);
  ASSERT_EQ(rueda_release(context_, state.second), RUEDA_OK);
}

TEST_F(Api, ForkedChildIsRefusedAndTheParentUnaffected) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        Execute(context_, Allreduce("t", tensor_.get())) == RUEDA_FAILED_PRECONDITION &&
        std::string(rueda_last_error()).find("forked") != std::string::npos &&
        rueda_is_initialized(context_) == 0;
    rueda_context_destroy(context_);  // harmless
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Execute(context_, Allreduce("t", tensor_.get())), RUEDA_OK);
}

TEST_F(Api, ATimelineIsRefusedWithWhatIsWrong) {
  EXPECT_EQ(rueda_timeline_start(nullptr, "t"), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(rueda_timeline_stop(nullptr), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(rueda_timeline_start(context_, nullptr), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_timeline_start(context_, ""), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(rueda_timeline_start(context_, "/nowhere/t.json"), RUEDA_NOT_FOUND);
  EXPECT_THAT(rueda_last_error(),
              AllOf(HasSubstr("/nowhere/t.json"), HasSubstr("No such file or directory")));
  EXPECT_EQ(rueda_timeline_stop(context_), RUEDA_FAILED_PRECONDITION);
}

TEST(Timeline, IsNotStartedAfterShutdown) {
  rueda_context* context = nullptr;
  const rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK);
  EXPECT_EQ(rueda_timeline_start(context, "/dev/null"), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK);
  EXPECT_EQ(rueda_timeline_stop(context), RUEDA_FAILED_PRECONDITION) << "shutdown did";
  EXPECT_EQ(rueda_timeline_start(context, "/dev/null"), RUEDA_FAILED_PRECONDITION);
  EXPECT_THAT(rueda_last_error(), HasSubstr("has left the job"));
  rueda_context_destroy(context);
}

TEST(Timeline, IsTheProgramsToStartWhenItIsDynamic) {
  const char* const knobs[] = {"timeline", "DYNAMIC"};
  rueda_context* context = nullptr;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.knobs = knobs;
  options.knob_count = 1;
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_timeline_stop(context), RUEDA_FAILED_PRECONDITION) << "none was started";
  EXPECT_EQ(rueda_timeline_start(context, "/dev/null"), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK);
  rueda_context_destroy(context);
}

// Contexts of one process that the same knob reaches don't write to one file.
TEST(Timeline, OfEachContextHasItsName) {
  const std::string stem = ::testing::TempDir() + "/api-timeline-" + std::to_string(getpid());
  const std::string path = stem + ".json";
  const char* const knobs[] = {"timeline", path.c_str()};
  rueda_context *first = nullptr, *second = nullptr;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.knobs = knobs;
  options.knob_count = 1;
  options.name = "timeline/a b";  // no other test's, so that it is in its first membership
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &first), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(access((stem + ".timeline_a_b.json").c_str(), R_OK), 0);
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &second), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(access((stem + ".timeline_a_b.membership2.json").c_str(), R_OK), 0);
  for (rueda_context* context : {first, second}) {
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK);
    rueda_context_destroy(context);
  }
  EXPECT_EQ(unlink((stem + ".timeline_a_b.json").c_str()), 0);
  EXPECT_EQ(unlink((stem + ".timeline_a_b.membership2.json").c_str()), 0);
}

TEST_F(Api, CurrentContextIsTheThreadsElseTheDefault) {
  EXPECT_EQ(rueda_current_context(), nullptr);
  rueda_set_default_context(context_);
  EXPECT_EQ(rueda_current_context(), context_);
  std::thread([&] {
    EXPECT_EQ(rueda_current_context(), context_);
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.name = "other";
    rueda_context* other = nullptr;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &other), RUEDA_OK);
    rueda_set_thread_context(other);
    EXPECT_EQ(rueda_current_context(), other);
    EXPECT_EQ(rueda_shutdown(other), RUEDA_OK);
    rueda_context_destroy(other);
    EXPECT_EQ(rueda_current_context(), context_);
  }).join();
  rueda_set_default_context(nullptr);
}

TEST(Shutdown, EndsTheContextsUse) {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  rueda_context* context = nullptr;
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK);
  EXPECT_EQ(rueda_is_initialized(context), 1);
  ASSERT_EQ(rueda_shutdown(context), RUEDA_OK);
  EXPECT_EQ(rueda_is_initialized(context), 0);
  std::vector<float> values(1);
  const TensorOf tensor(values);
  EXPECT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_FAILED_PRECONDITION);
  EXPECT_THAT(rueda_last_error(), HasSubstr("shut down"));
  rueda_device device = {0, 0};
  EXPECT_EQ(rueda_local_device(context, RUEDA_CPU, &device), RUEDA_FAILED_PRECONDITION);
  EXPECT_THAT(rueda_last_error(), HasSubstr("shut down"));
  EXPECT_EQ(rueda_shutdown(context), RUEDA_FAILED_PRECONDITION);
  rueda_context_destroy(context);
}

// Two ranks -----------------------------------------------------------------------------------

class TwoRanks : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, TwoRanks, ::testing::ValuesIn(ShmSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(TwoRanks, DuplicateNameIsRefusedAtOnceWithoutDamage) {
  RunRanks({2, GetParam()}, [](rueda_context* context, int rank) {
    std::vector<float> a(3, 1), b(3, 1);
    const TensorOf first(a), second(b);
    const rueda_operation operation = Allreduce("t", first.get());
    const rueda_operation again = Allreduce("t", second.get());
    rueda_handle handle = 0, none = 0;
    if (rank == 0) {  // rank 1 has not submitted yet, so it can't have ended
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
      EXPECT_EQ(rueda_submit(context, &again, 1, nullptr, &none), RUEDA_INVALID_ARGUMENT);
      EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("'t'"), HasSubstr("in flight")));
      int32_t done = 1;
      EXPECT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
      EXPECT_EQ(done, 0);
      ASSERT_EQ(Execute(context, Barrier("go")), RUEDA_OK);
    } else {
      ASSERT_EQ(Execute(context, Barrier("go")), RUEDA_OK);
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    }
    ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    EXPECT_EQ(a[0], 2.0f);
  });
}

TEST_P(TwoRanks, WaitWithATimeoutLeavesTheOperationGoing) {
  struct Case {
    const char* name;
    const char* words;
  };
  RunRanks({2, GetParam()}, [](rueda_context* context, int rank) {
    // Of an unnamed one only the ranks together know the number.
    for (const Case& of : {Case{"t", "allreduce 't' has not ended"},
                           Case{nullptr, "unnamed allreduce has not ended"},
                           Case{nullptr, "unnamed allreduce has not ended"}}) {
      std::vector<float> values(3, 1);
      const TensorOf tensor(values);
      const rueda_operation operation = Allreduce(of.name, tensor.get());
      if (rank == 0) {
        rueda_handle handle = 0;
        EXPECT_EQ(rueda_execute(context, &operation, 1, 20'000'000, &handle),
                  RUEDA_DEADLINE_EXCEEDED);
        EXPECT_THAT(rueda_last_error(), HasSubstr(of.words));
        EXPECT_EQ(rueda_wait(context, handle, 0), RUEDA_DEADLINE_EXCEEDED);
        rueda_error error = RUEDA_ERROR_INIT;
        EXPECT_EQ(rueda_handle_error(context, handle, &error), RUEDA_FAILED_PRECONDITION);
        ASSERT_EQ(Execute(context, Barrier("go")), RUEDA_OK);
        EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
        EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
      } else {
        ASSERT_EQ(Execute(context, Barrier("go")), RUEDA_OK);
        EXPECT_EQ(Execute(context, operation), RUEDA_OK);
      }
      EXPECT_EQ(values[0], 2.0f);
    }
  });
}

// Nobody would know until when the operation uses the memory.
TEST_P(TwoRanks, ATimeoutWithoutAHandleIsRefusedAndNothingIsSubmitted) {
  RunRanks({2, GetParam()}, [](rueda_context* context, int rank) {
    std::vector<float> values(3, 1);
    const TensorOf tensor(values);
    rueda_operation operation = Allreduce("t", tensor.get());
    for (const uint32_t flags : {0u, static_cast<uint32_t>(RUEDA_OPERATION_RELEASE)}) {
      operation.flags = flags;
      for (const int64_t timeout_ns : {int64_t{0}, int64_t{1}, RUEDA_FOREVER - 1}) {
        if (rank == 1) continue;
        EXPECT_EQ(rueda_execute(context, &operation, 1, timeout_ns, nullptr),
                  RUEDA_INVALID_ARGUMENT);
        EXPECT_THAT(rueda_last_error(), HasSubstr("give `handle`, or RUEDA_FOREVER"));
      }
    }
    ASSERT_EQ(Execute(context, Barrier("both")), RUEDA_OK);
    EXPECT_EQ(values[0], 1.0f);
    // The name is free.
    EXPECT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr), RUEDA_OK);
    EXPECT_EQ(values[0], 2.0f);
    // With a handle 0 is a look.
    rueda_handle handle = 0;
    const rueda_status status = rueda_execute(context, &operation, 1, 0, &handle);
    if (status == RUEDA_OK) return;  // flags release it
    EXPECT_EQ(status, RUEDA_DEADLINE_EXCEEDED);
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
    EXPECT_EQ(values[0], 4.0f);
  });
}

// Those of what failed are kept, with the error.
TEST_P(TwoRanks, HandlesOfWhatEndedWellAreReleasedWhereThatIsAskedFor) {
  RunRanks({2, GetParam()}, [](rueda_context* context, int rank) {
    std::vector<float> values(3, 1);
    const TensorOf tensor(values);
    rueda_operation operation = Allreduce("t", tensor.get());
    operation.flags = RUEDA_OPERATION_RELEASE;
    rueda_handle handle = 5;
    EXPECT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK);
    EXPECT_EQ(handle, 0u);
    EXPECT_EQ(values[0], 2.0f);
    operation.reduce_op = rank == 0 ? RUEDA_SUM : RUEDA_MAX;
    EXPECT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle),
              RUEDA_INVALID_ARGUMENT);
    rueda_error error = RUEDA_ERROR_INIT;
    EXPECT_EQ(rueda_handle_error(context, handle, &error), RUEDA_OK);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

TEST_P(TwoRanks, ReleasedHandleDoesNotStopItsOperation) {
  RunRanks({2, GetParam()}, [](rueda_context* context, int) {
    std::vector<float> values(100'000, 1);
    const TensorOf tensor(values);
    const rueda_operation operation = Allreduce("t", tensor.get());
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    // Operations of one process set end in the order in which they became ready on all ranks.
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    EXPECT_EQ(values[0], 2.0f);
    EXPECT_EQ(values.back(), 2.0f);
  });
}

TEST_P(TwoRanks, ManyThreadsSubmitAndWaitAtOnce) {
  RunRanks({2, GetParam()}, [](rueda_context* context, int rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([=] {
        for (int i = 0; i < 50; ++i) {
          std::vector<float> values(1 + (thread * 50 + i) * 13 % 5'000, static_cast<float>(rank));
          const TensorOf tensor(values);
          const std::string name = std::to_string(thread) + "." + std::to_string(i);
          const rueda_operation operation = Allreduce(name.c_str(), tensor.get());
          rueda_handle handle = 0;
          if (i % 2 == 0) {
            ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          } else {
            ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
            ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
            ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
          }
          ASSERT_EQ(values[0], 1.0f);
          ASSERT_EQ(values.back(), 1.0f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(TwoRanks, TwoContextsAtOnce) {
  RunJoiners({2, GetParam()}, [](int rank, const Join& join) {
    rueda_context *first = nullptr, *second = nullptr;
    ASSERT_EQ(join(&first), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(join(&second), RUEDA_OK) << rueda_last_error();
    for (int i = 0; i < 20; ++i) {
      // One rank uses them in this order, the other in that one.
      rueda_context* a = rank == 0 ? first : second;
      rueda_context* b = rank == 0 ? second : first;
      std::vector<float> x(10, 1), y(10, 2);
      const TensorOf tx(x), ty(y);
      rueda_handle ha = 0, hb = 0;
      const rueda_operation in_a = Allreduce("t", rank == 0 ? tx.get() : ty.get());
      const rueda_operation in_b = Allreduce("t", rank == 0 ? ty.get() : tx.get());
      ASSERT_EQ(rueda_submit(a, &in_a, 1, nullptr, &ha), RUEDA_OK);
      ASSERT_EQ(rueda_submit(b, &in_b, 1, nullptr, &hb), RUEDA_OK);
      ASSERT_EQ(rueda_wait(a, ha, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_wait(b, hb, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(a, ha), RUEDA_OK);
      ASSERT_EQ(rueda_release(b, hb), RUEDA_OK);
      ASSERT_EQ(x[0], 2.0f);
      ASSERT_EQ(y[0], 4.0f);
    }
    EXPECT_EQ(rueda_shutdown(first), RUEDA_OK);
    EXPECT_EQ(rueda_shutdown(second), RUEDA_OK);
    rueda_context_destroy(first);
    rueda_context_destroy(second);
  });
}

}  // namespace
}  // namespace rueda::testing
