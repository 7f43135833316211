// Floats narrower than float32: conversions against the types' definitions, and how far a sum of
// them may be from the truth.
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/kernels/reduce.h"
#include "test/ops/kernels/formats.h"
#include "test/ops/kernels/targets.h"

namespace rueda::kernels {
namespace {

using NarrowTest = OnTarget;
INSTANTIATE_TEST_SUITE_P(Targets, NarrowTest, testing::ValuesIn(Targets()), NameOfTarget);

// ---- patterns as they lie in memory, one or two bytes each ----

std::vector<uint8_t> ToMemory(DType dtype, const std::vector<uint16_t>& patterns) {
  const size_t size = DTypeSize(dtype);
  std::vector<uint8_t> out(patterns.size() * size);
  for (size_t i = 0; i < patterns.size(); ++i) std::memcpy(&out[i * size], &patterns[i], size);
  return out;
}

std::vector<uint16_t> FromMemory(DType dtype, const std::vector<uint8_t>& memory) {
  const size_t size = DTypeSize(dtype);
  std::vector<uint16_t> out(memory.size() / size);
  for (size_t i = 0; i < out.size(); ++i) std::memcpy(&out[i], &memory[i * size], size);
  return out;
}

std::vector<uint16_t> AllPatterns(DType dtype) {
  std::vector<uint16_t> out(size_t{1} << 8 * DTypeSize(dtype));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint16_t>(i);
  return out;
}

std::vector<float> Widened(DType dtype, const std::vector<uint16_t>& patterns) {
  std::vector<float> out(patterns.size());
  ToFloat32(dtype, ToMemory(dtype, patterns).data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

std::vector<uint16_t> Narrowed(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> out(values.size() * DTypeSize(dtype));
  FromFloat32(dtype, values.data(), out.data(), static_cast<int64_t>(values.size()));
  return FromMemory(dtype, out);
}

// ---- conversion ----

TEST_P(NarrowTest, WideningIsExactForAllPatterns) {
  for (DType dtype : kNarrowDTypes) {
    const std::vector<uint16_t> patterns = AllPatterns(dtype);
    const std::vector<float> out = Widened(dtype, patterns);
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

TEST_P(NarrowTest, EveryNumberComesBackFromFloat32) {
  for (DType dtype : kNarrowDTypes) {
    const FloatFormat format = FormatOf(dtype);
    std::vector<uint16_t> expected = AllPatterns(dtype);
    const std::vector<uint16_t> out = Narrowed(dtype, Widened(dtype, expected));
    for (uint16_t& bits : expected) {
      if (std::isnan(format.Decode(bits))) bits = format.quiet_nan();
    }
    EXPECT_TRUE(out == expected) << DTypeName(dtype);
  }
}

// All over float32, and every value of the type and every midpoint between two, with neighbours:
// the fewer the values, the more of those.
std::vector<float> ValuesToNarrow(DType dtype) {
  std::vector<float> out;
  const auto add = [&out](uint64_t bits) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  };
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 3989) add(bits);
  const FloatFormat format = FormatOf(dtype);
  const uint32_t reach = DTypeSize(dtype) == 1 ? 1000 : 1;
  for (uint16_t bits = 0; bits < format.too_large(); ++bits) {
    const double low = format.Decode(bits);
    // What follows the largest finite value if the range goes on.
    for (double value : {low, low + format.UnitOf(low) / 2}) {
      const auto pattern = std::bit_cast<uint32_t>(static_cast<float>(value));
      for (uint32_t near = pattern - reach; near != pattern + reach + 1; ++near) {
        add(near);
        add(near ^ 0x80000000u);
      }
    }
  }
  return out;
}

struct NarrowingCases {
  std::vector<float> values;
  std::vector<uint16_t> expected;
};

// Made once for all instruction sets.
const NarrowingCases& CasesOf(DType dtype) {
  static auto* const all = new std::map<DType, NarrowingCases>();
  NarrowingCases& cases = (*all)[dtype];
  if (cases.values.empty()) {
    cases.values = ValuesToNarrow(dtype);
    for (float value : cases.values) cases.expected.push_back(FormatOf(dtype).Encode(value));
  }
  return cases;
}

TEST_P(NarrowTest, NarrowingRoundsToNearestEven) {
  for (DType dtype : kNarrowDTypes) {
    const NarrowingCases& cases = CasesOf(dtype);
    const std::vector<uint16_t> out = Narrowed(dtype, cases.values);
    size_t wrong = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] != cases.expected[i] && ++wrong <= 5) {
        ADD_FAILURE() << DTypeName(dtype) << " of " << std::hexfloat << cases.values[i] << ": "
                      << std::hex << out[i] << ", wanted " << cases.expected[i];
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

// A sanitizer sees some of many calls.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStride = 8;
#else
constexpr size_t kStride = 1;
#endif

// 1 times any float32, before the reduction and after it.
TEST_P(NarrowTest, AReductionRoundsToNearestEven) {
  for (DType dtype : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    const NarrowingCases& cases = CasesOf(dtype);
    const auto one = static_cast<uint8_t>(FormatOf(dtype).Encode(1));
    const void* const source[] = {&one};
    size_t wrong = 0;
    for (size_t i = 0; i < cases.values.size(); i += kStride) {
      uint8_t before = 0, after = 0;
      Reduce(dtype, ReduceOp::kSum, source, &before, 1, {.prescale = cases.values[i]});
      Reduce(dtype, ReduceOp::kSum, source, &after, 1, {.postscale = cases.values[i]});
      if ((before != cases.expected[i] || after != cases.expected[i]) && ++wrong <= 5) {
        ADD_FAILURE() << DTypeName(dtype) << " of " << std::hexfloat << cases.values[i] << ": "
                      << std::hex << int{before} << " and " << int{after} << ", wanted "
                      << cases.expected[i];
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

// Worked out by hand, so that the model has no say.
TEST_P(NarrowTest, TheBordersOfFloat8AreWhereTheyBelong) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto after = [](float value) { return std::nextafterf(value, 1e30f); };
  const auto before = [](float value) { return std::nextafterf(value, 0); };
  const struct {
    DType dtype;
    float value;
    uint16_t bits;
  } kRows[] = {
      {DType::kFloat8E4M3FN, 1, 0x38},
      {DType::kFloat8E4M3FN, 1.0625f, 0x38},  // halfway to 1.125
      {DType::kFloat8E4M3FN, after(1.0625f), 0x39},
      {DType::kFloat8E4M3FN, 448, 0x7e},  // the largest
      {DType::kFloat8E4M3FN, 464, 0x7e},  // halfway to 480, which would be 0x7f
      {DType::kFloat8E4M3FN, after(464), 0x7f},
      {DType::kFloat8E4M3FN, 480, 0x7f},
      {DType::kFloat8E4M3FN, 1e30f, 0x7f},
      {DType::kFloat8E4M3FN, infinity, 0x7f},
      {DType::kFloat8E4M3FN, -464, 0xfe},
      {DType::kFloat8E4M3FN, -480, 0xff},
      {DType::kFloat8E4M3FN, -infinity, 0xff},
      {DType::kFloat8E4M3FN, nan, 0x7f},
      {DType::kFloat8E4M3FN, -nan, 0x7f},
      {DType::kFloat8E4M3FN, 0x1p-6f, 0x08},  // the smallest normal number
      {DType::kFloat8E4M3FN, 0x1p-9f, 0x01},  // the smallest at all
      {DType::kFloat8E4M3FN, 0x1p-10f, 0x00},
      {DType::kFloat8E4M3FN, after(0x1p-10f), 0x01},
      {DType::kFloat8E4M3FN, -0x1p-10f, 0x80},
      {DType::kFloat8E4M3FN, 0x1.8p-9f, 0x02},
      {DType::kFloat8E5M2, 1, 0x3c},
      {DType::kFloat8E5M2, 1.125f, 0x3c},
      {DType::kFloat8E5M2, after(1.125f), 0x3d},
      {DType::kFloat8E5M2, 57344, 0x7b},  // the largest
      {DType::kFloat8E5M2, before(61440), 0x7b},
      {DType::kFloat8E5M2, 61440, 0x7c},  // halfway to 65536, which would be even
      {DType::kFloat8E5M2, 1e30f, 0x7c},
      {DType::kFloat8E5M2, -61440, 0xfc},
      {DType::kFloat8E5M2, infinity, 0x7c},
      {DType::kFloat8E5M2, nan, 0x7e},
      {DType::kFloat8E5M2, -nan, 0x7e},
      {DType::kFloat8E5M2, 0x1p-14f, 0x04},
      {DType::kFloat8E5M2, 0x1p-16f, 0x01},
      {DType::kFloat8E5M2, 0x1p-17f, 0x00},
      {DType::kFloat8E5M2, after(0x1p-17f), 0x01},
      // By way of float16 this would be rounded twice, down to 1.
      {DType::kFloat8E5M2, 1.125f + 0x1p-12f, 0x3d},
  };
  for (const auto& [dtype, value, bits] : kRows) {
    EXPECT_EQ(Narrowed(dtype, {value})[0], bits)
        << DTypeName(dtype) << " of " << std::hexfloat << value;
  }
}

TEST_P(NarrowTest, ConversionsTouchNothingBeyondTheirCount) {
  std::mt19937_64 random(1);
  for (DType dtype : kNarrowDTypes) {
    const FloatFormat format = FormatOf(dtype);
    const size_t size = DTypeSize(dtype);
    for (size_t count = 0; count <= 70; ++count) {
      std::vector<float> wide(count);
      for (float& value : wide) value = static_cast<float>(random() % 1000) / 7;
      std::vector<uint8_t> narrow((count + 2) * size, 0xcd);
      FromFloat32(dtype, wide.data(), narrow.data() + size, static_cast<int64_t>(count));
      const std::vector<uint16_t> patterns = FromMemory(dtype, narrow);
      EXPECT_EQ(patterns.front(), size == 1 ? 0xcd : 0xcdcd);
      EXPECT_EQ(patterns.back(), size == 1 ? 0xcd : 0xcdcd);
      std::vector<float> back(count + 2, -1);
      const std::vector<uint8_t> source(narrow.begin() + size, narrow.end() - size);
      ToFloat32(dtype, source.data(), back.data() + 1, static_cast<int64_t>(count));
      EXPECT_EQ(back.front(), -1);
      EXPECT_EQ(back.back(), -1);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(patterns[i + 1], format.Encode(wide[i]));
        EXPECT_EQ(back[i + 1], static_cast<float>(format.Decode(patterns[i + 1])));
      }
    }
  }
}

TEST(NarrowAllTargetsTest, WideningGivesTheSameBitsOnEveryInstructionSetForNaNsToo) {
  for (DType dtype : kNarrowDTypes) {
    std::vector<float> first;
    for (int64_t target : Targets()) {
      UseTargets(target);
      const std::vector<float> out = Widened(dtype, AllPatterns(dtype));
      if (first.empty()) first = out;
      EXPECT_EQ(std::memcmp(out.data(), first.data(), 4 * out.size()), 0)
          << DTypeName(dtype) << " on " << hwy::TargetName(target) << " and "
          << hwy::TargetName(Targets().front());
    }
  }
  UseTargets(0);
}

// ---- sums ----

// Rows of operands: patterns[rank][i].
using Operands = std::vector<std::vector<uint16_t>>;
enum class Inputs { kRandom, kWhole, kCancelling, kSubnormal };

// A finite pattern, so far from the largest that eight of them don't go beyond.
uint16_t FinitePattern(const FloatFormat& format, uint64_t bits) {
  const uint16_t below = static_cast<uint16_t>(format.too_large() - (4 << format.mantissa_bits));
  return static_cast<uint16_t>(bits % below) | ((bits >> 32 & 1) != 0 ? format.sign() : 0);
}

Operands MakeOperands(DType dtype, Inputs inputs, size_t ranks, size_t count) {
  const FloatFormat format = FormatOf(dtype);
  std::mt19937_64 random(ranks);
  Operands out(ranks, std::vector<uint16_t>(count));
  for (size_t i = 0; i < count; ++i) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      const uint64_t bits = random();
      uint16_t& pattern = out[rank][i];
      switch (inputs) {
        case Inputs::kRandom:
          pattern = FinitePattern(format, bits);
          break;
        case Inputs::kWhole:  // of few bits: float32 holds all their sums
          pattern = format.Encode(static_cast<double>(bits % 31) - 15);
          break;
        case Inputs::kCancelling:  // the one before, negated, or its neighbour
          pattern = FinitePattern(format, bits);
          if (rank % 2 == 1) {
            pattern = static_cast<uint16_t>((out[rank - 1][i] ^ format.sign()) ^ (bits >> 40 & 1));
          }
          break;
        case Inputs::kSubnormal:
          pattern = static_cast<uint16_t>(bits % (3 << format.mantissa_bits)) |
                    ((bits >> 32 & 1) != 0 ? format.sign() : 0);
          break;
      }
    }
  }
  return out;
}

std::vector<uint16_t> SumOf(DType dtype, const Operands& operands) {
  std::vector<std::vector<uint8_t>> memory;
  std::vector<const void*> sources;
  for (const auto& patterns : operands) memory.push_back(ToMemory(dtype, patterns));
  for (const auto& bytes : memory) sources.push_back(bytes.data());
  std::vector<uint8_t> out(memory[0].size());
  Reduce(dtype, ReduceOp::kSum, sources, out.data(), static_cast<int64_t>(operands[0].size()), {});
  return FromMemory(dtype, out);
}

struct Reference {
  double sum = 0, magnitudes = 0;
  bool exact = true;  // whether float32 holds every partial sum
};

Reference ReferenceOf(const FloatFormat& format, const Operands& operands, size_t i) {
  Reference reference;
  for (const auto& patterns : operands) {
    const double value = format.Decode(patterns[i]);
    // Knuth's error of an addition: a partial sum is only called exact if float64 holds it.
    const double next = reference.sum + value, back = next - reference.sum;
    const double error = (reference.sum - (next - back)) + (value - back);
    reference.sum = next;
    reference.magnitudes += std::fabs(value);
    reference.exact &= error == 0 && static_cast<double>(static_cast<float>(next)) == next;
  }
  return reference;
}

TEST_P(NarrowTest, ASumIsOffByAtMostOneRoundingAndFloat32s) {
  for (DType dtype : kNarrowDTypes) {
    const FloatFormat format = FormatOf(dtype);
    for (Inputs inputs :
         {Inputs::kRandom, Inputs::kWhole, Inputs::kCancelling, Inputs::kSubnormal}) {
      size_t exact = 0;
      for (size_t ranks = 2; ranks <= 8; ++ranks) {
        const Operands operands = MakeOperands(dtype, inputs, ranks, 2000);
        const std::vector<uint16_t> out = SumOf(dtype, operands);
        for (size_t i = 0; i < out.size(); ++i) {
          const Reference reference = ReferenceOf(format, operands, i);
          const double result = format.Decode(out[i]);
          const double bound = format.UnitOf(result) / 2 +
                               static_cast<double>(ranks - 1) * 0x1p-24 * reference.magnitudes;
          ASSERT_LE(std::fabs(result - reference.sum), bound)
              << DTypeName(dtype) << ", " << ranks << " ranks, element " << i;
          if (!reference.exact) continue;
          ++exact;
          ASSERT_EQ(result, format.Decode(format.Encode(reference.sum)))
              << DTypeName(dtype) << ", " << ranks << " ranks, element " << i;
        }
      }
      if (inputs == Inputs::kWhole || inputs == Inputs::kSubnormal) {
        EXPECT_EQ(exact, 7u * 2000) << DTypeName(dtype);
      }
    }
  }
}

TEST_P(NarrowTest, SumsAreInFloat32AndRoundedOnce) {
  // Step by step in the type itself, large + 1 is large and stays there.
  const struct {
    DType dtype;
    double large, expected;
  } kRows[] = {{DType::kFloat16, 2048, 2050},
               {DType::kBFloat16, 256, 258},
               {DType::kFloat8E4M3FN, 16, 18},
               {DType::kFloat8E5M2, 8, 10}};
  for (const auto& [dtype, large, expected] : kRows) {
    const FloatFormat format = FormatOf(dtype);
    const uint16_t one = format.Encode(1);
    const Operands operands = {{format.Encode(large)}, {one}, {one}};
    EXPECT_EQ(format.Decode(SumOf(dtype, operands)[0]), expected) << DTypeName(dtype);
  }
}

TEST_P(NarrowTest, ASumThatComesBackIntoTheRangeWasNeverTooLarge) {
  for (DType dtype : {DType::kFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    const FloatFormat format = FormatOf(dtype);
    const uint16_t largest = static_cast<uint16_t>(format.too_large() - 1);
    const uint16_t negative = largest | format.sign();
    const Operands operands = {{largest, negative}, {largest, negative}, {negative, negative}};
    const std::vector<uint16_t> out = SumOf(dtype, operands);
    EXPECT_EQ(out[0], largest) << DTypeName(dtype);
    EXPECT_EQ(out[1], format.too_large() | format.sign()) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace rueda::kernels
