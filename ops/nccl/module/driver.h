// NVIDIA's driver, which a machine has or has not: opened when it is first asked for. And the
// device that the calling thread works on for a while. Any thread.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "ops/nccl/module/answer.h"

namespace rueda::cuda {

struct Driver {
  std::string missing;  // why there is none; else empty
  CUresult (*get_context)(CUcontext*) = nullptr;
  CUresult (*set_context)(CUcontext) = nullptr;
  CUresult (*get_attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;
};
const Driver& TheDriver();

// "cudaMalloc of 8 bytes: out of memory (cudaErrorMemoryAllocation)".
int32_t SayCuda(char* message, cudaError_t error, const char* what);

// For as long as it lives the calling thread uses `device`, and may do what a graph that another
// thread captures would forbid. Afterwards it uses what it did before: also none at all, as no
// memory is to be taken from a device that nobody uses.
class OnDevice {
 public:
  explicit OnDevice(int32_t device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  bool ok() const { return error_ == cudaSuccess; }
  // Why it is not.
  int32_t Why(char* message) const;

 private:
  const int32_t device_;
  cudaError_t error_ = cudaSuccess;
  bool relaxed_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool saved_ = false;
  CUcontext before_ = nullptr;
};

}  // namespace rueda::cuda
