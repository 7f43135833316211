// A model's parameters in one tensor a device and type, for what moves all of them at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

class Packed {
 public:
  // They may be given other memory later, but not other sizes.
  explicit Packed(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    std::map<std::tuple<at::DeviceType, c10::DeviceIndex, at::ScalarType>, int64_t> elements;
    for (const at::Tensor& tensor : tensors_) {
      elements[{tensor.device().type(), tensor.device().index(), tensor.scalar_type()}] +=
          tensor.numel();
    }
    for (const auto& [kind, count] : elements) {
      const auto& [device, index, type] = kind;
      packed_.push_back(
          at::empty({count}, at::TensorOptions().dtype(type).device(at::Device(device, index))));
    }
  }

  // By device and type, the same order on all ranks with the same tensors.
  std::vector<at::Tensor>& values() { return packed_; }

  void CopyIn() {
    ForEach([](const at::Tensor& tensor, at::Tensor place) { place.copy_(tensor); });
  }
  void CopyOut() {
    ForEach([](at::Tensor tensor, const at::Tensor& place) { tensor.copy_(place); });
  }
  // Adds to the tensors.
  void AddOut() {
    ForEach([](at::Tensor tensor, const at::Tensor& place) { tensor.add_(place); });
  }

 private:
  template <typename Fn>
  void ForEach(Fn fn) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& packed : packed_) {
      int64_t begin = 0;
      for (const at::Tensor& tensor : tensors_) {
        if (tensor.scalar_type() != packed.scalar_type() || tensor.device() != packed.device()) {
          continue;
        }
        fn(tensor.detach(), packed.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
        begin += tensor.numel();
      }
      if (begin == packed.numel()) continue;
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "parameters have another type, or are on another device, than when the strategy "
                  "was made: make it again");
    }
  }

  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> packed_;
};

}  // namespace rueda::libtorch
