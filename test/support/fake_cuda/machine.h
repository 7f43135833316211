// FAKE: the fake CUDA devices of this process, their memory, what a test wants to fail, and the log
// of calls. All of it lives until the process ends. Any thread.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ops/nccl/cuda_abi.h"
#include "test/support/fake_cuda/control_abi.h"

namespace rueda::fake_cuda {

// The one T of this process; never destroyed. A child of fork has a new one: it has none of the
// threads that use the parent's, and CUDA does not survive a fork either.
template <typename T>
T& PerProcess() {
  static T* it = new T;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { it = new T; });
  static_cast<void>(registered);
  return *it;
}

// A result that threads pass on: copies of an absl::Status share a counter that the thread
// sanitizer does not see.
struct Outcome {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string words;
  bool ok() const { return code == absl::StatusCode::kOk; }
};
Outcome Internal(std::string words);
Outcome InvalidArgument(std::string words);
// For the table's functions.
int32_t Report(const Outcome& outcome, char* message);

// ---- devices ----

// As many as FAKE_CUDA_DEVICES says now, 2 if it doesn't.
int32_t CountDevices();
// Whether a device has this number, and has not failed.
Outcome CheckDevice(int32_t device);
// The first cause stays.
void FailDevice(int32_t device, const std::string& words);
bool HasFailed(int32_t device);

// ---- memory ----

// Fresh memory is full of 0xFF (NaN, -1). What is released is filled with 0xFD, and kept for a
// while, so that nobody gets the same addresses soon.
Outcome Allocate(int32_t device, size_t bytes, void** memory);
void Release(int32_t device, void* memory);
int32_t Locate(const void* pointer);
int64_t LiveBytes();
// OK if all of it is live memory of the device and begins at a multiple of `alignment`.
Outcome CheckRange(int32_t device, const void* memory, size_t bytes, size_t alignment);

// ---- what a test wants ----

void FailNext(const std::string& function, int32_t device, int32_t skip, const Outcome& outcome);
Outcome TakeFailure(const std::string& function, int32_t device);
void ResetMachine();

void StartLog();
void Log(const fake_cuda_call& call);
size_t LogSize();
fake_cuda_call LogEntry(size_t index);

}  // namespace rueda::fake_cuda
