// PURE
#include "ops/compression/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "ops/kernels/quantize.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

constexpr float kFloat8Max = 448;  // of e4m3fn
constexpr float kLevels = 255;

int64_t HeaderBytes(Compressor compressor) {
  switch (compressor) {
    case Compressor::kFloat8:
    case Compressor::kOneBit:
      return sizeof(float);
    case Compressor::kInt8:
      return 2 * sizeof(float);
    default:
      return 0;
  }
}

int64_t BodyBytes(Compressor compressor, int64_t elements) {
  switch (compressor) {
    case Compressor::kFloat16:
    case Compressor::kBfloat16:
      return 2 * elements;
    case Compressor::kOneBit:
      return (elements + 7) / 8;
    default:
      return elements;
  }
}

void Put(float number, char* to) {
  memcpy(to, &number, sizeof number);
}

float Get(const char* from) {
  float number;
  memcpy(&number, from, sizeof number);
  return number;
}

// 0 where there is none: of 0, of what is too small or not finite.
float InverseOf(float scale) {
  const float inverse = 1 / scale;
  return scale > 0 && scale - scale == 0 && inverse - inverse == 0 ? inverse : 0;
}

void EncodeBlock(Compressor compressor, const float* values, int64_t elements, char* coded) {
  char* const body = coded + HeaderBytes(compressor);
  auto* const bytes = reinterpret_cast<uint8_t*>(body);
  switch (compressor) {
    case Compressor::kFloat16:
      return kernels::FromFloat32(DType::kFloat16, values, body, elements);
    case Compressor::kBfloat16:
      return kernels::FromFloat32(DType::kBFloat16, values, body, elements);
    case Compressor::kFloat8: {
      const auto [least, largest] = kernels::ExtremesOf(values, elements);
      const float scale = std::max(-least, largest) / kFloat8Max;  // NaN stays: the first argument
      Put(least != least ? least : scale, coded);
      float scaled[kCodecBlock];
      const float inverse = InverseOf(scale);
      for (int64_t i = 0; i < elements; ++i) {
        scaled[i] = std::clamp(values[i] * inverse, -kFloat8Max, kFloat8Max);
      }
      return kernels::FromFloat32(DType::kFloat8E4M3FN, scaled, body, elements);
    }
    case Compressor::kInt8: {
      const auto [least, largest] = kernels::ExtremesOf(values, elements);
      Put(least, coded);
      Put(largest, coded + sizeof(float));
      const float span = largest - least;
      const float inverse = InverseOf(span / kLevels);
      if (inverse > 0) return kernels::ToLevels(values, least, inverse, bytes, elements);
      memset(body, 0, static_cast<size_t>(elements));
      return;
    }
    case Compressor::kOneBit:
      Put(kernels::MeanMagnitude(values, elements), coded);
      return kernels::ToSigns(values, bytes, elements);
    default:
      RUEDA_CHECK(false);
  }
}

void DecodeBlock(Compressor compressor, const char* coded, int64_t elements, float* values) {
  const char* const body = coded + HeaderBytes(compressor);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(body);
  switch (compressor) {
    case Compressor::kFloat16:
      return kernels::ToFloat32(DType::kFloat16, body, values, elements);
    case Compressor::kBfloat16:
      return kernels::ToFloat32(DType::kBFloat16, body, values, elements);
    case Compressor::kFloat8: {
      const float scale = Get(coded);
      kernels::ToFloat32(DType::kFloat8E4M3FN, body, values, elements);
      for (int64_t i = 0; i < elements; ++i) values[i] *= scale;
      return;
    }
    case Compressor::kInt8: {
      const float least = Get(coded);
      const float step = (Get(coded + sizeof(float)) - least) / kLevels;
      return kernels::FromLevels(bytes, least, step, values, elements);
    }
    case Compressor::kOneBit:
      return kernels::FromSigns(bytes, Get(coded), values, elements);
    default:
      RUEDA_CHECK(false);
  }
}

// Calls fn(offset in elements, elements, offset in coded bytes).
template <typename Fn>
void ForBlocks(Compressor compressor, int64_t elements, Fn fn) {
  int64_t bytes = 0;
  for (int64_t begin = 0; begin < elements; begin += kCodecBlock) {
    const int64_t count = std::min(kCodecBlock, elements - begin);
    fn(begin, count, bytes);
    bytes += HeaderBytes(compressor) + BodyBytes(compressor, count);
  }
}

}  // namespace

bool HasCodec(Compressor compressor) {
  return compressor >= Compressor::kFloat16 && compressor <= Compressor::kOneBit;
}

int64_t CodedBytes(Compressor compressor, int64_t elements) {
  const int64_t whole = elements / kCodecBlock;
  const int64_t rest = elements % kCodecBlock;
  return whole * (HeaderBytes(compressor) + BodyBytes(compressor, kCodecBlock)) +
         (rest > 0 ? HeaderBytes(compressor) + BodyBytes(compressor, rest) : 0);
}

void Encode(Compressor compressor, const float* values, int64_t elements, char* coded) {
  ForBlocks(compressor, elements, [&](int64_t begin, int64_t count, int64_t at) {
    EncodeBlock(compressor, values + begin, count, coded + at);
  });
}

void EncodeWithResidual(Compressor compressor, float* values, int64_t elements, char* coded,
                        float* residual) {
  ForBlocks(compressor, elements, [&](int64_t begin, int64_t count, int64_t at) {
    EncodeBlock(compressor, values + begin, count, coded + at);
    float decoded[kCodecBlock];
    DecodeBlock(compressor, coded + at, count, decoded);
    for (int64_t i = 0; i < count; ++i) {
      const float missing = values[begin + i] - decoded[i];
      residual[begin + i] = missing - missing == 0 ? missing : 0;
      values[begin + i] = decoded[i];
    }
  });
}

void Decode(Compressor compressor, const char* coded, int64_t elements, float* values) {
  ForBlocks(compressor, elements, [&](int64_t begin, int64_t count, int64_t at) {
    DecodeBlock(compressor, coded + at, count, values + begin);
  });
}

void DecodeAndAdd(Compressor compressor, const char* coded, int64_t elements, float* sum) {
  ForBlocks(compressor, elements, [&](int64_t begin, int64_t count, int64_t at) {
    float decoded[kCodecBlock];
    DecodeBlock(compressor, coded + at, count, decoded);
    for (int64_t i = 0; i < count; ++i) sum[begin + i] += decoded[i];
  });
}

}  // namespace rueda
