#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::bench {

// The names of those that can be added up.
std::vector<std::string> KnownDTypes();

// One rank's tensor of zeros, in memory of its own or of rueda_mem_alloc.
class Tensor {
 public:
  // `dtype`: one of KnownDTypes.
  Tensor(rueda_context* context, size_t bytes, bool registered,
         const std::string& dtype = "float32");
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
