// A bfloat16, which the compiler does not have (its float16: float16.h). PURE
#pragma once

#include <bit>
#include <cstdint>

namespace rueda::testing {

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  // Rounded to nearest, ties to even.
  explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  friend bool operator==(BFloat16 a, BFloat16 b) { return a.bits == b.bits; }
};

}  // namespace rueda::testing
