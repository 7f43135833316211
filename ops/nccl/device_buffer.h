// Device memory for what operations need beside their tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "ops/nccl/cuda_abi.h"

namespace rueda {

// Device memory that a stream's operations use one after the other. It grows; what was outgrown is
// kept till the end, as the stream may still use it (less than twice the largest in all).
class DeviceBuffer {
 public:
  DeviceBuffer(const rueda_cuda* cuda, int device) : cuda_(cuda), device_(device) {}
  // Before the first use: it is registered there.
  void SetCommunicator(rueda_cuda_communicator* communicator) {
    communicator_ = communicator;
    registers_ = true;
  }
  // That one was destroyed.
  void ForgetCommunicator() { communicator_ = nullptr; }
  // Room for so many bytes, aligned to 256; of none it may be null. RESOURCE_EXHAUSTED.
  absl::StatusOr<char*> Reserve(int64_t bytes);
  void Release();

 private:
  const rueda_cuda* const cuda_;
  const int device_;
  bool registers_ = false;
  rueda_cuda_communicator* communicator_ = nullptr;
  std::vector<void*> memory_;  // the last one is in use
  int64_t bytes_ = 0;
};

}  // namespace rueda
