#include "ops/nccl/module/driver.h"

#include <dlfcn.h>

namespace rueda::cuda {
namespace {

template <class Function>
void Find(void* library, const char* name, Function* function, Driver* driver) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    driver->missing = std::string("the NVIDIA driver can't be used: libcuda.so.1 has no ") + name;
  }
}

Driver Open() {
  Driver driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string why = dlerror();
    const bool absent = why.find("libcuda.so.1: cannot open") == 0;
    driver.missing =
        (absent ? "no NVIDIA driver is installed (" : "the NVIDIA driver can't be used (");
    driver.missing += why + ")";
    return driver;
  }
  Find(library, "cuCtxGetCurrent", &driver.get_context, &driver);
  Find(library, "cuCtxSetCurrent", &driver.set_context, &driver);
  Find(library, "cuPointerGetAttribute", &driver.get_attribute, &driver);
  return driver;
}

}  // namespace

const Driver& TheDriver() {
  static const Driver& driver = *new Driver(Open());
  return driver;
}

int32_t SayCuda(char* message, cudaError_t error, const char* what) {
  const Answer answer = error == cudaErrorMemoryAllocation ? kResourceExhausted : kInternal;
  return Say(message, answer, "%s: %s (%s)", what, cudaGetErrorString(error),
             cudaGetErrorName(error));
}

OnDevice::OnDevice(int32_t device) : device_(device) {
  const Driver& driver = TheDriver();
  if (!driver.missing.empty()) {
    error_ = cudaErrorInsufficientDriver;
    return;
  }
  saved_ = driver.get_context(&before_) == CUDA_SUCCESS;
  error_ = cudaSetDevice(device);
  if (error_ != cudaSuccess) return;
  relaxed_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
}

OnDevice::~OnDevice() {
  if (relaxed_) cudaThreadExchangeStreamCaptureMode(&mode_);
  const Driver& driver = TheDriver();
  if (!saved_) return;
  CUcontext now = nullptr;
  if (driver.get_context(&now) == CUDA_SUCCESS && now != before_) driver.set_context(before_);
}

int32_t OnDevice::Why(char* message) const {
  const Driver& driver = TheDriver();
  if (!driver.missing.empty()) {
    return Say(message, kFailedPrecondition, "%s", driver.missing.c_str());
  }
  return Say(message, error_ == cudaErrorInvalidDevice ? kInvalidArgument : kInternal,
             "cudaSetDevice(%d): %s (%s)", device_, cudaGetErrorString(error_),
             cudaGetErrorName(error_));
}

}  // namespace rueda::cuda
