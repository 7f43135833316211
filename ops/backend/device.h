// Backends whose tensors are on a device: what the engine and the callers' threads need of the
// device, and of the backend beyond what every backend has.
#pragma once

#include <memory>
#include <utility>

#include "core/base/status.h"
#include "core/tensor/signature.h"
#include "ops/backend/backend.h"

namespace rueda {

class DeviceClaim;

// The device of one rank: which one it is, events on callers' streams, and memory. Any thread.
class Device {
 public:
  virtual ~Device() = default;

  // The number of the device that this rank uses, or would use if an operation came now.
  // FAILED_PRECONDITION, with one line that says why: operations on a device are not possible.
  virtual absl::StatusOr<int> Proposed() = 0;
  // INVALID_ARGUMENT: there is no such device, or this rank uses another.
  virtual absl::StatusOr<DeviceClaim> ClaimFor(int index) = 0;

  // Orders the caller's stream behind the event. FAILED_PRECONDITION: a graph is being captured on
  // it.
  virtual absl::Status OrderBehind(void* stream, const DeviceEvent& event) = 0;
  // The same without an event to wait for.
  virtual absl::Status CheckStream(void* stream) = 0;

  // Memory, which may outlive this. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) = 0;

 protected:
  // What claims are made of: see DeviceClaim. The device is claimed, or decided on.
  friend class DeviceClaim;
  virtual absl::Status CheckPointer(int index, const void* pointer, DType dtype) = 0;
  virtual absl::StatusOr<DeviceEvent> Record(int index, void* stream) = 0;
  virtual void Decide() = 0;
  virtual void GiveBack() = 0;
};

// What an operation on tensors of a device needs before it is accepted or refused. As long as it
// lives no other device is used; kept, none will be.
class DeviceClaim {
 public:
  DeviceClaim() = default;
  // `counted`: no device was decided on before.
  DeviceClaim(Device* device, int index, bool counted)
      : device_(device), index_(index), counted_(counted) {}
  DeviceClaim(DeviceClaim&& other) noexcept { *this = std::move(other); }
  DeviceClaim& operator=(DeviceClaim&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(index_, other.index_);
    std::swap(counted_, other.counted_);
    return *this;
  }
  ~DeviceClaim() {
    if (counted_) device_->GiveBack();
  }
  // The operation was accepted.
  void Keep() {
    if (counted_) device_->Decide();
  }

  // INVALID_ARGUMENT when this is not the device's memory, or not aligned to numbers of this type:
  // a kernel that touched it would cost the process its device.
  absl::Status CheckPointer(const void* pointer, DType dtype) const {
    return device_->CheckPointer(index_, pointer, dtype);
  }
  // An event recorded on the caller's stream. FAILED_PRECONDITION: a graph is being captured on it.
  absl::StatusOr<DeviceEvent> Record(void* stream) const { return device_->Record(index_, stream); }

 private:
  Device* device_ = nullptr;
  int index_ = -1;
  bool counted_ = false;
};

class DeviceBackend : public Backend {
 public:
  DeviceBackend* on_device() final { return this; }
  // Of the ordinary operations.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) final {
    return ConnectOn(members, /*urgent=*/false, nullptr);
  }

  // Any thread.
  virtual Device& device() = 0;
  // UNIMPLEMENTED, for people, for what is not done on the device. The same on all ranks. Any
  // thread.
  virtual absl::Status CheckOperation(OpKind kind, ReduceOp op,
                                      const Compression& compression) const = 0;

  // As Backend::Connect, or the members' second communicator, for urgent operations, which go
  // before others' work on the device. `parent`: one of this backend's, of all these ranks, if any,
  // out of which this one may be made; those of its ranks that are no members call SkipSplit at the
  // same place of the plan.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> ConnectOn(const Members& members,
                                                                  bool urgent,
                                                                  Communicator* parent) = 0;
  virtual void SkipSplit(Communicator* parent) = 0;
  // Ends a communicator that has nothing under way, without waiting for that.
  virtual void Retire(std::unique_ptr<Communicator> communicator) = 0;
  // When all of its communicators were aborted: whether nothing of them is left on the device and
  // their destructors return at once. Waits for that the first time, for a moment.
  virtual bool WaitUntilLeft() = 0;
};

}  // namespace rueda
