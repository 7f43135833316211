// NCCL: process sets whose tensors are on CUDA devices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/backend/backend.h"
#include "ops/backend/store.h"
#include "ops/nccl/cuda_device.h"
#include "ops/nccl/device_communicator.h"

namespace rueda {

struct NcclOptions {
  std::string job;  // the store's keys begin with these two
  uint64_t epoch = 1;
  DeviceContext::Args context;
};

class NcclBackend : public Backend {
 public:
  explicit NcclBackend(NcclOptions options);

  absl::string_view name() const override { return "nccl"; }
  bool connects() const override { return true; }
  // Whether this rank has a device.
  absl::Status Viable(const Group& group) const override;
  absl::Status Supports(OpKind kind, DType dtype, ReduceOp op) const override;
  // Of the ordinary operations.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Group& group) override {
    return ConnectOn(group, /*urgent=*/false, nullptr);
  }
  // The same, or a group's second communicator, on a stream of the highest priority. `parent`: one
  // of this backend's, of all these ranks, if any, out of which NCCL can make it; those of its
  // ranks that are not of the group call LeaveOut at the same place of the plan.
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectOn(const Group& group, bool urgent,
                                                          Communicator* parent);
  static void LeaveOut(Communicator* parent);
  // When all of its communicators were aborted: whether nothing of them is left on the device and
  // their destructors return at once. Waits for that the first time, within the limit of an abort
  // and a moment.
  bool Left();
  // Ends a communicator that has nothing under way, without waiting for that.
  void Retire(std::unique_ptr<Communicator> communicator);

  CudaDevice& device() const { return *context_->args().device; }

 private:
  const std::string job_;
  const uint64_t epoch_;
  const std::shared_ptr<DeviceContext> context_;
  bool asked_ = false;  // Left, before
  std::vector<std::unique_ptr<DeviceCommunicator>> retired_;
};

// UNIMPLEMENTED, for people, for what is not done on CUDA. The same everywhere.
absl::Status CheckOnCuda(OpKind kind, ReduceOp op, const Compression& compression);

}  // namespace rueda
