// The arithmetic on single elements, to the bit that of ops/kernels/reduce.h, on the device and on
// the host. Compiled without fused multiply-adds and with denormal numbers.
//
// A *lane type* says how an element lies in memory and in what it is combined:
//   Element, Wide       the two types
//   kHasFactors         whether operands and results are multiplied and divided where that is asked
//   kIsNumber           whether that is done in floating point, in the type that is combined in
//   Widen, Narrow       from and to memory; Narrow of floating types stores the canonical NaN
#pragma once

#include <limits>
#include <type_traits>

#include "ops/nccl/kernels/thread_index.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace rueda::cuda {

// Numbered as rueda::DType, rueda::ReduceOp and rueda::Compressor, which on_host.cc checks.
enum Type : int32_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat16 = 4,
  kBFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 8,
  kInt16 = 9,
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8E4M3FN = 15,
  kFloat8E5M2 = 16,
};
enum Operation : int32_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
  kAdasum = 8,
  kAverageLive = 9,
};
enum Codec : int32_t { kCodecFloat16 = 1, kCodecBFloat16 = 2, kCodecInt8 = 4 };

// 0: there is no such type.
inline int64_t BytesOf(int32_t type) {
  constexpr int64_t kBytes[] = {1, 1, 4, 8, 2, 2, 4, 8, 1, 2, 2, 4, 8, 8, 16, 1, 1};
  return type >= 0 && type <= kFloat8E5M2 ? kBytes[type] : 0;
}

// ---- bits ----

RUEDA_HOST_DEVICE inline uint32_t BitsOf(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

RUEDA_HOST_DEVICE inline float FloatOf(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

RUEDA_HOST_DEVICE inline float Canonical(float value) {
  return value == value ? value : FloatOf(0x7fc00000);
}

RUEDA_HOST_DEVICE inline double Canonical(double value) {
#if defined(__CUDA_ARCH__)
  return value == value ? value : __longlong_as_double(0x7ff8000000000000);
#else
  return value == value ? value : std::numeric_limits<double>::quiet_NaN();
#endif
}

// ---- floating types narrower than float32 ----

// By two numbers, in integer arithmetic. With an infinity the largest exponent means infinity and
// NaN; without, only the pattern of ones alone is NaN, and it is what too large values become, of
// either sign. Widened NaNs are some NaN; what is narrowed is no other NaN than the canonical one.
template <class Memory, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kOnes = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr uint32_t kFraction = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kTooLarge = kHasInfinity ? kOnes & ~kFraction : kOnes;
  static constexpr uint32_t kNaN = kHasInfinity ? kOnes & ~(kFraction >> 1) : kOnes;

  RUEDA_HOST_DEVICE static float Widen(Memory memory) {
    const uint32_t magnitude = memory & kOnes;
    const uint32_t sign = (memory ^ magnitude) << kSignShift;
    if (magnitude > kTooLarge || (!kHasInfinity && magnitude == kTooLarge)) {
      return FloatOf(0x7fc00000);
    }
    if (kHasInfinity && magnitude == kTooLarge) return FloatOf(0x7f800000 | sign);
    if (magnitude > kFraction) {
      return FloatOf(((magnitude << kShift) + ((127 - kBias) << 23)) | sign);
    }
    // A subnormal's fraction is read as that of the smallest normal exponent, and the 1 before it
    // taken away.
    const uint32_t unit = (128 - kBias) << 23;
    const float small = FloatOf((magnitude << kShift) + unit) - FloatOf(unit);
    return FloatOf(BitsOf(small) | sign);
  }

  RUEDA_HOST_DEVICE static Memory Narrow(float value) {
    const uint32_t word = BitsOf(value);
    const uint32_t magnitude = word & 0x7fffffff;
    const uint32_t sign = (word ^ magnitude) >> kSignShift;
    uint32_t narrow;
    if (magnitude > 0x7f800000) {
      narrow = kNaN;
    } else if (magnitude < (128 - kBias) << 23) {
      // Below the smallest normal number: the float32 whose last place is this type's smallest
      // subnormal is added, which rounds to multiples of that.
      const uint32_t unit = (151 - kBias - kMantissaBits) << 23;
      narrow = BitsOf(FloatOf(magnitude) + FloatOf(unit)) - unit;
    } else {
      // Rounds to nearest even. A carry out of the mantissa is right as it is, also into what is
      // too large.
      constexpr uint32_t kHalf = (1u << (kShift - 1)) - 1;
      const uint32_t odd = (magnitude >> kShift) & 1;
      narrow = (magnitude + odd + kHalf - ((127 - kBias) << 23)) >> kShift;
      narrow = narrow < kTooLarge ? narrow : kTooLarge;
    }
    return static_cast<Memory>(narrow | sign);
  }
};

using HostFloat16 = SmallFloat<uint16_t, 5, 10, true>;
using Float8E4M3FN = SmallFloat<uint8_t, 4, 3, false>;
using Float8E5M2 = SmallFloat<uint8_t, 5, 2, true>;

// The device's own conversions, which round as these do and keep denormal numbers; they have
// another NaN.
struct Float16 {
  RUEDA_HOST_DEVICE static float Widen(uint16_t memory) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(memory));
#else
    return HostFloat16::Widen(memory);
#endif
  }
  RUEDA_HOST_DEVICE static uint16_t Narrow(float value) {
#if defined(__CUDA_ARCH__)
    return value == value ? __half_as_ushort(__float2half_rn(value)) : HostFloat16::kNaN;
#else
    return HostFloat16::Narrow(value);
#endif
  }
};

struct BFloat16 {
  RUEDA_HOST_DEVICE static float Widen(uint16_t memory) {
    return FloatOf(static_cast<uint32_t>(memory) << 16);
  }
  RUEDA_HOST_DEVICE static uint16_t Narrow(float value) {
    if (value != value) return 0x7fc0;
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t word = BitsOf(value);
    return static_cast<uint16_t>((word + ((word >> 16) & 1) + 0x7fff) >> 16);
#endif
  }
};

// ---- lane types ----

// Integers wrap around: sums and products are those of the unsigned type.
template <class T>
struct Integer {
  using Element = T;
  using Wide = T;
  static constexpr bool kHasFactors = true;
  static constexpr bool kIsNumber = false;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return element; }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) { return wide; }
};

// For averages of at most 32 bits: their sums don't wrap around before they are divided.
template <class T>
struct ExactAverage {
  using Element = T;
  using Wide = int64_t;
  static constexpr bool kHasFactors = true;
  static constexpr bool kIsNumber = false;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return element; }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) { return static_cast<Element>(wide); }
};
template <class Lane>
inline constexpr bool kIsExactAverage = false;
template <class T>
inline constexpr bool kIsExactAverage<ExactAverage<T>> = true;

// Bytes that become 0 or 1.
struct Bool {
  using Element = uint8_t;
  using Wide = uint8_t;
  static constexpr bool kHasFactors = false;
  static constexpr bool kIsNumber = false;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return element != 0 ? 1 : 0; }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) { return wide; }
};

// float and double.
template <class T>
struct Real {
  using Element = T;
  using Wide = T;
  static constexpr bool kHasFactors = true;
  static constexpr bool kIsNumber = true;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return element; }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) { return Canonical(wide); }
};

template <class Format, class Memory>
struct Small {
  using Element = Memory;
  using Wide = float;
  static constexpr bool kHasFactors = true;
  static constexpr bool kIsNumber = true;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return Format::Widen(element); }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) { return Format::Narrow(Canonical(wide)); }
};

// For products; sums of complex numbers are those of their parts.
template <class T>
struct Pair {
  T real, imaginary;
};
template <class T>
struct Complex {
  using Element = Pair<T>;
  using Wide = Pair<T>;
  static constexpr bool kHasFactors = true;
  static constexpr bool kIsNumber = true;
  RUEDA_HOST_DEVICE static Wide Widen(Element element) { return element; }
  RUEDA_HOST_DEVICE static Element Narrow(Wide wide) {
    return {Canonical(wide.real), Canonical(wide.imaginary)};
  }
};

using Float16Lane = Small<Float16, uint16_t>;
using BFloat16Lane = Small<BFloat16, uint16_t>;
using Float8E4M3FNLane = Small<Float8E4M3FN, uint8_t>;
using Float8E5M2Lane = Small<Float8E5M2, uint8_t>;

// ---- factors ----

RUEDA_HOST_DEVICE inline float Times(float value, float factor) {
  return value * factor;
}
RUEDA_HOST_DEVICE inline double Times(double value, double factor) {
  return value * factor;
}
template <class T>
RUEDA_HOST_DEVICE inline Pair<T> Times(Pair<T> value, T factor) {
  return {value.real * factor, value.imaginary * factor};
}
RUEDA_HOST_DEVICE inline float Over(float value, float divisor) {
  return value / divisor;
}
RUEDA_HOST_DEVICE inline double Over(double value, double divisor) {
  return value / divisor;
}
template <class T>
RUEDA_HOST_DEVICE inline Pair<T> Over(Pair<T> value, T divisor) {
  return {value.real / divisor, value.imaginary / divisor};
}

template <class T>
inline constexpr T kLowest = std::numeric_limits<T>::min();
template <class T>
inline constexpr T kHighest = std::numeric_limits<T>::max();

// Of integers: in float64, truncated, saturating; 0 for NaN.
template <class T>
RUEDA_HOST_DEVICE inline T ScaleInteger(T value, double factor) {
  const double product = static_cast<double>(value) * factor;
  if (product >= static_cast<double>(kHighest<T>)) return kHighest<T>;
  if (product <= static_cast<double>(kLowest<T>)) return kLowest<T>;
  if (product != product) return 0;
  return static_cast<T>(product);
}

// The type that a lane's factors have.
template <class Wide>
struct FactorOf {
  using type = Wide;
};
template <class T>
struct FactorOf<Pair<T>> {
  using type = T;
};

// ---- operations ----

// At least as wide as unsigned: narrower ones would become int, and overflow.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(x) + static_cast<Wrapping<T>>(y));
    } else {
      return x + y;
    }
  }
};

struct Product {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(y));
    } else {
      return x * y;
    }
  }
  template <class T>
  RUEDA_HOST_DEVICE Pair<T> operator()(Pair<T> x, Pair<T> y) const {
    return {x.real * y.real - x.imaginary * y.imaginary,
            x.real * y.imaginary + x.imaginary * y.real};
  }
};

// A NaN once met stays, and of equal operands the earlier one does.
struct Minimum {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    return y < x || y != y ? y : x;
  }
};

struct Maximum {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    return y > x || y != y ? y : x;
  }
};

// One for all three: of `and` and `or` what both have, of `or` and `xor` what one of them has.
struct Bitwise {
  RUEDA_HOST_DEVICE explicit Bitwise(int32_t operation)
      : both(operation != kBitXor ? ~uint64_t{0} : 0),
        one(operation != kBitAnd ? ~uint64_t{0} : 0) {}
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    return static_cast<T>((x & y & static_cast<T>(both)) | ((x ^ y) & static_cast<T>(one)));
  }
  uint64_t both, one;
};

}  // namespace rueda::cuda
