// ops/kernels against a plain scalar model, bit for bit, on every instruction set that this machine
// has.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "ops/kernels/reduce.h"

namespace rueda::kernels {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr DType kDTypes[] = {DType::kUInt8,   DType::kInt8,    DType::kInt32,
                             DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                             DType::kFloat32, DType::kFloat64, DType::kBool};
constexpr DType kFloatingDTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                     DType::kFloat64};
constexpr DType kHalfDTypes[] = {DType::kFloat16, DType::kBFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr int kSourceCounts[] = {1, 2, 3, 5, 8};

std::string Describe(DType dtype, ReduceOp op, size_t sources, size_t count) {
  return std::string(DTypeName(dtype)) + " " + std::string(ReduceOpName(op)) + " of " +
         std::to_string(sources) + " sources, " + std::to_string(count) + " elements";
}

// ---- the model: one element at a time, each type by its definition ----

// A 16-bit floating type by its two numbers.
struct HalfFormat {
  int exponent_bits;
  int mantissa_bits;

  int exponent_min() const { return 2 - (1 << (exponent_bits - 1)); }
  uint16_t infinity() const {
    return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  }
  uint16_t quiet_nan() const {
    return static_cast<uint16_t>(infinity() | 1 << (mantissa_bits - 1));
  }

  double Decode(uint16_t bits) const {
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const uint16_t magnitude = bits & 0x7fff;
    if (magnitude > infinity()) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude == infinity()) return sign * std::numeric_limits<double>::infinity();
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return sign * std::ldexp(mantissa, exponent_min() - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits),
                             exponent_min() + exponent - 1 - mantissa_bits);
  }

  uint16_t Encode(double value) const {
    if (std::isnan(value)) return quiet_nan();
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    if (std::isinf(magnitude)) return sign | infinity();
    const int exponent = std::max(std::ilogb(magnitude), exponent_min());
    // In units of the last place; the default rounding mode is to nearest, ties to even.
    const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    const int64_t bits =
        (int64_t{exponent - exponent_min()} << mantissa_bits) + static_cast<int64_t>(units);
    return sign | static_cast<uint16_t>(std::min<int64_t>(bits, infinity()));
  }
};

HalfFormat FormatOf(DType dtype) {
  return dtype == DType::kFloat16 ? HalfFormat{5, 10} : HalfFormat{8, 7};
}

template <class T>
T Get(const Bytes& from, size_t i) {
  T value;
  std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void Put(T value, Bytes* to, size_t i) {
  std::memcpy(to->data() + i * sizeof(T), &value, sizeof(T));
}

// The steps of one floating-point element, in the type T that is summed in.
template <class T>
T FloatingElement(ReduceOp op, const std::vector<T>& operands, const Scaling& scaling) {
  T result = 0;
  for (size_t k = 0; k < operands.size(); ++k) {
    T operand = operands[k];
    if (scaling.prescale != 1) operand = operand * static_cast<T>(scaling.prescale);
    if (k == 0) {
      result = operand;
    } else if (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
      result = result + operand;
    } else if (op == ReduceOp::kProduct) {
      result = result * operand;
    } else if (std::isnan(result) || std::isnan(operand)) {
      result = std::numeric_limits<T>::quiet_NaN();
    } else if (op == ReduceOp::kMin ? operand < result : operand > result) {
      result = operand;
    }
  }
  if (scaling.divisor != 1) result = result / static_cast<T>(scaling.divisor);
  if (scaling.postscale != 1) result = result * static_cast<T>(scaling.postscale);
  return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : result;
}

template <class T>
T ScaleInteger(T value, double factor) {
  if (factor == 1) return value;
  const double product = std::trunc(static_cast<double>(value) * factor);
  if (std::isnan(product)) return 0;
  // Far beyond any of the types, far within __int128.
  const auto wide = static_cast<__int128>(std::clamp(product, -0x1p100, 0x1p100));
  return static_cast<T>(
      std::clamp<__int128>(wide, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

template <class T>
T IntegerElement(ReduceOp op, const std::vector<T>& operands, const Scaling& scaling) {
  T result = ScaleInteger(operands[0], scaling.prescale);
  for (size_t k = 1; k < operands.size(); ++k) {
    const T operand = ScaleInteger(operands[k], scaling.prescale);
    const auto a = static_cast<unsigned __int128>(result);
    const auto b = static_cast<unsigned __int128>(operand);
    if (op == ReduceOp::kMin) {
      result = std::min(result, operand);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, operand);
    } else {
      result = static_cast<T>(op == ReduceOp::kProduct ? a * b : a + b);
    }
  }
  const auto quotient = static_cast<T>(__int128{result} / scaling.divisor);
  return ScaleInteger(quotient, scaling.postscale);
}

bool BoolElement(ReduceOp op, const std::vector<uint8_t>& operands) {
  const auto is_true = [](uint8_t byte) { return byte != 0; };
  if (op == ReduceOp::kMin || op == ReduceOp::kProduct) {
    return std::all_of(operands.begin(), operands.end(), is_true);
  }
  return std::any_of(operands.begin(), operands.end(), is_true);
}

template <class T>
std::vector<T> Operands(const std::vector<Bytes>& sources, size_t i) {
  std::vector<T> operands;
  for (const Bytes& source : sources) operands.push_back(Get<T>(source, i));
  return operands;
}

void ModelElement(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, size_t i,
                  const Scaling& scaling, Bytes* out) {
  const auto integer = [&](auto zero) {
    using T = decltype(zero);
    Put(IntegerElement(op, Operands<T>(sources, i), scaling), out, i);
  };
  switch (dtype) {
    case DType::kUInt8:
      return integer(uint8_t{});
    case DType::kInt8:
      return integer(int8_t{});
    case DType::kInt32:
      return integer(int32_t{});
    case DType::kInt64:
      return integer(int64_t{});
    case DType::kFloat32:
      return Put(FloatingElement(op, Operands<float>(sources, i), scaling), out, i);
    case DType::kFloat64:
      return Put(FloatingElement(op, Operands<double>(sources, i), scaling), out, i);
    case DType::kBool:
      return Put<uint8_t>(BoolElement(op, Operands<uint8_t>(sources, i)), out, i);
    case DType::kFloat16:
    case DType::kBFloat16: {
      const HalfFormat format = FormatOf(dtype);
      std::vector<float> operands;
      for (uint16_t bits : Operands<uint16_t>(sources, i)) {
        operands.push_back(static_cast<float>(format.Decode(bits)));
      }
      return Put(format.Encode(FloatingElement(op, operands, scaling)), out, i);
    }
    default:
      FAIL() << DTypeName(dtype);
  }
}

Bytes Model(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, const Scaling& scaling) {
  if (sources.size() == 1 && scaling.none() && dtype != DType::kBool) return sources[0];
  Bytes out(sources[0].size());
  for (size_t i = 0; i < out.size() / DTypeSize(dtype); ++i) {
    ModelElement(dtype, op, sources, i, scaling, &out);
  }
  return out;
}

// ---- data ----

// Half of the elements any bits at all, half small numbers.
Bytes RandomElements(DType dtype, size_t count, std::mt19937_64* random) {
  Bytes out(count * DTypeSize(dtype));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>((*random)() >> 32);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = (*random)();
    if ((bits >> 40 & 1) == 0) continue;
    const int small = static_cast<int>(bits % 25) - 12;
    switch (dtype) {
      case DType::kUInt8:
      case DType::kInt8:
        Put(static_cast<int8_t>(small), &out, i);
        break;
      case DType::kBool:
        Put<uint8_t>(0, &out, i);
        break;
      case DType::kInt32:
        Put<int32_t>(small, &out, i);
        break;
      case DType::kInt64:
        Put<int64_t>(small, &out, i);
        break;
      case DType::kFloat16:
      case DType::kBFloat16:
        Put(FormatOf(dtype).Encode(small / 7.0), &out, i);
        break;
      case DType::kFloat32:
        Put<float>(static_cast<float>(small) / 7, &out, i);
        break;
      case DType::kFloat64:
        Put<double>(small / 7.0, &out, i);
        break;
      default:
        break;
    }
  }
  return out;
}

std::vector<Bytes> RandomSources(DType dtype, size_t sources, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bytes> out;
  for (size_t k = 0; k < sources; ++k) out.push_back(RandomElements(dtype, count, &random));
  return out;
}

// Zeros, subnormals, the edges of the range, infinities, quiet and signalling NaNs with payloads.
std::vector<uint64_t> SpecialBits(int exponent_bits, int mantissa_bits) {
  const uint64_t one = 1;
  const uint64_t infinity = ((one << exponent_bits) - 1) << mantissa_bits;
  const uint64_t sign = one << (exponent_bits + mantissa_bits);
  const uint64_t unit = (infinity >> 1) & ~((one << mantissa_bits) - 1);
  std::vector<uint64_t> out = {0,
                               1,
                               (one << mantissa_bits) - 1,
                               one << mantissa_bits,
                               unit,
                               unit + 1,
                               infinity - 1,
                               infinity,
                               infinity + 1,
                               infinity + (one << (mantissa_bits - 1)) + 5};
  for (size_t i = 0, n = out.size(); i < n; ++i) out.push_back(out[i] | sign);
  return out;
}

std::vector<uint64_t> SpecialBits(DType dtype) {
  if (dtype == DType::kFloat64) return SpecialBits(11, 52);
  if (dtype == DType::kFloat32) return SpecialBits(8, 23);
  return SpecialBits(FormatOf(dtype).exponent_bits, FormatOf(dtype).mantissa_bits);
}

// Every triple of special values.
std::vector<Bytes> SpecialSources(DType dtype) {
  const std::vector<uint64_t> values = SpecialBits(dtype);
  const size_t n = values.size(), size = DTypeSize(dtype);
  std::vector<Bytes> out(3, Bytes(n * n * n * size));
  for (size_t i = 0; i < n * n * n; ++i) {
    const size_t pick[] = {i / (n * n), i / n % n, i % n};
    for (size_t k = 0; k < 3; ++k) std::memcpy(&out[k][i * size], &values[pick[k]], size);
  }
  return out;
}

// ---- running ----

Bytes RunReduce(DType dtype, ReduceOp op, const std::vector<Bytes>& sources,
                const Scaling& scaling = {}) {
  Bytes out(sources[0].size(), 0xcd);
  std::vector<const void*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Reduce(dtype, op, pointers, out.data(), static_cast<int64_t>(out.size() / DTypeSize(dtype)),
         scaling);
  return out;
}

// The first `bytes` of each source, so placed that it starts `shift` (plus something of its own)
// after an allocation's start and ends at its end; the destination has guards on both sides.
void ExpectPrefix(DType dtype, ReduceOp op, const std::vector<Bytes>& sources,
                  const Bytes& expected, size_t count, size_t shift, const Scaling& scaling = {}) {
  SCOPED_TRACE(Describe(dtype, op, sources.size(), count) + ", shift " + std::to_string(shift));
  const size_t bytes = count * DTypeSize(dtype);
  std::vector<Bytes> placed;
  std::vector<const void*> pointers;
  for (size_t k = 0; k < sources.size(); ++k) {
    Bytes block((shift + k * DTypeSize(dtype)) % 64);
    const size_t start = block.size();
    block.insert(block.end(), sources[k].begin(), sources[k].begin() + bytes);
    placed.push_back(std::move(block));
    pointers.push_back(placed.back().data() + start);
  }
  constexpr size_t kGuard = 64;
  Bytes out(kGuard + shift + bytes + kGuard, 0xcd);
  Bytes wanted = out;
  std::copy_n(expected.begin(), bytes, wanted.begin() + kGuard + shift);
  Reduce(dtype, op, pointers, out.data() + kGuard + shift, static_cast<int64_t>(count), scaling);
  const size_t wrong = std::mismatch(out.begin(), out.end(), wanted.begin()).first - out.begin();
  EXPECT_EQ(wrong, out.size()) << "byte " << static_cast<int64_t>(wrong - kGuard - shift);
}

void ExpectModel(DType dtype, ReduceOp op, const std::vector<Bytes>& sources,
                 const Scaling& scaling = {}) {
  const Bytes out = RunReduce(dtype, op, sources, scaling);
  const Bytes expected = Model(dtype, op, sources, scaling);
  const size_t wrong = std::mismatch(out.begin(), out.end(), expected.begin()).first - out.begin();
  if (wrong == out.size()) return;
  const size_t size = DTypeSize(dtype), i = wrong / size;
  const auto hex = [&](const Bytes& from) {
    uint64_t bits = 0;
    std::memcpy(&bits, from.data() + i * size, size);
    char text[24];
    std::snprintf(text, sizeof(text), " %0*llx", static_cast<int>(2 * size),
                  static_cast<unsigned long long>(bits));
    return std::string(text);
  };
  std::string operands;
  for (const Bytes& source : sources) operands += hex(source);
  ADD_FAILURE() << Describe(dtype, op, sources.size(), out.size() / size) << ": element " << i
                << " of" << operands << " is" << hex(out) << ", wanted" << hex(expected)
                << " (prescale " << scaling.prescale << ", divisor " << scaling.divisor
                << ", postscale " << scaling.postscale << ")";
}

// This machine's, of those that Highway compiles for; vectors.cc leaves out SSSE3.
std::vector<int64_t> Targets() {
  std::vector<int64_t> out = hwy::SupportedAndGeneratedTargets();
  std::erase(out, HWY_SSSE3);
  return out;
}

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: the machine's
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class KernelsTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { UseTargets(GetParam()); }
  void TearDown() override { UseTargets(0); }
};

INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(Targets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

// ---- reduction ----

TEST_P(KernelsTest, EveryCountTypeAndOperationAgreesWithTheModel) {
  std::vector<size_t> counts;
  for (size_t count = 0; count <= 70; ++count) counts.push_back(count);
  for (size_t count : {127, 128, 129, 255, 256, 257, 511, 1025, 1500}) counts.push_back(count);
  for (DType dtype : kDTypes) {
    for (ReduceOp op : kOps) {
      if (!CheckReducible(dtype, op).ok()) continue;
      for (size_t n : kSourceCounts) {
        const auto sources = RandomSources(dtype, n, counts.back(), n);
        const Bytes expected = Model(dtype, op, sources, {});
        for (size_t count : counts) {
          ExpectPrefix(dtype, op, sources, expected, count, count * DTypeSize(dtype) % 64);
        }
      }
    }
  }
}

TEST_P(KernelsTest, EveryAlignmentAgreesWithTheModel) {
  for (DType dtype : kDTypes) {
    const auto sources = RandomSources(dtype, 3, 777, 1);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
      const Bytes expected = Model(dtype, op, sources, {});
      for (size_t shift = 0; shift < 64; ++shift) {
        ExpectPrefix(dtype, op, sources, expected, 777, shift);
      }
    }
  }
}

TEST_P(KernelsTest, DestinationMayBeAnyOfTheSources) {
  const Scaling scaled{0.5, 3, 2};
  for (DType dtype : kDTypes) {
    for (size_t n : kSourceCounts) {
      for (size_t count : {7, 300, 5000}) {
        for (const Scaling& scaling : {Scaling(), scaled}) {
          const auto sources = RandomSources(dtype, n, count, n + count);
          const Bytes expected = Model(dtype, ReduceOp::kSum, sources, scaling);
          for (size_t target = 0; target < n; ++target) {
            SCOPED_TRACE(Describe(dtype, ReduceOp::kSum, n, count) + " into source " +
                         std::to_string(target));
            auto working = sources;
            std::vector<const void*> pointers;
            for (const Bytes& source : working) pointers.push_back(source.data());
            Reduce(dtype, ReduceOp::kSum, pointers, working[target].data(),
                   static_cast<int64_t>(count), scaling);
            for (size_t k = 0; k < n; ++k) {
              EXPECT_TRUE(working[k] == (k == target ? expected : sources[k])) << "source " << k;
            }
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, DestinationMayBeSeveralSources) {
  for (DType dtype : kDTypes) {
    auto sources = RandomSources(dtype, 3, 1000, 5);
    sources[2] = sources[0];
    const Bytes expected = Model(dtype, ReduceOp::kSum, sources, {});
    Bytes both = sources[0];
    const void* const pointers[] = {both.data(), sources[1].data(), both.data()};
    Reduce(dtype, ReduceOp::kSum, pointers, both.data(), 1000, {});
    EXPECT_TRUE(both == expected) << DTypeName(dtype);
  }
}

TEST_P(KernelsTest, EveryCombinationOfScalingAgreesWithTheModel) {
  for (DType dtype : kDTypes) {
    for (ReduceOp op : kOps) {
      if (!CheckReducible(dtype, op).ok()) continue;
      for (size_t n : {1, 2, 3}) {
        const auto sources = RandomSources(dtype, n, 333, 17 * n);
        for (double prescale : {1.0, 1 / 3.0, -2.5}) {
          for (double postscale : {1.0, 0.1, 1e3}) {
            for (int64_t divisor : {1, 3, 8, 1000003}) {
              ExpectModel(dtype, op, sources, {prescale, postscale, divisor});
            }
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, SpecialValuesAgreeWithTheModel) {
  for (DType dtype : kFloatingDTypes) {
    const auto sources = SpecialSources(dtype);
    for (ReduceOp op : kOps) {
      ExpectModel(dtype, op, sources);
      ExpectModel(dtype, op, sources, {0.5, 1, 3});
      ExpectModel(dtype, op, sources, {1, 1e-3, 1});
      ExpectModel(dtype, op, {sources[1], sources[2]}, {1, 1, 4});
      ExpectModel(dtype, op, {sources[2]}, {0.5, 1, 1});
    }
  }
}

TEST_P(KernelsTest, AnyNaNMakesTheMinimumAndTheMaximumNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float rows[][3] = {{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}, {nan, nan, 1}};
  for (const auto& row : rows) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const void* const pointers[] = {&row[0], &row[1], &row[2]};
      float out = 0;
      Reduce(DType::kFloat32, op, pointers, &out, 1, {});
      EXPECT_TRUE(std::isnan(out));
    }
  }
}

TEST_P(KernelsTest, OfTwoZerosTheEarlierOneIsTheMinimumAndTheMaximum) {
  const double plus = 0.0, minus = -0.0;
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    double out = 1;
    const void* const minus_first[] = {&minus, &plus};
    Reduce(DType::kFloat64, op, minus_first, &out, 1, {});
    EXPECT_TRUE(std::signbit(out));
    const void* const plus_first[] = {&plus, &minus};
    Reduce(DType::kFloat64, op, plus_first, &out, 1, {});
    EXPECT_FALSE(std::signbit(out));
  }
}

TEST_P(KernelsTest, HalfTypesAreSummedInFloat32AndRoundedOnce) {
  // Step by step in float16, 2048 + 1 is 2048 and stays there.
  const uint16_t large = 0x6800, one = 0x3c00;
  const void* const half[] = {&large, &one, &one};
  uint16_t out = 0;
  Reduce(DType::kFloat16, ReduceOp::kSum, half, &out, 1, {});
  EXPECT_EQ(out, 0x6801);  // 2050
  // The same in bfloat16, 256 + 1 + 1 = 258.
  const uint16_t large_brain = 0x4380, one_brain = 0x3f80;
  const void* const brain[] = {&large_brain, &one_brain, &one_brain};
  Reduce(DType::kBFloat16, ReduceOp::kSum, brain, &out, 1, {});
  EXPECT_EQ(out, 0x4381);
}

TEST_P(KernelsTest, IntegerScalingTruncatesTowardsZeroAndSaturates) {
  const auto scaled = [](int32_t value, const Scaling& scaling) {
    const void* const source[] = {&value};
    int32_t out = 0;
    Reduce(DType::kInt32, ReduceOp::kSum, source, &out, 1, scaling);
    return out;
  };
  EXPECT_EQ(scaled(-7, {.divisor = 2}), -3);
  EXPECT_EQ(scaled(7, {.divisor = 2}), 3);
  EXPECT_EQ(scaled(-7, {.prescale = 0.5}), -3);
  EXPECT_EQ(scaled(7, {.postscale = 0.5}), 3);
  EXPECT_EQ(scaled(1 << 30, {.prescale = 2}), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(scaled(1 << 30, {.prescale = -3}), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(scaled(0, {.prescale = std::numeric_limits<double>::infinity()}), 0);
  const int64_t quarter = int64_t{1} << 62;  // doubled: one more than the largest
  const void* const source[] = {&quarter};
  int64_t out = 0;
  Reduce(DType::kInt64, ReduceOp::kSum, source, &out, 1, {.prescale = 2});
  EXPECT_EQ(out, std::numeric_limits<int64_t>::max());
}

TEST_P(KernelsTest, IntegersWrapAround) {
  const int8_t bytes[] = {100, 100};
  const void* const byte_sources[] = {&bytes[0], &bytes[1]};
  int8_t byte = 0;
  Reduce(DType::kInt8, ReduceOp::kSum, byte_sources, &byte, 1, {});
  EXPECT_EQ(byte, -56);
  Reduce(DType::kInt8, ReduceOp::kProduct, byte_sources, &byte, 1, {});
  EXPECT_EQ(byte, 16);
  const int64_t large = int64_t{3} << 62, sources[] = {large, 5};
  const void* const long_sources[] = {&sources[0], &sources[1]};
  int64_t product = 0;
  Reduce(DType::kInt64, ReduceOp::kProduct, long_sources, &product, 1, {});
  EXPECT_EQ(product, static_cast<int64_t>(static_cast<uint64_t>(large) * 5));
}

// ---- conversion ----

TEST_P(KernelsTest, WideningIsExactForAllPatterns) {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (DType dtype : kHalfDTypes) {
    std::vector<float> out(patterns.size());
    ToFloat32(dtype, patterns.data(), out.data(), static_cast<int64_t>(out.size()));
    size_t wrong = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto expected = static_cast<float>(FormatOf(dtype).Decode(patterns[i]));
      const bool same =
          std::isnan(expected) ? std::isnan(out[i]) : std::memcmp(&out[i], &expected, 4) == 0;
      if (!same && ++wrong <= 5) ADD_FAILURE() << DTypeName(dtype) << " " << i << ": " << out[i];
    }
    EXPECT_EQ(wrong, 0u);
  }
}

// All over float32, and every value of the half types and every midpoint between two, with
// neighbours.
std::vector<float> ValuesToNarrow() {
  std::vector<float> out;
  const auto add = [&out](uint64_t bits) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  };
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 3989) add(bits);
  for (DType dtype : kHalfDTypes) {
    const HalfFormat format = FormatOf(dtype);
    for (uint16_t bits = 0; bits < format.infinity(); ++bits) {
      const double low = format.Decode(bits);
      // What would follow the largest finite value if the range went on.
      const double high = bits + 1 < format.infinity() ? format.Decode(bits + 1)
                                                       : 2 * low - format.Decode(bits - 1);
      for (double value : {low, (low + high) / 2}) {
        const auto pattern = std::bit_cast<uint32_t>(static_cast<float>(value));
        for (uint32_t near : {pattern - 1, pattern, pattern + 1}) {
          add(near);
          add(near | 0x80000000u);
        }
      }
    }
  }
  return out;
}

TEST_P(KernelsTest, NarrowingRoundsToNearestEven) {
  static const auto* const values = new std::vector<float>(ValuesToNarrow());
  for (DType dtype : kHalfDTypes) {
    const HalfFormat format = FormatOf(dtype);
    std::vector<uint16_t> out(values->size());
    FromFloat32(dtype, values->data(), out.data(), static_cast<int64_t>(out.size()));
    size_t wrong = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const float value = (*values)[i];
      const uint16_t expected = format.Encode(value);
      if (out[i] != expected && ++wrong <= 5) {
        ADD_FAILURE() << DTypeName(dtype) << " of " << std::hexfloat << value << ": " << std::hex
                      << out[i] << ", wanted " << expected;
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

TEST_P(KernelsTest, ConversionsTouchNothingBeyondTheirCount) {
  std::mt19937_64 random(1);
  for (DType dtype : kHalfDTypes) {
    const HalfFormat format = FormatOf(dtype);
    for (size_t count = 0; count <= 70; ++count) {
      std::vector<float> wide(count);
      for (float& value : wide) value = static_cast<float>(random() % 1000) / 7;
      std::vector<uint16_t> narrow(count + 2, 0xcdcd);
      FromFloat32(dtype, wide.data(), narrow.data() + 1, static_cast<int64_t>(count));
      EXPECT_EQ(narrow.front(), 0xcdcd);
      EXPECT_EQ(narrow.back(), 0xcdcd);
      const std::vector<uint16_t> source(narrow.begin() + 1, narrow.end() - 1);
      std::vector<float> back(count + 2, -1);
      ToFloat32(dtype, source.data(), back.data() + 1, static_cast<int64_t>(count));
      EXPECT_EQ(back.front(), -1);
      EXPECT_EQ(back.back(), -1);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(source[i], format.Encode(wide[i]));
        EXPECT_EQ(back[i + 1], static_cast<float>(format.Decode(source[i])));
      }
    }
  }
}

// ---- all targets together ----

// Every pattern of the half types, and any bits of the others, NaNs with payloads among them.
std::vector<Bytes> RunEverything() {
  std::vector<Bytes> results;
  for (DType dtype : kDTypes) {
    for (ReduceOp op : kOps) {
      if (!CheckReducible(dtype, op).ok()) continue;
      for (const Scaling& scaling : {Scaling{}, Scaling{0.3, 7, 3}}) {
        results.push_back(RunReduce(dtype, op, RandomSources(dtype, 4, 3001, 9), scaling));
        if (!IsFloating(dtype)) continue;
        results.push_back(RunReduce(dtype, op, SpecialSources(dtype), scaling));
      }
    }
  }
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (DType dtype : kHalfDTypes) {
    Bytes wide(4 * patterns.size());
    ToFloat32(dtype, patterns.data(), reinterpret_cast<float*>(wide.data()), 65536);
    results.push_back(std::move(wide));
  }
  return results;
}

TEST(KernelsAllTargetsTest, BitsAreTheSameOnEveryInstructionSet) {
  std::vector<Bytes> first;
  for (int64_t target : Targets()) {
    UseTargets(target);
    const std::vector<Bytes> results = RunEverything();
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i] == first[i]) << "result " << i << " on " << hwy::TargetName(target)
                                          << " and " << hwy::TargetName(Targets().front());
    }
  }
  UseTargets(0);
}

TEST(KernelsThreadsTest, ThreadsMayMakeTheFirstCallTogether) {
  const auto sources = RandomSources(DType::kFloat32, 2, 1000, 3);
  const Bytes expected = Model(DType::kFloat32, ReduceOp::kSum, sources, {});
  hwy::GetChosenTarget().DeInit();
  std::vector<Bytes> results(4);
  std::vector<std::thread> threads;
  for (Bytes& result : results) {
    threads.emplace_back([&] { result = RunReduce(DType::kFloat32, ReduceOp::kSum, sources); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& result : results) EXPECT_TRUE(result == expected);
}

// ---- refusals ----

TEST(KernelsCheckTest, OnlyTheAverageOfBoolAndNoOperationAreRefused) {
  for (DType dtype : kDTypes) {
    for (ReduceOp op : kOps) {
      const bool refused = dtype == DType::kBool && op == ReduceOp::kAverage;
      EXPECT_EQ(CheckReducible(dtype, op).ok(), !refused) << Describe(dtype, op, 1, 1);
    }
    EXPECT_EQ(CheckReducible(dtype, ReduceOp::kNone).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(KernelsCheckTest, TheRefusalOfABoolAverageSaysWhatToDo) {
  const absl::Status status = CheckReducible(DType::kBool, ReduceOp::kAverage);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("convert to float32"), absl::string_view::npos) << status;
}

TEST(KernelsCheckTest, NothingIsTouchedWhenThereIsNothingToDo) {
  const void* const none[] = {nullptr, nullptr};
  for (DType dtype : kDTypes) Reduce(dtype, ReduceOp::kSum, none, nullptr, 0, {});
  ToFloat32(DType::kFloat16, nullptr, nullptr, 0);
  FromFloat32(DType::kBFloat16, nullptr, nullptr, 0);
}

TEST(KernelsCheckDeathTest, ABrokenCallIsOurOwnBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  float value = 1;
  const void* const source[] = {&value};
  EXPECT_DEATH(Reduce(DType::kFloat32, ReduceOp::kNone, source, &value, 1, {}), "none of float32");
  EXPECT_DEATH(Reduce(DType::kFloat32, ReduceOp::kSum, source, &value, 1, {.divisor = 0}),
               "divisor");
}

}  // namespace
}  // namespace rueda::kernels
