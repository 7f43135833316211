// The codecs against their definitions, bit by bit, on every instruction set.
#include "ops/compression/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "test/ops/kernels/targets.h"

namespace rueda {
namespace {

class Codec : public kernels::OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, Codec, testing::ValuesIn(kernels::Targets()),
                         kernels::NameOfTarget);

constexpr Compressor kAll[] = {Compressor::kFloat16, Compressor::kBfloat16, Compressor::kFloat8,
                               Compressor::kInt8, Compressor::kOneBit};
const int64_t kSizes[] = {1, 2, 7, 15, 16, 17, 511, 512, 513, 1'024, 2'000};

std::vector<float> Random(int64_t count, unsigned seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.1, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

std::vector<float> Decoded(Compressor compressor, const std::vector<float>& values,
                           std::vector<char>* coded) {
  const auto count = static_cast<int64_t>(values.size());
  // A byte behind it must stay.
  coded->assign(static_cast<size_t>(CodedBytes(compressor, count)) + 1, 77);
  Encode(compressor, values.data(), count, coded->data());
  EXPECT_EQ(coded->back(), 77);
  std::vector<float> decoded(values.size() + 1, 5);
  Decode(compressor, coded->data(), count, decoded.data());
  EXPECT_EQ(decoded.back(), 5);
  decoded.pop_back();
  return decoded;
}

// What a block becomes, by the words of codec.h.
std::vector<float> Int8Model(const std::vector<float>& block, std::vector<uint8_t>* codes) {
  float least = block[0], largest = block[0];
  for (const float value : block) {
    least = std::min(least, value);
    largest = std::max(largest, value);
  }
  const float step = (largest - least) / 255;
  const float inverse = step > 0 ? 1 / step : 0;
  std::vector<float> decoded;
  for (const float value : block) {
    const float level = std::floor((value - least) * inverse + 0.5f);
    codes->push_back(static_cast<uint8_t>(std::min(level, 255.0f)));
    decoded.push_back(static_cast<float>(codes->back()) * step + least);
  }
  return decoded;
}

TEST_P(Codec, Int8IsTheNearestOf256Steps) {
  for (const int64_t size : kSizes) {
    const std::vector<float> values = Random(size, static_cast<unsigned>(size));
    std::vector<char> coded;
    const std::vector<float> decoded = Decoded(Compressor::kInt8, values, &coded);
    const char* at = coded.data();
    for (int64_t begin = 0; begin < size; begin += kCodecBlock) {
      const int64_t count = std::min(kCodecBlock, size - begin);
      const std::vector<float> block(values.begin() + begin, values.begin() + begin + count);
      std::vector<uint8_t> codes;
      const std::vector<float> expected = Int8Model(block, &codes);
      ASSERT_EQ(memcmp(at + 8, codes.data(), codes.size()), 0) << size;
      ASSERT_EQ(memcmp(&decoded[static_cast<size_t>(begin)], expected.data(), 4 * codes.size()), 0);
      at += 8 + count;
      const auto [least, largest] = std::minmax_element(block.begin(), block.end());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_LE(std::abs(expected[static_cast<size_t>(i)] - block[static_cast<size_t>(i)]),
                  (*largest - *least) / 255 * 0.501f);
      }
    }
    ASSERT_EQ(at + 1, coded.data() + coded.size());
  }
}

TEST_P(Codec, OneBitIsTheSignTimesTheMeanMagnitude) {
  for (const int64_t size : kSizes) {
    const std::vector<float> values = Random(size, 7);
    std::vector<char> coded;
    const std::vector<float> decoded = Decoded(Compressor::kOneBit, values, &coded);
    for (int64_t begin = 0; begin < size; begin += kCodecBlock) {
      const int64_t end = std::min(begin + kCodecBlock, size);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += std::abs(values[static_cast<size_t>(i)]);
      const double mean = sum / static_cast<double>(end - begin);
      for (int64_t i = begin; i < end; ++i) {
        const auto k = static_cast<size_t>(i);
        ASSERT_EQ(std::signbit(decoded[k]), values[k] < 0);
        ASSERT_NEAR(std::abs(decoded[k]), mean, 1e-5 * mean);
        ASSERT_EQ(std::abs(decoded[k]), std::abs(decoded[static_cast<size_t>(begin)]));
      }
    }
  }
}

TEST_P(Codec, FloatsAreRounded) {
  for (const double scale : {1e-6, 1.0, 1e4}) {
    const std::vector<float> values = Random(1'300, 3, scale);
    const auto error = [&](Compressor compressor) {
      std::vector<char> coded;
      const std::vector<float> decoded = Decoded(compressor, values, &coded);
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        // Of what is far below the largest the absolute error counts.
        const double size = std::max<double>(std::abs(values[i]), scale / 50);
        worst = std::max(worst, std::abs(decoded[i] - values[i]) / size);
      }
      return worst;
    };
    EXPECT_LE(error(Compressor::kBfloat16), 1.0 / 256);
    EXPECT_LE(error(Compressor::kFloat8), 1.0 / 16) << scale;
    if (scale > 1e-3) {
      EXPECT_LE(error(Compressor::kFloat16), 1.0 / 2048);
    }
  }
}

TEST_P(Codec, TheWireIsAsSmallAsPromised) {
  const int64_t size = 1 << 20;
  const auto ratio = [](Compressor compressor) {
    return static_cast<double>(CodedBytes(compressor, size)) / (4.0 * size);
  };
  EXPECT_EQ(ratio(Compressor::kFloat16), 0.5);
  EXPECT_EQ(ratio(Compressor::kBfloat16), 0.5);
  EXPECT_LE(ratio(Compressor::kFloat8), 0.26);
  EXPECT_LE(ratio(Compressor::kInt8), 0.26);
  EXPECT_LE(ratio(Compressor::kOneBit), 0.034);
}

TEST_P(Codec, WhatIsMissingAndWhatIsThereMakeTheWhole) {
  for (const Compressor compressor : kAll) {
    for (const int64_t size : kSizes) {
      const std::vector<float> values = Random(size, 11);
      std::vector<char> coded;
      const std::vector<float> decoded = Decoded(compressor, values, &coded);
      std::vector<float> left = values, residual(values.size());
      std::vector<char> again(coded.size(), 77);
      EncodeWithResidual(compressor, left.data(), size, again.data(), residual.data());
      ASSERT_EQ(again, coded);
      std::vector<float> sum(values.size(), 1);
      DecodeAndAdd(compressor, coded.data(), size, sum.data());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(left[i], decoded[i]);
        ASSERT_EQ(residual[i], values[i] - decoded[i]);
        ASSERT_EQ(sum[i], 1 + decoded[i]);
      }
    }
  }
}

TEST_P(Codec, ZerosAndEqualNumbersStayWhatTheyAre) {
  for (const Compressor compressor : kAll) {
    for (const float value : {0.0f, 1.0f, -0.5f, 1e-30f}) {
      if (value == 1e-30f && compressor == Compressor::kFloat16) continue;  // too small for it
      std::vector<char> coded;
      for (const float decoded : Decoded(compressor, std::vector<float>(600, value), &coded)) {
        ASSERT_NEAR(decoded, value, std::abs(value) * 0.01) << CompressorName(compressor);
      }
    }
  }
}

TEST_P(Codec, WhatIsNotFiniteIsSeenAndForgotten) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Compressor compressor : kAll) {
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
      std::vector<float> values = Random(1'100, 2);
      values[600] = poison;  // in the second of three blocks
      std::vector<char> coded;
      const std::vector<float> decoded = Decoded(compressor, values, &coded);
      EXPECT_FALSE(std::isfinite(decoded[600])) << CompressorName(compressor);
      EXPECT_TRUE(std::isfinite(decoded[511]) && std::isfinite(decoded[1'024]));
      std::vector<float> residual(values.size());
      EncodeWithResidual(compressor, values.data(), 1'100, coded.data(), residual.data());
      for (const float left : residual) ASSERT_TRUE(std::isfinite(left));
    }
  }
}

}  // namespace
}  // namespace rueda
