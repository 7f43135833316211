// NCCL: process sets whose tensors are on CUDA devices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/backend/backend.h"
#include "ops/backend/device.h"
#include "ops/backend/store.h"
#include "ops/nccl/cuda_device.h"
#include "ops/nccl/device_communicator.h"

namespace rueda {

struct NcclOptions {
  std::string job;  // the store's keys begin with these two
  uint64_t membership = 1;
  DeviceContext::Args context;
};

class NcclBackend : public DeviceBackend {
 public:
  explicit NcclBackend(NcclOptions options);

  absl::string_view name() const override { return "nccl"; }
  bool connects() const override { return true; }
  // Whether this rank has a device.
  absl::Status Viable(const Members& members) const override;
  CudaDevice& device() override { return *context_->args().device; }
  absl::Status CheckOperation(OpKind kind, ReduceOp op,
                              const Compression& compression) const override;
  // Urgent operations have a stream of the highest priority.
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectOn(const Members& members, bool urgent,
                                                          Communicator* parent) override;
  void SkipSplit(Communicator* parent) override;
  void Retire(std::unique_ptr<Communicator> communicator) override;
  // Waits within the limit of an abort and a moment.
  bool WaitUntilLeft() override;

 private:
  const std::string job_;
  const uint64_t membership_;
  const std::shared_ptr<DeviceContext> context_;
  bool asked_ = false;  // WaitUntilLeft was, before
  std::vector<std::unique_ptr<DeviceCommunicator>> retired_;
};

}  // namespace rueda
