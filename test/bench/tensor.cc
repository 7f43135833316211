#include "test/bench/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "test/bench/support.h"

namespace rueda::bench {
namespace {

const std::pair<const char*, rueda_dtype> kDTypes[] = {{"float32", RUEDA_FLOAT32},
                                                       {"float64", RUEDA_FLOAT64},
                                                       {"float16", RUEDA_FLOAT16},
                                                       {"bfloat16", RUEDA_BFLOAT16},
                                                       {"int8", RUEDA_INT8},
                                                       {"int16", RUEDA_INT16},
                                                       {"int32", RUEDA_INT32},
                                                       {"int64", RUEDA_INT64},
                                                       {"uint8", RUEDA_UINT8},
                                                       {"uint16", RUEDA_UINT16},
                                                       {"uint32", RUEDA_UINT32},
                                                       {"uint64", RUEDA_UINT64},
                                                       {"complex64", RUEDA_COMPLEX64},
                                                       {"complex128", RUEDA_COMPLEX128},
                                                       {"float8_e4m3fn", RUEDA_FLOAT8_E4M3FN},
                                                       {"float8_e5m2", RUEDA_FLOAT8_E5M2}};

rueda_dtype DTypeOf(const std::string& name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (name == known) return dtype;
  }
  Die("no dtype '" + name + "'");
}

}  // namespace

std::vector<std::string> KnownDTypes() {
  std::vector<std::string> names;
  for (const auto& [name, dtype] : kDTypes) names.push_back(name);
  return names;
}

Tensor::Tensor(rueda_context* context, size_t bytes, bool registered, const std::string& name)
    : registered_(registered) {
  const rueda_dtype dtype = DTypeOf(name);
  if (registered) {
    Check(rueda_mem_alloc(context, std::max<size_t>(bytes, 1), &data_));
  } else {
    data_ = std::malloc(std::max<size_t>(bytes, 1));
    if (data_ == nullptr) Die("out of memory");
  }
  std::memset(data_, 0, bytes);
  shape_ = static_cast<int64_t>(bytes / (dtype.bits / 8u));
  tensor_ = {data_, {RUEDA_CPU, 0}, 1, dtype, &shape_, nullptr, 0};
}

Tensor::Tensor(const Device& device, size_t bytes, const std::string& name) : device_(&device) {
  const rueda_dtype dtype = DTypeOf(name);
  const std::vector<char> zeros(std::max<size_t>(bytes, 1));
  data_ = device.Allocate(zeros.size());
  device.Upload(data_, zeros.data(), zeros.size());
  shape_ = static_cast<int64_t>(bytes / (dtype.bits / 8u));
  tensor_ = {data_, device.rueda(), 1, dtype, &shape_, nullptr, 0};
}

void Tensor::Fill(const std::vector<float>& values) {
  if (device_ != nullptr) return device_->Upload(data_, values.data(), bytes());
  std::memcpy(data_, values.data(), bytes());
}

std::vector<float> Tensor::Values() const {
  std::vector<float> values(static_cast<size_t>(shape_));
  if (device_ != nullptr) {
    device_->Download(values.data(), data_, bytes());
  } else {
    std::memcpy(values.data(), data_, bytes());
  }
  return values;
}

Tensor::~Tensor() {
  if (device_ != nullptr) {
    device_->Release(data_);
  } else if (registered_) {
    Check(rueda_mem_free(data_));
  } else {
    std::free(data_);
  }
}

}  // namespace rueda::bench
