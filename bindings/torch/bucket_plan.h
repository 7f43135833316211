// Which small gradients share an operation. PURE
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace rueda::libtorch {

struct SmallGradient {
  size_t slot;  // whose it is
  at::Device device;
  at::ScalarType type;
  size_t bytes;
};

struct BucketLimits {
  size_t bytes;
  size_t gradients;
};

// Buckets of neighbours, as far as they are on one device and of one type; by slot, in the order of
// `gradients`. A bucket's place is that of its first gradient. Does not depend on the devices'
// numbers, which ranks don't have in common, unless one rank has gradients on several.
inline std::vector<std::vector<size_t>> PlanBuckets(const std::vector<SmallGradient>& gradients,
                                                    const BucketLimits& limits) {
  struct Open {
    size_t bucket = 0;
    size_t bytes = 0;
  };
  std::vector<std::vector<size_t>> buckets;
  std::map<std::tuple<at::DeviceType, c10::DeviceIndex, at::ScalarType>, Open> open;
  for (const SmallGradient& gradient : gradients) {
    const auto [it, is_new] = open.try_emplace(
        std::make_tuple(gradient.device.type(), gradient.device.index(), gradient.type));
    Open& last = it->second;
    if (is_new || last.bytes + gradient.bytes > limits.bytes ||
        buckets[last.bucket].size() == limits.gradients) {
      last = {.bucket = buckets.size(), .bytes = 0};
      buckets.emplace_back();
    }
    buckets[last.bucket].push_back(gradient.slot);
    last.bytes += gradient.bytes;
  }
  return buckets;
}

}  // namespace rueda::libtorch
