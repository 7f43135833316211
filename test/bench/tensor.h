#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rueda/rueda.h"
#include "test/bench/device.h"

namespace rueda::bench {

// The names of those that can be added up.
std::vector<std::string> KnownDTypes();

// One rank's tensor of zeros, in memory of its own or of rueda_mem_alloc.
class Tensor {
 public:
  // `dtype`: one of KnownDTypes.
  Tensor(rueda_context* context, size_t bytes, bool registered,
         const std::string& dtype = "float32");
  // On a device, which outlives it.
  Tensor(const Device& device, size_t bytes, const std::string& dtype = "float32");
  Tensor(const Tensor&) = delete;
  ~Tensor();

  const rueda_tensor* tensor() const { return &tensor_; }
  // On the CPU.
  float* data() { return static_cast<float*>(data_); }
  // Its values, where they are float32.
  void Fill(const std::vector<float>& values);
  std::vector<float> Values() const;
  int64_t elements() const { return shape_; }

 private:
  size_t bytes() const { return static_cast<size_t>(shape_) * (tensor_.dtype.bits / 8u); }

  const bool registered_ = false;
  const Device* const device_ = nullptr;
  void* data_ = nullptr;
  int64_t shape_ = 0;
  rueda_tensor tensor_;
};

}  // namespace rueda::bench
