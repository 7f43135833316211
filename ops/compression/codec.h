// What a block of numbers becomes on its way, for the compressors whose blocks stand for
// themselves: fp16, bf16, fp8, int8, 1bit. PURE
//
//   fp16, bf16   the numbers, rounded
//   fp8          a float32 scale, and the numbers divided by it as float8_e4m3fn
//   int8         float32 least and largest number, and for each the nearest of 256 even steps
//                between them (the quantiser of Bagua's ByteGrad, arXiv 2107.01499)
//   1bit         float32 mean magnitude, and a bit for each number's sign (arXiv 2102.02888)
//
// A number that is NaN or infinite makes its block NaN (fp16, bf16: itself): nobody takes rubbish
// for a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor/signature.h"

namespace rueda {

// Elements that share a scale. Each tensor begins with a block of its own; its last one may be
// shorter.
inline constexpr int64_t kCodecBlock = 512;

bool HasCodec(Compressor compressor);

// Of consecutive elements that begin with a block.
int64_t CodedBytes(Compressor compressor, int64_t elements);

void Encode(Compressor compressor, const float* values, int64_t elements, char* coded);
// Afterwards values[i] is what Decode gives, and residual[i] what is missing of what it was (0
// where that is no finite number).
void EncodeWithResidual(Compressor compressor, float* values, int64_t elements, char* coded,
                        float* residual);
void Decode(Compressor compressor, const char* coded, int64_t elements, float* values);
// Adds to `sum` instead.
void DecodeAndAdd(Compressor compressor, const char* coded, int64_t elements, float* sum);

}  // namespace rueda
