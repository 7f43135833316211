// Sizes in whole units. PURE
#pragma once

#include <cstddef>

namespace rueda {

// The least multiple of `unit` that is not below `bytes`.
constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace rueda
