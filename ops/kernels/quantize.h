// Arithmetic of compression on the CPU: what blocks of float32 are described by, and the few bits
// an element that they become. The vector instructions are chosen when the program runs, and change
// no bit but where it is said. Any thread.
#pragma once

#include <cstdint>

namespace rueda::kernels {

// Of `count` numbers, at least one. Both are NaN if any of them is NaN or infinite.
struct Extremes {
  float least, largest;
};
Extremes ExtremesOf(const float* values, int64_t count);

// The mean of |values|, each lane of 16 added up by itself, in float32; NaN if any is NaN or
// infinite, or if the sum is.
float MeanMagnitude(const float* values, int64_t count);

// codes[i] = floor((values[i] - least) * inverse_step + 0.5), within 0 and 255.
void ToLevels(const float* values, float least, float inverse_step, uint8_t* codes, int64_t count);
// values[i] = codes[i] * step + least.
void FromLevels(const uint8_t* codes, float least, float step, float* values, int64_t count);

// A bit for each value: 1 if it is below 0. The first is the lowest bit of the first byte; the last
// byte is filled up with zeros.
void ToSigns(const float* values, uint8_t* bits, int64_t count);
// values[i] = -magnitude for a 1, magnitude for a 0.
void FromSigns(const uint8_t* bits, float magnitude, float* values, int64_t count);

// The dot product in float32. Its order of additions depends on the machine.
float Dot(const float* a, const float* b, int64_t count);
// sum[i] += factor * values[i].
void AddScaled(float factor, const float* values, float* sum, int64_t count);

}  // namespace rueda::kernels
