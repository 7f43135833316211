#include "test/bench/device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "ops/nccl/cuda_library.h"
#include "test/bench/support.h"

namespace rueda::bench {
namespace {

// Where the librueda.so of this program is: its module is beside it.
std::string LibraryFolder() {
  Dl_info info;
  char path[PATH_MAX];
  if (dladdr(reinterpret_cast<const void*>(&rueda_version), &info) == 0 ||
      realpath(info.dli_fname, path) == nullptr) {
    Die("the folder of librueda.so can't be found");
  }
  const std::string file(path);
  return file.substr(0, file.rfind('/'));
}

void CheckCuda(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

}  // namespace

Device::Device(rueda_context* context) {
  rueda_device device = {};
  Check(rueda_local_device(context, RUEDA_CUDA, &device));
  index_ = device.id;
  const absl::StatusOr<const rueda_cuda*> cuda = LoadCuda(LibraryFolder() + "/rueda");
  CheckCuda(cuda.status());
  cuda_ = *cuda;
  rueda_cuda_device description = {};
  CheckCuda(CallCuda(cuda_->describe, index_, &description));
  name_ = description.name;
}

void* Device::NewStream() const {
  void* stream = nullptr;
  CheckCuda(CallCuda(cuda_->open_stream, index_, 0, &stream));
  return stream;
}

void Device::CloseStream(void* stream) const {
  cuda_->close_stream(index_, stream);
}

void Device::Drain(void* stream) const {
  void* event = nullptr;
  CheckCuda(CallCuda(cuda_->open_event, index_, &event));
  CheckCuda(CallCuda(cuda_->record, index_, event, stream));
  CheckCuda(CallCuda(cuda_->synchronize, index_, event));
  cuda_->close_event(index_, event);
}

void* Device::Allocate(size_t bytes) const {
  void* memory = nullptr;
  CheckCuda(CallCuda(cuda_->allocate, index_, bytes, &memory));
  return memory;
}

void Device::Upload(void* to, const void* from, size_t bytes) const {
  CheckCuda(CallCuda(cuda_->transfer, index_, to, from, bytes));
}

void Device::Download(void* to, const void* from, size_t bytes) const {
  Upload(to, from, bytes);
}

}  // namespace rueda::bench
