// Plain loops that the compiler makes vectors of, compiled for each instruction set; Highway
// chooses among them.
#include "ops/kernels/quantize.h"

#include <cmath>
#include <limits>

#include "ops/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; re-includes this file
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {
namespace {

// As many as the widest vectors have; the same for all, so that sums are.
constexpr int64_t kLanes = 16;

// Calls body(i, lane) for all i, so that the compiler sees whole vectors.
template <typename Body>
HWY_INLINE void ForLanes(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) body(i + lane, lane);
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) body(i, lane);
}

void DoExtremes(const float* values, int64_t count, float* least, float* largest) {
  float low[kLanes], high[kLanes], poison[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = high[lane] = values[0];
    poison[lane] = 0;
  }
  ForLanes(count, [&](int64_t i, int64_t lane) {
    const float value = values[i];
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    poison[lane] += value - value;  // 0, or NaN
  });
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    low[0] = low[lane] < low[0] ? low[lane] : low[0];
    high[0] = high[lane] > high[0] ? high[lane] : high[0];
    poison[0] += poison[lane];
  }
  *least = poison[0] == 0 ? low[0] : std::numeric_limits<float>::quiet_NaN();
  *largest = poison[0] == 0 ? high[0] : std::numeric_limits<float>::quiet_NaN();
}

float DoMeanMagnitude(const float* values, int64_t count) {
  float sums[kLanes] = {};
  ForLanes(count, [&](int64_t i, int64_t lane) { sums[lane] += std::fabs(values[i]); });
  float sum = 0;
  for (const float lane : sums) sum += lane;
  const float mean = sum / static_cast<float>(count);
  return mean - mean == 0 ? mean : std::numeric_limits<float>::quiet_NaN();
}

void DoToLevels(const float* HWY_RESTRICT values, float least, float inverse_step,
                uint8_t* HWY_RESTRICT codes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float level = (values[i] - least) * inverse_step + 0.5f;
    level = level < 255.5f ? level : 255.5f;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(level));  // above 0: rounds down
  }
}

void DoFromLevels(const uint8_t* HWY_RESTRICT codes, float least, float step,
                  float* HWY_RESTRICT values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int32_t>(codes[i])) * step + least;
  }
}

void DoToSigns(const float* HWY_RESTRICT values, uint8_t* HWY_RESTRICT bits, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    unsigned byte = 0;
    for (unsigned bit = 0; bit < 8; ++bit) byte |= (values[i + bit] < 0 ? 1u : 0u) << bit;
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
  if (i == count) return;
  unsigned byte = 0;
  for (unsigned bit = 0; i + bit < count; ++bit) byte |= (values[i + bit] < 0 ? 1u : 0u) << bit;
  bits[i / 8] = static_cast<uint8_t>(byte);
}

void DoFromSigns(const uint8_t* HWY_RESTRICT bits, float magnitude, float* HWY_RESTRICT values,
                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = (bits[i / 8] >> (i % 8) & 1) != 0 ? -magnitude : magnitude;
  }
}

float DoDot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  float sums[kLanes] = {};
  ForLanes(count, [&](int64_t i, int64_t lane) { sums[lane] += a[i] * b[i]; });
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

void DoAddScaled(float factor, const float* HWY_RESTRICT values, float* HWY_RESTRICT sum,
                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

}  // namespace
}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rueda::kernels {

HWY_EXPORT(DoExtremes);
HWY_EXPORT(DoMeanMagnitude);
HWY_EXPORT(DoToLevels);
HWY_EXPORT(DoFromLevels);
HWY_EXPORT(DoToSigns);
HWY_EXPORT(DoFromSigns);
HWY_EXPORT(DoDot);
HWY_EXPORT(DoAddScaled);

Extremes ExtremesOf(const float* values, int64_t count) {
  Extremes extremes;
  HWY_DYNAMIC_DISPATCH(DoExtremes)(values, count, &extremes.least, &extremes.largest);
  return extremes;
}

float MeanMagnitude(const float* values, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(DoMeanMagnitude)(values, count);
}

void ToLevels(const float* values, float least, float inverse_step, uint8_t* codes, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DoToLevels)(values, least, inverse_step, codes, count);
}

void FromLevels(const uint8_t* codes, float least, float step, float* values, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DoFromLevels)(codes, least, step, values, count);
}

void ToSigns(const float* values, uint8_t* bits, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DoToSigns)(values, bits, count);
}

void FromSigns(const uint8_t* bits, float magnitude, float* values, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DoFromSigns)(bits, magnitude, values, count);
}

float Dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(DoDot)(a, b, count);
}

void AddScaled(float factor, const float* values, float* sum, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DoAddScaled)(factor, values, sum, count);
}

}  // namespace rueda::kernels
#endif  // HWY_ONCE
