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
#include "core/tensor/dtype.h"
#include "ops/backend/communicator.h"
#include "ops/nccl/cuda_abi.h"

namespace rueda {

class CudaDevice {
 public:
  // `local_rank`: the rank's among those of its host. `module_directory`: empty: where librueda.so
  // is.
  explicit CudaDevice(int local_rank, std::string module_directory = "");

  // OK when operations on CUDA tensors are possible in this process, else FAILED_PRECONDITION with
  // one line that says why not. Loads the module and NCCL the first time.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mutex_);
  // Only after Check has said OK.
  const rueda_cuda& cuda() const { return *cuda_; }

  // The device that this rank uses: the one of its first operation, or else the local rank's,
  // counted round the devices that this process sees. Afterwards it is this one.
  absl::StatusOr<int> Index() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, without deciding on it.
  absl::StatusOr<int> Proposed() ABSL_LOCKS_EXCLUDED(mutex_);

  // What an operation on tensors of a device needs before it is accepted or refused. As long as it
  // lives no other device is used; kept, none will be.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept;
    Claim& operator=(Claim&& other) noexcept;
    ~Claim();
    // The operation was accepted.
    void Keep();

    // INVALID_ARGUMENT when this is not the device's memory, or not aligned to numbers of this
    // type: a kernel that touched it would cost the process its device.
    absl::Status CheckPointer(const void* pointer, DType dtype) const;
    // An event recorded on the caller's stream. FAILED_PRECONDITION: a graph is being captured
    // on it.
    absl::StatusOr<DeviceEvent> Record(void* stream) const;

   private:
    friend class CudaDevice;
    Claim(CudaDevice* device, int index, bool counted)
        : device_(device), index_(index), counted_(counted) {}

    CudaDevice* device_ = nullptr;
    int index_ = -1;
    bool counted_ = false;  // the device was not decided on
  };
  // INVALID_ARGUMENT: there is no such device, or this rank uses another.
  absl::StatusOr<Claim> ClaimFor(int index) ABSL_LOCKS_EXCLUDED(mutex_);

  // An event recorded on a stream of the library's own.
  absl::StatusOr<DeviceEvent> RecordOwn(void* stream);
  // Orders the caller's stream behind the event. FAILED_PRECONDITION: a graph is being captured on
  // it.
  absl::Status OrderBehind(void* stream, const DeviceEvent& event);
  // The same without an event to wait for.
  absl::Status CheckStream(void* stream);

  // Memory, which may outlive this. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes);

 private:
  // Events that are not in use.
  class Events;

  // With the device in use or claimed.
  absl::Status CheckStreamOf(int index, void* stream);
  absl::StatusOr<DeviceEvent> RecordOn(int index, void* stream);
  void Decide() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack() ABSL_LOCKS_EXCLUDED(mutex_);

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
