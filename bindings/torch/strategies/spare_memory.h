// Memory that buckets of parameters or gradients use one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <vector>

#include "bindings/torch/device.h"
#include "rueda/rueda.h"

namespace rueda::libtorch {

// Zeros; on the CPU where the host's other ranks can read and write them, if there is such memory
// left.
at::Tensor ArenaZeros(rueda_context* context, int64_t elements, at::ScalarType type,
                      at::Device device);

// Thread-safe. On CUDA who gets memory uses it behind who has put it here, each on the stream that
// is current in the call.
class SpareMemory {
 public:
  // Keeps up to `count_max` pieces while nobody uses them.
  SpareMemory(rueda_context* context, size_t count_max)
      : context_(context), count_max_(count_max) {}

  // One of at least so many elements, and not many more; its content is anything.
  at::Tensor Get(int64_t elements, at::ScalarType type, at::Device device);
  // What Get has given, when nobody else has it.
  void Put(at::Tensor memory);

 private:
  rueda_context* const context_;
  const size_t count_max_;
  std::mutex mutex_;
  struct Spare {
    at::Tensor memory;
    std::optional<c10::Stream> stream;  // whose work used it until now
  };
  std::vector<Spare> spare_;  // guarded by mutex_; the oldest first
};

}  // namespace rueda::libtorch
