// The CUDA device of one rank: which one it is, and what callers need of it: events on their
// streams, and memory. Any thread.
//
// Nothing of CUDA is loaded or asked before somebody wants it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "ops/backend/device.h"
#include "ops/nccl/cuda_abi.h"

namespace rueda {

class CudaDevice : public Device {
 public:
  // `local_rank`: the rank's among those of its host. `module_directory`: empty:
  // ModuleDirectory().
  explicit CudaDevice(int local_rank, std::string module_directory = "");

  // OK when operations on CUDA tensors are possible in this process, else FAILED_PRECONDITION with
  // one line that says why not. Loads the module and NCCL the first time.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mutex_);
  // Only after Check has said OK.
  const rueda_cuda& cuda() const { return *cuda_; }

  // The device that this rank uses: the one of its first operation, or else the local rank's,
  // counted round the devices that this process sees. Afterwards it is this one.
  absl::StatusOr<int> Index() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<int> Proposed() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<DeviceClaim> ClaimFor(int index) override ABSL_LOCKS_EXCLUDED(mutex_);

  // An event recorded on a stream of the library's own.
  absl::StatusOr<DeviceEvent> RecordOwn(void* stream);
  absl::Status OrderBehind(void* stream, const DeviceEvent& event) override;
  absl::Status CheckStream(void* stream) override;
  absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) override;

 private:
  // Events that are not in use.
  class Events;

  absl::Status CheckPointer(int index, const void* pointer, DType dtype) override;
  absl::StatusOr<DeviceEvent> Record(int index, void* stream) override;
  void Decide() override ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack() override ABSL_LOCKS_EXCLUDED(mutex_);

  // With the device in use or claimed.
  absl::Status CheckStreamOf(int index, void* stream);
  absl::StatusOr<DeviceEvent> RecordOn(int index, void* stream);

  const int local_rank_;
  const std::string module_directory_;
  const rueda_cuda* cuda_ = nullptr;  // written once, by the first Check
  Mutex mutex_;
  // UNKNOWN: not asked yet.
  absl::Status status_ ABSL_GUARDED_BY(mutex_) = absl::UnknownError("");
  int devices_ ABSL_GUARDED_BY(mutex_) = 0;
  int claims_ ABSL_GUARDED_BY(mutex_) = 0;    // that were made before it was decided
  int claimed_ ABSL_GUARDED_BY(mutex_) = -1;  // the device that these are of
  std::shared_ptr<Events> events_;  // constant while somebody has a claim, or index_ is set
  std::atomic<int> index_{-1};      // -1: not decided; set once
};

}  // namespace rueda
