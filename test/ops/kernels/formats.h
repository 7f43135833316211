// The floating types narrower than float32 by their definition, one element at a time: what the
// kernels' conversions are compared with. PURE
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/tensor/dtype.h"

namespace rueda::kernels {

// Patterns are right-aligned in 16 bits.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // else only the pattern of ones is no number, and too large values are it

  int exponent_min() const { return 2 - (1 << (exponent_bits - 1)); }
  uint16_t sign() const { return static_cast<uint16_t>(1 << (exponent_bits + mantissa_bits)); }
  // Infinity where there is one, else the NaN: all above are NaN, all below are finite.
  uint16_t too_large() const {
    const int fraction = has_infinity ? (1 << mantissa_bits) - 1 : 0;
    return static_cast<uint16_t>((sign() - 1) & ~fraction);
  }
  uint16_t quiet_nan() const {
    return static_cast<uint16_t>(too_large() | (1 << (mantissa_bits - 1)));
  }

  double Decode(uint16_t bits) const {
    const double factor = (bits & sign()) != 0 ? -1 : 1;
    const int magnitude = bits & (sign() - 1);
    if (magnitude == too_large() && has_infinity) {
      return factor * std::numeric_limits<double>::infinity();
    }
    if (magnitude >= too_large()) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return factor * std::ldexp(mantissa, exponent_min() - mantissa_bits);
    return factor * std::ldexp(mantissa + (1 << mantissa_bits),
                               exponent_min() + exponent - 1 - mantissa_bits);
  }

  // The distance to the next value at this one's magnitude.
  double UnitOf(double value) const {
    const int exponent = value == 0 ? exponent_min() : std::max(std::ilogb(value), exponent_min());
    return std::ldexp(1, exponent - mantissa_bits);
  }

  uint16_t Encode(double value) const {
    if (std::isnan(value)) return quiet_nan();
    const uint16_t signed_zero = std::signbit(value) ? sign() : 0;
    if (value == 0) return signed_zero;
    if (std::isinf(value)) return signed_zero | too_large();
    const double unit = UnitOf(value);
    // The default rounding mode is to nearest, ties to even.
    const auto units = static_cast<int64_t>(std::nearbyint(std::fabs(value) / unit));
    const int64_t binades = std::ilogb(unit) - (exponent_min() - mantissa_bits);
    const int64_t bits = (binades << mantissa_bits) + units;
    return signed_zero | static_cast<uint16_t>(std::min<int64_t>(bits, too_large()));
  }
};

inline constexpr DType kNarrowDTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3FN,
                                          DType::kFloat8E5M2};

inline FloatFormat FormatOf(DType dtype) {
  if (dtype == DType::kFloat16) return {5, 10, true};
  if (dtype == DType::kBFloat16) return {8, 7, true};
  if (dtype == DType::kFloat8E5M2) return {5, 2, true};
  return {4, 3, false};
}

}  // namespace rueda::kernels
