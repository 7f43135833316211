// Sizes in whole units. PURE
#pragma once

#include <concepts>
#include <type_traits>

namespace rueda {

// The least multiple of `unit` that is not below `size`.
template <std::integral T>
constexpr T RoundUp(T size, std::type_identity_t<T> unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace rueda
