// FAKE: tensors on a device, for the C API.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rueda/rueda.h"
#include "test/support/fake_cuda/device_vector.h"
#include "test/support/tensors.h"

namespace rueda::fake_cuda {

// A tensor on a device, and where operations on it run.
template <typename T>
class OnDevice {
 public:
  OnDevice(int device, std::vector<T> values, void* stream = nullptr)
      : OnDevice(device, std::make_shared<DeviceVector<T>>(device, values), 0, values.size(),
                 stream) {}
  // A range of another's memory.
  OnDevice(int device, std::shared_ptr<DeviceVector<T>> memory, size_t begin, size_t size,
           void* stream = nullptr)
      : memory_(std::move(memory)),
        begin_(begin),
        view_(memory_->data() + begin, {static_cast<int64_t>(size)}, testing::kDTypeOf<T>) {
    tensor_ = *view_.get();
    tensor_.device = {RUEDA_CUDA, device};
    exec_.device = tensor_.device;
    exec_.stream = stream;
  }

  rueda_operation Operation(rueda_kind kind, const char* name) const {
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = kind;
    operation.name = name;
    operation.input = &tensor_;
    operation.exec = &exec_;
    if (kind == RUEDA_ALLREDUCE) operation.reduce_op = RUEDA_SUM;
    return operation;
  }
  rueda_operation Sum(const char* name) const { return Operation(RUEDA_ALLREDUCE, name); }
  std::vector<T> Values() const {
    const std::vector<T> all = memory_->Download();
    return {all.begin() + static_cast<int64_t>(begin_),
            all.begin() + static_cast<int64_t>(begin_) + view_.get()->shape[0]};
  }
  rueda_exec& exec() { return exec_; }
  const rueda_tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<DeviceVector<T>> memory_;
  size_t begin_;
  testing::TensorOf view_;
  rueda_tensor tensor_;
  rueda_exec exec_ = RUEDA_EXEC_INIT;
};

}  // namespace rueda::fake_cuda
