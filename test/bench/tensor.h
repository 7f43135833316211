#pragma once

#include <cstddef>
#include <cstdint>

#include "rueda/rueda.h"

namespace rueda::bench {

// One rank's float32 tensor of zeros, in memory of its own or of rueda_mem_alloc.
class Tensor {
 public:
  Tensor(rueda_context* context, size_t bytes, bool registered);
  Tensor(const Tensor&) = delete;
  ~Tensor();

  const rueda_tensor* tensor() const { return &tensor_; }
  float* data() { return static_cast<float*>(data_); }
  int64_t elements() const { return shape_; }

 private:
  const bool registered_;
  void* data_ = nullptr;
  int64_t shape_ = 0;
  rueda_tensor tensor_;
};

}  // namespace rueda::bench
