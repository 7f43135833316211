#include "ops/nccl/module/device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "ops/nccl/kernels/kernels.h"
#include "ops/nccl/module/driver.h"
#include "ops/nccl/module/nccl_functions.h"

namespace rueda::cuda {
namespace {

// Calls fn() on the device and reports what it returns.
template <class Fn>
int32_t On(int32_t device, const char* what, char* message, const Fn& fn) {
  const OnDevice on_device(device);
  if (!on_device.ok()) return on_device.Why(message);
  const cudaError_t error = fn();
  if (error == cudaSuccess) return kOk;
  cudaGetLastError();  // else a later call of another library's finds it
  return SayCuda(message, error, what);
}

cudaStream_t StreamOf(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

cudaEvent_t EventOf(void* event) {
  return static_cast<cudaEvent_t>(event);
}

// 13000 is CUDA 13.0.
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Once for each device.
cudaError_t LoadKernelsOnce(int32_t device) {
  static std::mutex& mutex = *new std::mutex;
  static std::set<int32_t>& loaded = *new std::set<int32_t>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded.count(device) > 0) return cudaSuccess;
  const cudaError_t error = LoadKernels();
  if (error == cudaSuccess) loaded.insert(device);
  return error;
}

// Why there is nothing to work on, in one line.
int32_t SayNoDevice(char* message, cudaError_t error, int driver_version) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  switch (error) {
    case cudaErrorInsufficientDriver:
      return Say(message, kFailedPrecondition,
                 "the NVIDIA driver is too old: it supports CUDA %s, and this library was built "
                 "with %s; install a newer driver",
                 VersionText(driver_version).c_str(), VersionText(CUDART_VERSION).c_str());
    case cudaSuccess:
    case cudaErrorNoDevice:
      if (visible != nullptr) {
        return Say(message, kFailedPrecondition,
                   "there is no CUDA device that this process may use: CUDA_VISIBLE_DEVICES is "
                   "'%s'",
                   visible);
      }
      return Say(message, kFailedPrecondition, "there is no CUDA device");
    default:
      return Say(message, kFailedPrecondition, "CUDA can't be used: %s (%s)",
                 cudaGetErrorString(error), cudaGetErrorName(error));
  }
}

}  // namespace

int32_t Probe(rueda_cuda_info* info, char* message) {
  std::memset(info, 0, sizeof *info);
  info->runtime_version = CUDART_VERSION;
  info->nccl_header_version = NCCL_VERSION_CODE;
  const Nccl& nccl = TheNccl();
  info->nccl_version = nccl.version;
  // Who mends the one must not find the other behind it.
  const std::string also = nccl.missing.empty() ? "" : "; and " + nccl.missing;
  const Driver& driver = TheDriver();
  if (!driver.missing.empty()) {
    return Say(message, kFailedPrecondition, "there is no CUDA device: %s%s",
               driver.missing.c_str(), also.c_str());
  }
  int version = 0, devices = 0;
  cudaDriverGetVersion(&version);
  info->driver_version = version;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) cudaGetLastError();
  if (error != cudaSuccess || devices == 0) {
    const int32_t answer = SayNoDevice(message, error, version);
    const size_t length = std::strlen(message);
    std::snprintf(message + length, RUEDA_CUDA_MESSAGE_BYTES - length, "%s", also.c_str());
    return answer;
  }
  info->devices = devices;
  if (!nccl.missing.empty()) {
    return Say(message, kFailedPrecondition, "%s", nccl.missing.c_str());
  }
  return kOk;
}

int32_t Describe(int32_t device, rueda_cuda_device* description, char* message) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return SayCuda(message, error, "cudaGetDeviceProperties");
  }
  std::memset(description, 0, sizeof *description);
  std::snprintf(description->name, sizeof description->name, "%s", properties.name);
  description->major = properties.major;
  description->minor = properties.minor;
  description->bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return kOk;
}

int32_t Locate(const void* pointer, int32_t* device, char* message) {
  *device = -1;
  const Driver& driver = TheDriver();
  if (!driver.missing.empty()) {
    return Say(message, kFailedPrecondition, "%s", driver.missing.c_str());
  }
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  unsigned type = 0;
  int ordinal = -1;
  // It does not know the host's ordinary memory.
  if (driver.get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE) {
    return kOk;
  }
  if (driver.get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
      CUDA_SUCCESS) {
    *device = ordinal;
  }
  return kOk;
}

// Communication goes before the ordinary work of the device, which has the least priority: others
// wait for it. The urgent goes before that.
int32_t OpenStream(int32_t device, int32_t urgent, void** stream, char* message) {
  *stream = nullptr;
  const int32_t loaded =
      On(device, "loading the kernels", message, [&] { return LoadKernelsOnce(device); });
  if (loaded != kOk) return loaded;
  return On(device, "cudaStreamCreateWithPriority", message, [&] {
    int least = 0, greatest = 0;
    const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error != cudaSuccess) return error;
    const int between = least > greatest ? greatest + 1 : greatest;
    cudaStream_t made = nullptr;
    const cudaError_t result = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                                            urgent != 0 ? greatest : between);
    *stream = made;
    return result;
  });
}

void CloseStream(int32_t device, void* stream) {
  const OnDevice on_device(device);
  cudaStreamDestroy(StreamOf(stream));
}

int32_t IsCapturing(int32_t device, void* stream, int32_t* capturing, char* message) {
  *capturing = 0;
  return On(device, "cudaStreamIsCapturing", message, [&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(StreamOf(stream), &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    if (error != cudaErrorStreamCaptureImplicit) return error;
    // The legacy default stream, while another one captures that waits for it.
    cudaGetLastError();
    *capturing = 1;
    return cudaSuccess;
  });
}

int32_t OpenEvent(int32_t device, void** event, char* message) {
  *event = nullptr;
  return On(device, "cudaEventCreateWithFlags", message, [&] {
    cudaEvent_t made = nullptr;
    const cudaError_t error =
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventBlockingSync);
    *event = made;
    return error;
  });
}

void CloseEvent(int32_t device, void* event) {
  const OnDevice on_device(device);
  cudaEventDestroy(EventOf(event));
}

int32_t Record(int32_t device, void* event, void* stream, char* message) {
  return On(device, "cudaEventRecord", message,
            [&] { return cudaEventRecord(EventOf(event), StreamOf(stream)); });
}

int32_t Wait(int32_t device, void* stream, void* event, char* message) {
  return On(device, "cudaStreamWaitEvent", message,
            [&] { return cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0); });
}

int32_t Synchronize(int32_t device, void* event, char* message) {
  return On(device, "cudaEventSynchronize", message,
            [&] { return cudaEventSynchronize(EventOf(event)); });
}

int32_t Allocate(int32_t device, size_t bytes, void** memory, char* message) {
  *memory = nullptr;
  char what[64];
  std::snprintf(what, sizeof what, "cudaMalloc of %zu bytes", bytes);
  return On(device, what, message, [&] { return cudaMalloc(memory, bytes > 0 ? bytes : 1); });
}

void Release(int32_t device, void* memory) {
  const OnDevice on_device(device);
  cudaFree(memory);
}

// On a stream of its own: the default one would wait for others, and they for it.
int32_t Transfer(int32_t device, void* to, const void* from, size_t bytes, char* message) {
  if (bytes == 0) return kOk;
  return On(device, "cudaMemcpyAsync", message, [&] {
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error;
  });
}

int32_t EnqueueCopy(int32_t device, void* stream, const rueda_cuda_copy* copy, char* message) {
  return On(device, "the copy kernel", message, [&] { return Copy(*copy, StreamOf(stream)); });
}

int32_t EnqueueReduce(int32_t device, void* stream, const rueda_cuda_reduce* reduce,
                      char* message) {
  return On(device, "the reduction kernel", message,
            [&] { return Reduce(*reduce, StreamOf(stream)); });
}

int32_t EnqueueEncode(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return On(device, "the encoding kernel", message,
            [&] { return Encode(*codec, StreamOf(stream)); });
}

int32_t EnqueueCombine(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return On(device, "the combining kernel", message,
            [&] { return Combine(*codec, StreamOf(stream)); });
}

int32_t EnqueueDecode(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return On(device, "the decoding kernel", message,
            [&] { return Decode(*codec, StreamOf(stream)); });
}

}  // namespace rueda::cuda
