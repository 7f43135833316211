// The CUDA module as the library calls it: its table, and its errors as ours.
#pragma once

#include <string>

#include "core/base/status.h"
#include "ops/nccl/cuda_abi.h"

namespace rueda {

// Whether the module was built beside this library.
bool BuiltWithCuda();

// The module's table, from `directory`, or from ModuleDirectory(). FAILED_PRECONDITION, for people:
// this library was built without it, or it is missing or can't be loaded. Any thread; not cheap.
absl::StatusOr<const rueda_cuda*> LoadCuda(const std::string& directory = "");

// What a function of the module has returned, in its words.
absl::Status CudaStatus(int32_t code, const char* message);

// Calls a function of the table with room for its message behind the arguments.
template <typename Function, typename... Args>
absl::Status CallCuda(Function function, Args... args) {
  char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
  const int32_t code = function(args..., message);
  return __builtin_expect(code == 0, 1) ? absl::OkStatus() : CudaStatus(code, message);
}

}  // namespace rueda
