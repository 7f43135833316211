// Memory that buckets of parameters or gradients use one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::libtorch {

// Zeros, where the host's other ranks can read and write them, if there is such memory left.
at::Tensor ArenaZeros(rueda_context* context, int64_t elements, at::ScalarType type);

// Thread-safe.
class SpareMemory {
 public:
  // Keeps up to `count_max` pieces while nobody uses them.
  SpareMemory(rueda_context* context, size_t count_max)
      : context_(context), count_max_(count_max) {}

  // One of at least so many elements, and not many more; its content is anything.
  at::Tensor Get(int64_t elements, at::ScalarType type);
  // What Get has given, when nobody else has it.
  void Put(at::Tensor memory);

 private:
  rueda_context* const context_;
  const size_t count_max_;
  std::mutex mutex_;
  std::vector<at::Tensor> spare_;  // guarded by mutex_; the oldest first
};

}  // namespace rueda::libtorch
