// How parameters that are moved together lie in memory. PURE
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "bindings/torch/strategies/base.h"

namespace rueda::libtorch {

// A tensor of equal shares, one a rank, in which parameters on one device, of one type and one of
// the optimizer's groups lie one after another; between them, and at the end, may be a few elements
// of nothing.
struct BucketLayout {
  struct Member {
    size_t parameter;  // by place
    int64_t begin;     // element
  };
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  size_t group = 0;
  std::vector<Member> members;
  int64_t used = 0;   // elements
  int64_t share = 0;  // elements
};

struct BucketRules {
  int ranks;
  int64_t bytes_max;  // but for a bucket of one piece
  // A module's own parameters are one piece, and no two buckets' shares have one size. Else each
  // parameter is.
  bool of_modules;
};

// Of those that are not frozen. The last parameters come first, as in backward passes.
std::vector<BucketLayout> LayOutBuckets(const std::vector<Parameter>& parameters,
                                        const BucketRules& rules);

// A parameter in a bucket's memory, where it begins.
at::Tensor ViewOf(const at::Tensor& memory, const at::Tensor& parameter, int64_t begin);

}  // namespace rueda::libtorch
