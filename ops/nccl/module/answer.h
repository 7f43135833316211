// What the module's functions return: a value of absl::StatusCode, and words in the caller's
// message.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "ops/nccl/cuda_abi.h"

namespace rueda::cuda {

enum Answer : int32_t {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

// As printf; one line. Returns `answer`.
__attribute__((format(printf, 3, 4))) inline int32_t Say(char* message, Answer answer,
                                                         const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, RUEDA_CUDA_MESSAGE_BYTES, format, arguments);
  va_end(arguments);
  for (char* c = message; *c != 0; ++c) {
    if (*c == '\n') *c = ' ';
  }
  return answer;
}

}  // namespace rueda::cuda
