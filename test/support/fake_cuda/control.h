// FAKE: a test's way to the fake CUDA device (README.md): the module's table, what drives the fake,
// and the log of calls as C++. Any thread.
#pragma once

#include <string>
#include <vector>

#include "ops/nccl/cuda_abi.h"
#include "test/support/fake_cuda/control_abi.h"

namespace rueda::fake_cuda {

// The library beside the file that holds this code, where the code under test finds it, too (one
// and the same copy), loaded if it wasn't. RUEDA_CHECK when it is not there.
const rueda_cuda& Cuda();
const fake_cuda_control& Fake();

// The log since start_log, in order. Only calls of one device, or with one stream number or
// communicator's number; -1: any.
struct LogFilter {
  int32_t device = -1;
  int32_t stream = -1;
  int32_t communicator = -1;
};
std::vector<fake_cuda_call> LogOf(const LogFilter& filter = {});
// For EXPECT_THAT(..., ElementsAre("record event 3 on stream 0", "wait for event 3 on stream 1",
// "copy 2 on stream 1", "allreduce 100 float32 sum on stream 1", ...)). What failed ends with
// ": status 13".
std::string ToString(const fake_cuda_call& call);
std::vector<std::string> WordsOf(const LogFilter& filter = {});

}  // namespace rueda::fake_cuda
