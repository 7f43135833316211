#include "ops/nccl/cuda_device.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/nccl/cuda_library.h"

namespace rueda {

class CudaDevice::Events {
 public:
  Events(const rueda_cuda* cuda, int device) : cuda_(cuda), device_(device) {}
  ~Events() {
    for (void* event : free_) cuda_->close_event(device_, event);
  }

  // One that nobody has; it comes back when its last owner lets go of it.
  static absl::StatusOr<DeviceEvent> Get(const std::shared_ptr<Events>& events) {
    void* event = nullptr;
    {
      MutexLock lock(events->mutex_);
      if (!events->free_.empty()) {
        event = events->free_.back();
        events->free_.pop_back();
      } else {
        events->free_.reserve(++events->opened_);  // its way back must not throw
      }
    }
    if (event == nullptr) {
      RUEDA_RETURN_IF_ERROR(CallCuda(events->cuda_->open_event, events->device_, &event));
    }
    return DeviceEvent(event, [events](void* unused) { events->Return(unused); });
  }

 private:
  void Return(void* event) {
    MutexLock lock(mutex_);
    free_.push_back(event);
  }

  const rueda_cuda* const cuda_;
  const int device_;
  Mutex mutex_;
  std::vector<void*> free_ ABSL_GUARDED_BY(mutex_);
  size_t opened_ ABSL_GUARDED_BY(mutex_) = 0;
};

CudaDevice::CudaDevice(int local_rank, std::string module_directory)
    : local_rank_(local_rank), module_directory_(std::move(module_directory)) {}

absl::Status CudaDevice::Check() {
  MutexLock lock(mutex_);
  if (!absl::IsUnknown(status_)) return status_;
  const absl::StatusOr<const rueda_cuda*> cuda = LoadCuda(module_directory_);
  status_ = cuda.status();
  if (!cuda.ok()) return status_;
  cuda_ = *cuda;
  rueda_cuda_info info = {};
  status_ = CallCuda(cuda_->probe, &info);
  devices_ = info.devices;
  return status_;
}

absl::StatusOr<int> CudaDevice::Proposed() {
  const int index = index_.load(std::memory_order_acquire);
  if (__builtin_expect(index >= 0, 1)) return index;
  RUEDA_RETURN_IF_ERROR(Check());
  MutexLock lock(mutex_);
  return claimed_ >= 0 ? claimed_ : local_rank_ % devices_;
}

absl::StatusOr<int> CudaDevice::Index() {
  const int index = index_.load(std::memory_order_acquire);
  if (__builtin_expect(index >= 0, 1)) return index;
  RUEDA_RETURN_IF_ERROR(Check());
  MutexLock lock(mutex_);
  if (index_.load(std::memory_order_relaxed) < 0) {
    if (claimed_ < 0) {
      claimed_ = local_rank_ % devices_;
      events_ = std::make_shared<Events>(cuda_, claimed_);
    }
    index_.store(claimed_, std::memory_order_release);
  }
  return claimed_;
}

absl::StatusOr<DeviceClaim> CudaDevice::ClaimFor(int index) {
  if (__builtin_expect(index == index_.load(std::memory_order_acquire), 1)) {
    return DeviceClaim(this, index, false);
  }
  RUEDA_RETURN_IF_ERROR(Check());
  MutexLock lock(mutex_);
  if (index < 0 || index >= devices_) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no CUDA device ", index, "; this process sees ", devices_));
  }
  if (claimed_ >= 0 && claimed_ != index) {
    return absl::InvalidArgumentError(absl::StrCat("the tensor is on CUDA device ", index,
                                                   ", and this rank uses device ", claimed_,
                                                   ": a context's CUDA tensors are all on one"));
  }
  if (claimed_ < 0) {
    claimed_ = index;
    events_ = std::make_shared<Events>(cuda_, index);
  }
  ++claims_;
  return DeviceClaim(this, index, true);
}

void CudaDevice::Decide() {
  MutexLock lock(mutex_);
  index_.store(claimed_, std::memory_order_release);
}

void CudaDevice::GiveBack() {
  std::shared_ptr<Events> events;  // are closed without the lock
  MutexLock lock(mutex_);
  if (--claims_ > 0 || index_.load(std::memory_order_relaxed) >= 0) return;
  claimed_ = -1;
  events.swap(events_);
}

absl::Status CudaDevice::CheckPointer(int index, const void* pointer, DType dtype) {
  if (pointer == nullptr) return absl::OkStatus();
  const size_t alignment = DTypeSize(dtype) / (IsComplex(dtype) ? 2 : 1);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the tensor's data is not aligned to ",
                                                   alignment, " bytes, as ", DTypeName(dtype),
                                                   " has to be on CUDA: copy it to where it is"));
  }
  int32_t device = -1;
  RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->locate, pointer, &device));
  if (device == index) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the tensor says that it is on CUDA device ", index, ", but its data is ",
                   device < 0 ? "no device's memory" : absl::StrCat("on device ", device)));
}

absl::StatusOr<DeviceEvent> CudaDevice::Record(int index, void* stream) {
  RUEDA_RETURN_IF_ERROR(CheckStreamOf(index, stream));
  return RecordOn(index, stream);
}

absl::Status CudaDevice::CheckStreamOf(int index, void* stream) {
  int32_t capturing = 0;
  RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->is_capturing, index, stream, &capturing));
  if (capturing == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a graph is being captured on the stream; collective operations can't be captured yet: end "
      "the capture first");
}

absl::Status CudaDevice::CheckStream(void* stream) {
  RUEDA_ASSIGN_OR_RETURN(const int index, Index());
  return CheckStreamOf(index, stream);
}

absl::StatusOr<DeviceEvent> CudaDevice::RecordOwn(void* stream) {
  RUEDA_ASSIGN_OR_RETURN(const int index, Index());
  return RecordOn(index, stream);
}

absl::StatusOr<DeviceEvent> CudaDevice::RecordOn(int index, void* stream) {
  RUEDA_ASSIGN_OR_RETURN(DeviceEvent event, Events::Get(events_));
  RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->record, index, event.get(), stream));
  return event;
}

absl::Status CudaDevice::OrderBehind(void* stream, const DeviceEvent& event) {
  RUEDA_RETURN_IF_ERROR(CheckStream(stream));
  RUEDA_ASSIGN_OR_RETURN(const int index, Index());
  return CallCuda(cuda_->wait, index, stream, event.get());
}

absl::StatusOr<std::shared_ptr<void>> CudaDevice::Allocate(size_t bytes) {
  RUEDA_ASSIGN_OR_RETURN(const int index, Index());
  void* memory = nullptr;
  RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->allocate, index, bytes, &memory));
  return std::shared_ptr<void>(memory, [cuda = cuda_, index](void* unused) {
    if (unused != nullptr) cuda->release(index, unused);
  });
}

}  // namespace rueda
