#include "test/bench/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "test/bench/support.h"

namespace rueda::bench {

Tensor::Tensor(rueda_context* context, size_t bytes, bool registered) : registered_(registered) {
  if (registered) {
    Check(rueda_mem_alloc(context, std::max<size_t>(bytes, 1), &data_));
  } else {
    data_ = std::malloc(std::max<size_t>(bytes, 1));
    if (data_ == nullptr) Die("out of memory");
  }
  std::memset(data_, 0, bytes);
  shape_ = static_cast<int64_t>(bytes / sizeof(float));
  tensor_ = {data_, {RUEDA_CPU, 0}, 1, RUEDA_FLOAT32, &shape_, nullptr, 0};
}

Tensor::~Tensor() {
  if (registered_) {
    Check(rueda_mem_free(data_));
  } else {
    std::free(data_);
  }
}

}  // namespace rueda::bench
