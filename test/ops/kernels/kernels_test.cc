// ops/kernels against a plain scalar model, bit for bit, on every instruction set that this machine
// has.
#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "ops/kernels/reduce.h"
#include "test/ops/kernels/formats.h"
#include "test/ops/kernels/targets.h"

namespace rueda::kernels {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<DType> AllDTypes() {
  std::vector<DType> out;
  for (int i = 0; i < kDTypeCount; ++i) out.push_back(static_cast<DType>(i));
  return out;
}

std::vector<ReduceOp> AllOps() {
  std::vector<ReduceOp> out;
  for (int i = 0; i < kReduceOpCount; ++i) out.push_back(static_cast<ReduceOp>(i));
  return out;
}

// What Reduce takes; adasum_test.cc is about what it doesn't.
std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> out = AllOps();
  std::erase_if(
      out, [&](ReduceOp op) { return op == ReduceOp::kAdasum || !CheckReducible(dtype, op).ok(); });
  return out;
}

constexpr int kSourceCounts[] = {1, 2, 3, 5, 8};

std::string Describe(DType dtype, ReduceOp op, size_t sources, size_t count) {
  return std::string(DTypeName(dtype)) + " " + std::string(ReduceOpName(op)) + " of " +
         std::to_string(sources) + " sources, " + std::to_string(count) + " elements";
}

// ---- the model: one element at a time, each type by its definition ----

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
    } else if (op == ReduceOp::kSum || IsAverage(op)) {
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
  if (IsAverage(op) && sizeof(T) < sizeof(int64_t) && scaling.divisor != 1) {
    __int128 sum = 0;
    for (const T operand : operands) sum += ScaleInteger(operand, scaling.prescale);
    return ScaleInteger(static_cast<T>(sum / scaling.divisor), scaling.postscale);
  }
  T result = ScaleInteger(operands[0], scaling.prescale);
  for (size_t k = 1; k < operands.size(); ++k) {
    const T operand = ScaleInteger(operands[k], scaling.prescale);
    const auto a = static_cast<unsigned __int128>(result);
    const auto b = static_cast<unsigned __int128>(operand);
    if (op == ReduceOp::kMin) {
      result = std::min(result, operand);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, operand);
    } else if (op == ReduceOp::kProduct) {
      result = static_cast<T>(a * b);
    } else if (op == ReduceOp::kBitAnd) {
      result = static_cast<T>(a & b);
    } else if (op == ReduceOp::kBitOr) {
      result = static_cast<T>(a | b);
    } else if (op == ReduceOp::kBitXor) {
      result = static_cast<T>(a ^ b);
    } else {
      result = static_cast<T>(a + b);
    }
  }
  const auto quotient = static_cast<T>(__int128{result} / scaling.divisor);
  return ScaleInteger(quotient, scaling.postscale);
}

bool BoolElement(ReduceOp op, const std::vector<uint8_t>& operands) {
  const auto is_true = [](uint8_t byte) { return byte != 0; };
  const auto trues = std::count_if(operands.begin(), operands.end(), is_true);
  if (op == ReduceOp::kBitXor) return trues % 2 == 1;
  if (op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kBitAnd) {
    return trues == static_cast<ptrdiff_t>(operands.size());
  }
  return trues > 0;
}

template <class T>
std::vector<T> Operands(const std::vector<Bytes>& sources, size_t i) {
  std::vector<T> operands;
  for (const Bytes& source : sources) operands.push_back(Get<T>(source, i));
  return operands;
}

// A real or imaginary part of all operands, each of two parts of type T.
template <class T>
std::vector<T> Parts(const std::vector<Bytes>& sources, size_t i, size_t part) {
  return Operands<T>(sources, 2 * i + part);
}

template <class T>
void ModelComplexElement(ReduceOp op, const std::vector<Bytes>& sources, size_t i,
                         const Scaling& scaling, Bytes* out) {
  const std::vector<T> reals = Parts<T>(sources, i, 0), imaginaries = Parts<T>(sources, i, 1);
  // What a part goes through alone: all of a sum, and of a product what is before and after it.
  const auto part = [](const std::vector<T>& operands, const Scaling& steps) {
    return FloatingElement(ReduceOp::kSum, operands, steps);
  };
  if (op != ReduceOp::kProduct) {
    Put(part(reals, scaling), out, 2 * i);
    return Put(part(imaginaries, scaling), out, 2 * i + 1);
  }
  const Scaling before{scaling.prescale, 1, 1}, after{1, scaling.postscale, scaling.divisor};
  T a = part({reals[0]}, before), b = part({imaginaries[0]}, before);
  for (size_t k = 1; k < reals.size(); ++k) {
    const T c = part({reals[k]}, before), d = part({imaginaries[k]}, before);
    const T real = a * c - b * d;
    b = a * d + b * c;
    a = real;
  }
  Put(part({a}, after), out, 2 * i);
  Put(part({b}, after), out, 2 * i + 1);
}

template <class Pattern>
void ModelNarrowElement(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, size_t i,
                        const Scaling& scaling, Bytes* out) {
  const FloatFormat format = FormatOf(dtype);
  std::vector<float> operands;
  for (const Pattern bits : Operands<Pattern>(sources, i)) {
    operands.push_back(static_cast<float>(format.Decode(bits)));
  }
  Put(static_cast<Pattern>(format.Encode(FloatingElement(op, operands, scaling))), out, i);
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
    case DType::kUInt16:
      return integer(uint16_t{});
    case DType::kInt16:
      return integer(int16_t{});
    case DType::kUInt32:
      return integer(uint32_t{});
    case DType::kInt32:
      return integer(int32_t{});
    case DType::kUInt64:
      return integer(uint64_t{});
    case DType::kInt64:
      return integer(int64_t{});
    case DType::kFloat32:
      return Put(FloatingElement(op, Operands<float>(sources, i), scaling), out, i);
    case DType::kFloat64:
      return Put(FloatingElement(op, Operands<double>(sources, i), scaling), out, i);
    case DType::kBool:
      return Put<uint8_t>(BoolElement(op, Operands<uint8_t>(sources, i)), out, i);
    case DType::kFloat16:
    case DType::kBFloat16:
      return ModelNarrowElement<uint16_t>(dtype, op, sources, i, scaling, out);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return ModelNarrowElement<uint8_t>(dtype, op, sources, i, scaling, out);
    case DType::kComplex64:
      return ModelComplexElement<float>(op, sources, i, scaling, out);
    case DType::kComplex128:
      return ModelComplexElement<double>(op, sources, i, scaling, out);
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

void PutSmall(DType dtype, int small, Bytes* out, size_t i) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
      return Put(static_cast<int8_t>(small), out, i);
    case DType::kBool:
      return Put<uint8_t>(0, out, i);
    case DType::kUInt16:
    case DType::kInt16:
      return Put(static_cast<int16_t>(small), out, i);
    case DType::kUInt32:
    case DType::kInt32:
      return Put<int32_t>(small, out, i);
    case DType::kUInt64:
    case DType::kInt64:
      return Put<int64_t>(small, out, i);
    case DType::kFloat16:
    case DType::kBFloat16:
      return Put(FormatOf(dtype).Encode(small / 7.0), out, i);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return Put(static_cast<uint8_t>(FormatOf(dtype).Encode(small / 7.0)), out, i);
    case DType::kFloat32:
      return Put<float>(static_cast<float>(small) / 7, out, i);
    case DType::kFloat64:
      return Put<double>(small / 7.0, out, i);
    case DType::kComplex64:
      Put<float>(static_cast<float>(small) / 7, out, 2 * i);
      return Put<float>(static_cast<float>(5 - small) / 3, out, 2 * i + 1);
    case DType::kComplex128:
      Put<double>(small / 7.0, out, 2 * i);
      return Put<double>((5 - small) / 3.0, out, 2 * i + 1);
  }
}

// Half of the elements any bits at all, half small numbers.
Bytes RandomElements(DType dtype, size_t count, std::mt19937_64* random) {
  Bytes out(count * DTypeSize(dtype));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>((*random)() >> 32);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = (*random)();
    if ((bits >> 40 & 1) == 0) continue;
    PutSmall(dtype, static_cast<int>(bits % 25) - 12, &out, i);
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

// Of a complex type: its parts'.
std::vector<uint64_t> SpecialBits(DType dtype) {
  if (dtype == DType::kFloat64 || dtype == DType::kComplex128) return SpecialBits(11, 52);
  if (dtype == DType::kFloat32 || dtype == DType::kComplex64) return SpecialBits(8, 23);
  return SpecialBits(FormatOf(dtype).exponent_bits, FormatOf(dtype).mantissa_bits);
}

// Every triple of special values; of complex types some, they have two in each element.
std::vector<Bytes> SpecialSources(DType dtype) {
  const std::vector<uint64_t> values = SpecialBits(dtype);
  const size_t n = values.size();
  const size_t size = IsComplex(dtype) ? DTypeSize(dtype) / 2 : DTypeSize(dtype);
  std::mt19937_64 random(n);
  std::vector<Bytes> out(3, Bytes(n * n * n * size));
  for (size_t i = 0; i < n * n * n; ++i) {
    size_t pick[] = {i / (n * n), i / n % n, i % n};
    if (IsComplex(dtype)) {
      for (size_t& index : pick) index = random() % n;
    }
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
    std::string text = " ";
    for (size_t b = size; b-- > 0;) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x", from[i * size + b]);
      text += digits;
    }
    return text;
  };
  std::string operands;
  for (const Bytes& source : sources) operands += hex(source);
  ADD_FAILURE() << Describe(dtype, op, sources.size(), out.size() / size) << ": element " << i
                << " of" << operands << " is" << hex(out) << ", wanted" << hex(expected)
                << " (prescale " << scaling.prescale << ", divisor " << scaling.divisor
                << ", postscale " << scaling.postscale << ")";
}

using KernelsTest = OnTarget;
INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(Targets()), NameOfTarget);

// ---- reduction ----

TEST_P(KernelsTest, EveryCountTypeAndOperationAgreesWithTheModel) {
  std::vector<size_t> counts;
  for (size_t count = 0; count <= 70; ++count) counts.push_back(count);
  for (size_t count : {127, 128, 129, 255, 256, 257, 511, 1025, 1500}) counts.push_back(count);
  for (DType dtype : AllDTypes()) {
    for (ReduceOp op : OpsOf(dtype)) {
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
  for (DType dtype : AllDTypes()) {
    const auto sources = RandomSources(dtype, 3, 777, 1);
    for (ReduceOp op : OpsOf(dtype)) {
      const Bytes expected = Model(dtype, op, sources, {});
      for (size_t shift = 0; shift < 64; ++shift) {
        for (size_t count : {1, 13, 777}) {
          ExpectPrefix(dtype, op, sources, expected, count, shift);
        }
      }
    }
  }
}

TEST_P(KernelsTest, DestinationMayBeAnyOfTheSources) {
  const Scaling scaled{0.5, 3, 2};
  for (DType dtype : AllDTypes()) {
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
  for (DType dtype : AllDTypes()) {
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
  for (DType dtype : AllDTypes()) {
    for (ReduceOp op : OpsOf(dtype)) {
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
  for (DType dtype : AllDTypes()) {
    if (!IsFloating(dtype) && !IsComplex(dtype)) continue;
    const auto sources = SpecialSources(dtype);
    for (ReduceOp op : OpsOf(dtype)) {
      ExpectModel(dtype, op, sources);
      ExpectModel(dtype, op, sources, {0.5, 1, 3});
      ExpectModel(dtype, op, sources, {1, 1e-3, 1});
      ExpectModel(dtype, op, {sources[1], sources[2]}, {1, 1, 4});
      ExpectModel(dtype, op, {sources[2]}, {0.5, 1, 1});
    }
  }
}

TEST_P(KernelsTest, EveryPairOfFloat8AgreesWithTheModel) {
  std::vector<Bytes> sources(2, Bytes(1 << 16));
  for (size_t i = 0; i < sources[0].size(); ++i) {
    sources[0][i] = static_cast<uint8_t>(i);
    sources[1][i] = static_cast<uint8_t>(i >> 8);
  }
  for (DType dtype : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      ExpectModel(dtype, op, sources);
      ExpectModel(dtype, op, sources, {1, 1, 2});
      ExpectModel(dtype, op, sources, {1, 1, 3});
      ExpectModel(dtype, op, sources, {0.3, 1, 1});
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

TEST_P(KernelsTest, LargeUnsignedNumbersAreScaledAndDividedAsSuch) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max(), kHalf = uint64_t{1} << 63;
  const auto scaled = [](uint64_t value, const Scaling& scaling) {
    const void* const source[] = {&value};
    uint64_t out = 0;
    Reduce(DType::kUInt64, ReduceOp::kAverage, source, &out, 1, scaling);
    return out;
  };
  EXPECT_EQ(scaled(kMax, {.divisor = 2}), kHalf - 1);
  EXPECT_EQ(scaled(kMax, {.divisor = std::numeric_limits<int64_t>::max()}), 2u);
  EXPECT_EQ(scaled(kHalf, {.prescale = 0.5}), kHalf / 2);
  EXPECT_EQ(scaled(kHalf, {.postscale = 1.5}), kHalf + kHalf / 2);
  EXPECT_EQ(scaled(kHalf + kHalf / 2, {.postscale = 1.25}), kHalf + kHalf / 8 * 7);
  EXPECT_EQ(scaled(kHalf, {.prescale = 2}), kMax);
  EXPECT_EQ(scaled(kMax, {.postscale = 1.0000001}), kMax);
  EXPECT_EQ(scaled(7, {.prescale = -1}), 0u);
  EXPECT_EQ(scaled(0, {.prescale = std::numeric_limits<double>::infinity()}), 0u);
  const uint64_t values[] = {kHalf, kHalf + 5, kMax};
  const void* const sources[] = {&values[0], &values[1], &values[2]};
  uint64_t out = 0;
  Reduce(DType::kUInt64, ReduceOp::kMax, sources, &out, 1, {});
  EXPECT_EQ(out, kMax);
  Reduce(DType::kUInt64, ReduceOp::kMin, sources, &out, 1, {});
  EXPECT_EQ(out, kHalf);
  Reduce(DType::kUInt64, ReduceOp::kAverage, {sources, 2}, &out, 1, {.divisor = 2});
  EXPECT_EQ(out, 2u) << "of a sum that has wrapped around";
}

TEST_P(KernelsTest, AveragesOfIntegersDivideTheExactSum) {
  const auto average = []<class T>(DType dtype, const std::vector<T>& values) {
    std::vector<const void*> sources;
    for (const T& value : values) sources.push_back(&value);
    T out = 0;
    Reduce(dtype, ReduceOp::kAverage, sources, &out, 1,
           {.divisor = static_cast<int64_t>(values.size())});
    return out;
  };
  EXPECT_EQ(average(DType::kInt8, std::vector<int8_t>{100, 100}), 100);
  EXPECT_EQ(average(DType::kInt8, std::vector<int8_t>(300, -128)), -128);
  EXPECT_EQ(average(DType::kInt8, std::vector<int8_t>{-128, -128, 127}), -43);
  EXPECT_EQ(average(DType::kUInt8, std::vector<uint8_t>(300, 255)), 255);
  EXPECT_EQ(average(DType::kInt16, std::vector<int16_t>{-32768, -32767}), -32767);
  EXPECT_EQ(average(DType::kUInt16, std::vector<uint16_t>{65535, 65534}), 65534);
  EXPECT_EQ(average(DType::kInt32, std::vector<int32_t>{INT32_MIN, INT32_MIN}), INT32_MIN);
  EXPECT_EQ(average(DType::kUInt32, std::vector<uint32_t>{UINT32_MAX, UINT32_MAX}), UINT32_MAX);
  EXPECT_EQ(average(DType::kInt64, std::vector<int64_t>{INT64_MAX, INT64_MAX}), -1) << "it wraps";
}

TEST(Wires, AreAsNarrowAsTheSumOfAllOperandsAllows) {
  struct Row {
    DType dtype;
    int64_t operands;
    DType type;
  };
  const Row rows[] = {
      {DType::kInt8, 256, DType::kInt16},      {DType::kInt8, 257, DType::kInt32},
      {DType::kUInt8, 257, DType::kUInt16},    {DType::kUInt8, 258, DType::kUInt32},
      {DType::kInt16, 65536, DType::kInt32},   {DType::kInt16, 65537, DType::kInt64},
      {DType::kUInt16, 65537, DType::kUInt32}, {DType::kUInt16, 65538, DType::kUInt64},
      {DType::kInt32, 2, DType::kInt64},       {DType::kUInt32, 2, DType::kUInt64},
      {DType::kInt64, 2, DType::kInt64},       {DType::kUInt64, 2, DType::kUInt64},
      {DType::kFloat16, 2, DType::kFloat32},   {DType::kFloat32, 2, DType::kFloat32}};
  for (const Row& row : rows) {
    for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kAverageLive}) {
      EXPECT_EQ(WireOf(row.dtype, op, {}, row.operands).type, row.type) << DTypeName(row.dtype);
    }
    const DType plain = SumsInFloat32(row.dtype) ? DType::kFloat32 : row.dtype;
    EXPECT_EQ(WireOf(row.dtype, ReduceOp::kSum, {}, row.operands).type, plain);
  }
}

TEST(Wires, OfNarrowFloatsMayHaveTheirType) {
  for (const auto& [dtype, type] : {std::pair{DType::kFloat16, DType::kFloat16},
                                    {DType::kBFloat16, DType::kBFloat16},
                                    {DType::kFloat8E5M2, DType::kBFloat16},
                                    {DType::kFloat8E4M3FN, DType::kBFloat16},
                                    {DType::kFloat32, DType::kFloat32},
                                    {DType::kInt32, DType::kInt32}}) {
    EXPECT_EQ(NarrowWireOf(dtype, ReduceOp::kSum, {}, 8, 4).type, type) << DTypeName(dtype);
  }
  EXPECT_EQ(NarrowWireOf(DType::kInt8, ReduceOp::kAverage, {}, 8, 4).type, DType::kInt16);
}

// Every number of a type of 8 bits, which must not change on its way.
TEST(Wires, TakeFloat8AsBFloat16ExactlyAndRoundItOnce) {
  for (const DType dtype : {DType::kFloat8E5M2, DType::kFloat8E4M3FN}) {
    constexpr int64_t kCount = 256;
    std::vector<uint8_t> numbers, result(kCount), expected(kCount);
    for (int i = 0; i < kCount; ++i) numbers.push_back(static_cast<uint8_t>(i));
    for (const Scaling& scaling : {Scaling{}, Scaling{0.3, 1.7, 3}}) {
      const Wire wire = NarrowWireOf(dtype, ReduceOp::kSum, scaling, 3, 1);
      std::vector<uint16_t> wide(kCount);
      Widen(wire, numbers.data(), wide.data(), kCount);
      const void* const partials[] = {wide.data(), wide.data(), wide.data()};
      const void* const operands[] = {numbers.data(), numbers.data(), numbers.data()};
      Combine(wire, ReduceOp::kSum, partials, result.data(), kCount);
      Reduce(dtype, ReduceOp::kSum, operands, expected.data(), kCount, scaling);
      EXPECT_EQ(result, expected) << DTypeName(dtype);
    }
  }
}

// Two halves of the operands, each combined by itself, give what all give at once.
TEST_P(KernelsTest, WhatTravelsInPartsIsCombinedLikeTheWhole) {
  constexpr int64_t kCount = 1'234;
  constexpr size_t kOperands = 256;  // as many as int16 holds of int8
  for (const DType dtype : {DType::kInt8, DType::kUInt8, DType::kInt16, DType::kUInt16,
                            DType::kInt32, DType::kUInt32}) {
    for (const Scaling& scaling : {Scaling{1, 1, kOperands}, {1.5, 3, kOperands}, {-1, 1, 1000}}) {
      const Wire wire = WireOf(dtype, ReduceOp::kAverage, scaling, kOperands);
      ASSERT_TRUE(wire.widens());
      std::mt19937 random(1);
      std::vector<Bytes> operands(kOperands), widened(kOperands);
      std::vector<const void*> all, halves[2];
      for (size_t k = 0; k < kOperands; ++k) {
        operands[k].resize(kCount * DTypeSize(dtype) + 1);
        for (auto& byte : operands[k]) byte = static_cast<Bytes::value_type>(random());
        // The extremes, too, and nothing is aligned.
        std::fill_n(operands[k].begin() + 1, 8, static_cast<Bytes::value_type>(0xFF));
        widened[k].resize(kCount * DTypeSize(wire.type) + 1);
        all.push_back(operands[k].data() + 1);
        Widen(wire, all.back(), widened[k].data() + 1, kCount);
        halves[k % 2].push_back(widened[k].data() + 1);
      }
      Bytes sums[2] = {Bytes(kCount * DTypeSize(wire.type)), Bytes(kCount * DTypeSize(wire.type))};
      for (int half : {0, 1}) {
        Reduce(wire.type, ReduceOp::kAverage, halves[half], sums[half].data(), kCount, wire.before);
      }
      const void* const both[] = {sums[0].data(), sums[1].data()};
      Bytes result(kCount * DTypeSize(dtype)), expected = result;
      Combine(wire, ReduceOp::kAverage, both, result.data(), kCount);
      Reduce(dtype, ReduceOp::kAverage, all, expected.data(), kCount, scaling);
      EXPECT_TRUE(result == expected) << DTypeName(dtype);
    }
  }
}

TEST_P(KernelsTest, BitwiseOperationsOfBoolAreOfTruths) {
  const uint8_t rows[][3] = {{1, 2, 4}, {1, 2, 0}, {255, 0, 0}, {0, 0, 0}};
  const uint8_t expected[][3] = {{1, 1, 1}, {0, 1, 0}, {0, 1, 1}, {0, 0, 0}};  // and, or, xor
  for (size_t i = 0; i < 4; ++i) {
    const void* const sources[] = {&rows[i][0], &rows[i][1], &rows[i][2]};
    for (size_t k = 0; k < 3; ++k) {
      const ReduceOp ops[] = {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};
      uint8_t out = 77;
      Reduce(DType::kBool, ops[k], sources, &out, 1, {});
      EXPECT_EQ(out, expected[i][k]) << "row " << i << ", " << ReduceOpName(ops[k]);
    }
  }
}

TEST_P(KernelsTest, AProductOfComplexNumbersIsTheTextbooks) {
  const std::complex<double> a{1, 2}, b{3, -4}, c{-5, 6};
  const void* const sources[] = {&a, &b, &c};
  std::complex<double> out;
  Reduce(DType::kComplex128, ReduceOp::kProduct, sources, &out, 1, {});
  EXPECT_EQ(out, std::complex<double>(-67, 56));
  // A fused multiply-add would leave the rounding error of the other product.
  const float x = 1 + 0x1p-23f;
  const std::complex<float> square[] = {{x, x}, {x, x}};
  const void* const factors[] = {&square[0], &square[1]};
  std::complex<float> product;
  Reduce(DType::kComplex64, ReduceOp::kProduct, factors, &product, 1, {});
  EXPECT_EQ(product, std::complex<float>(0, 2 * (1 + 0x1p-22f)));
}

TEST_P(KernelsTest, OfAComplexNumberOnlyThePartThatIsNoNumberIsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::complex<float> values[] = {{infinity, 1}, {-infinity, 2}};
  const void* const sources[] = {&values[0], &values[1]};
  std::complex<float> out;
  Reduce(DType::kComplex64, ReduceOp::kSum, sources, &out, 1, {});
  EXPECT_EQ(std::bit_cast<uint32_t>(out.real()), 0x7fc00000u);
  EXPECT_EQ(out.imag(), 3);
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

// ---- neutral elements ----

// Elements that an operation with a neutral one gives back bit by bit: no NaN, and no -0, as a sum
// with 0 makes it +0.
Bytes PlainElements(DType dtype, size_t count) {
  std::mt19937_64 random(count);
  if (!IsFloating(dtype) && !IsComplex(dtype)) {
    Bytes elements = RandomElements(dtype, count, &random);
    if (dtype == DType::kBool) {
      for (uint8_t& byte : elements) byte &= 1;
    }
    return elements;
  }
  Bytes elements(count * DTypeSize(dtype));
  for (size_t i = 0; i < count; ++i) {
    PutSmall(dtype, static_cast<int>(random() % 99) - 49, &elements, i);
  }
  return elements;
}

TEST_P(KernelsTest, ANeutralElementChangesNothing) {
  for (DType dtype : AllDTypes()) {
    const Bytes elements = PlainElements(dtype, 1000);
    for (ReduceOp op : OpsOf(dtype)) {
      Bytes neutral(elements.size(), 0xcd);
      FillNeutral(dtype, op, neutral.data(), 1000);
      EXPECT_TRUE(RunReduce(dtype, op, {elements, neutral}) == elements)
          << Describe(dtype, op, 2, 1000);
      EXPECT_TRUE(RunReduce(dtype, op, {neutral, elements}) == elements)
          << Describe(dtype, op, 2, 1000);
    }
  }
}

TEST(KernelsNeutralTest, NothingElseIsFilled) {
  for (DType dtype : AllDTypes()) {
    for (ReduceOp op : OpsOf(dtype)) {
      const size_t size = DTypeSize(dtype);
      Bytes one(size);
      FillNeutral(dtype, op, one.data(), 1);
      for (size_t count = 0; count <= 40; ++count) {
        for (size_t shift : {0, 1, 7}) {
          Bytes out(shift + count * size + 9, 0xcd), expected = out;
          for (size_t i = 0; i < count; ++i) {
            std::copy(one.begin(), one.end(), expected.begin() + shift + i * size);
          }
          FillNeutral(dtype, op, out.data() + shift, static_cast<int64_t>(count));
          ASSERT_TRUE(out == expected) << Describe(dtype, op, 1, count) << ", shift " << shift;
        }
      }
    }
  }
}

TEST(KernelsNeutralTest, LimitsAreTheTypesOwn) {
  const auto element = [](DType dtype, ReduceOp op) {
    uint64_t bits[2] = {};
    FillNeutral(dtype, op, bits, 1);
    EXPECT_EQ(bits[1], 0u);
    return bits[0];
  };
  const struct {
    DType dtype;
    uint64_t min, max, product;  // bits of what is neutral for these
  } kRows[] = {
      {DType::kUInt8, 0xff, 0, 1},
      {DType::kInt8, 0x7f, 0x80, 1},
      {DType::kInt16, 0x7fff, 0x8000, 1},
      {DType::kUInt32, 0xffffffff, 0, 1},
      {DType::kInt64, 0x7fffffffffffffff, 0x8000000000000000, 1},
      {DType::kUInt64, 0xffffffffffffffff, 0, 1},
      {DType::kBool, 1, 0, 1},
      {DType::kFloat8E4M3FN, 0x7e, 0xfe, 0x38},
      {DType::kFloat8E5M2, 0x7c, 0xfc, 0x3c},
      {DType::kFloat16, 0x7c00, 0xfc00, 0x3c00},
      {DType::kBFloat16, 0x7f80, 0xff80, 0x3f80},
      {DType::kFloat32, 0x7f800000, 0xff800000, 0x3f800000},
      {DType::kFloat64, 0x7ff0000000000000, 0xfff0000000000000, 0x3ff0000000000000},
  };
  for (const auto& [dtype, min, max, product] : kRows) {
    SCOPED_TRACE(DTypeName(dtype));
    EXPECT_EQ(element(dtype, ReduceOp::kMin), min);
    EXPECT_EQ(element(dtype, ReduceOp::kMax), max);
    EXPECT_EQ(element(dtype, ReduceOp::kProduct), product);
    EXPECT_EQ(element(dtype, ReduceOp::kSum), 0u);
  }
  EXPECT_EQ(element(DType::kComplex64, ReduceOp::kProduct), 0x3f800000u);
  EXPECT_EQ(element(DType::kComplex128, ReduceOp::kProduct), 0x3ff0000000000000u);
  EXPECT_EQ(element(DType::kFloat32, ReduceOp::kAdasum), 0u);
  EXPECT_EQ(element(DType::kInt32, ReduceOp::kBitAnd), 0xffffffffu);
  EXPECT_EQ(element(DType::kBool, ReduceOp::kBitAnd), 1u);
  EXPECT_EQ(element(DType::kUInt16, ReduceOp::kBitXor), 0u);
}

// ---- all targets together ----

// Any bits of every type, NaNs with payloads among them.
std::vector<Bytes> RunEverything() {
  std::vector<Bytes> results;
  for (DType dtype : AllDTypes()) {
    for (ReduceOp op : OpsOf(dtype)) {
      for (const Scaling& scaling : {Scaling{}, Scaling{0.3, 7, 3}}) {
        results.push_back(RunReduce(dtype, op, RandomSources(dtype, 4, 3001, 9), scaling));
        if (!IsFloating(dtype) && !IsComplex(dtype)) continue;
        results.push_back(RunReduce(dtype, op, SpecialSources(dtype), scaling));
      }
    }
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

TEST(KernelsCheckTest, WhatHasNoMeaningIsRefused) {
  for (DType dtype : AllDTypes()) {
    const bool integer = !IsFloating(dtype) && !IsComplex(dtype);  // or bool
    const bool adasum = IsFloating(dtype) && DTypeSize(dtype) > 1;
    for (ReduceOp op : AllOps()) {
      bool taken = true;
      if (IsAverage(op)) taken = dtype != DType::kBool;
      if (op == ReduceOp::kMin || op == ReduceOp::kMax) taken = !IsComplex(dtype);
      if (op >= ReduceOp::kBitAnd && op <= ReduceOp::kBitXor) taken = integer;
      if (op == ReduceOp::kAdasum) taken = adasum;
      if (op == ReduceOp::kNone) taken = false;
      const absl::Status status = CheckReducible(dtype, op);
      EXPECT_EQ(status.code(), taken ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
          << Describe(dtype, op, 1, 1);
    }
  }
}

TEST(KernelsCheckTest, ARefusalSaysWhatAndWhy) {
  const struct {
    DType dtype;
    ReduceOp op;
    const char* words;
  } kRows[] = {
      {DType::kBool, ReduceOp::kAverage, "average of bool is not defined: use max for `or`"},
      {DType::kBool, ReduceOp::kAverageLive, "convert to float32 to average"},
      {DType::kComplex64, ReduceOp::kMin, "min of complex64 is not defined: complex numbers have"},
      {DType::kFloat8E5M2, ReduceOp::kBitXor, "bxor of float8_e5m2 is not defined: bitwise"},
      {DType::kInt32, ReduceOp::kAdasum, "adasum of int32 is not defined: it is for float16"},
      {DType::kFloat32, ReduceOp::kNone, "choose sum, average"},
  };
  for (const auto& [dtype, op, words] : kRows) {
    const absl::Status status = CheckReducible(dtype, op);
    EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
  }
}

TEST(KernelsCheckTest, NothingIsTouchedWhenThereIsNothingToDo) {
  const void* const none[] = {nullptr, nullptr};
  for (DType dtype : AllDTypes()) {
    Reduce(dtype, ReduceOp::kSum, none, nullptr, 0, {});
    FillNeutral(dtype, ReduceOp::kSum, nullptr, 0);
  }
  for (DType dtype : kNarrowDTypes) {
    ToFloat32(dtype, nullptr, nullptr, 0);
    FromFloat32(dtype, nullptr, nullptr, 0);
  }
}

TEST(KernelsCheckDeathTest, ABrokenCallIsOurOwnBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  float value = 1;
  const void* const source[] = {&value};
  EXPECT_DEATH(Reduce(DType::kFloat32, ReduceOp::kNone, source, &value, 1, {}), "none of float32");
  EXPECT_DEATH(Reduce(DType::kFloat32, ReduceOp::kSum, source, &value, 1, {.divisor = 0}),
               "divisor");
  EXPECT_DEATH(Reduce(DType::kFloat32, ReduceOp::kAdasum, source, &value, 1, {}),
               "adasum of float32");
  EXPECT_DEATH(Reduce(DType::kComplex64, ReduceOp::kMax, source, &value, 0, {}),
               "max of complex64");
  EXPECT_DEATH(FillNeutral(DType::kFloat32, ReduceOp::kBitOr, &value, 1), "bor of float32");
  EXPECT_DEATH(ToFloat32(DType::kFloat64, &value, &value, 0), "float64");
}

}  // namespace
}  // namespace rueda::kernels
