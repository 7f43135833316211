// Numbers to try the CUDA kernels with: random bits, and those where arithmetic is delicate.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"
#include "ops/kernels/reduce.h"

namespace rueda::cuda {

inline std::vector<DType> AllDTypes() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) types.push_back(static_cast<DType>(i));
  return types;
}

// Those that kernels::Reduce takes.
inline std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (op != ReduceOp::kAdasum && kernels::CheckReducible(dtype, op).ok()) ops.push_back(op);
  }
  return ops;
}

inline std::vector<uint8_t> RandomBytes(int64_t count, std::mt19937* random) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((*random)());
  return bytes;
}

// Half of them any bits, which of floating types are of all sizes, NaN now and then; the others
// near 1, or special.
inline std::vector<uint8_t> RandomNumbers(DType dtype, int64_t count, std::mt19937* random) {
  const size_t size = DTypeSize(dtype);
  std::vector<uint8_t> bytes = RandomBytes(count * static_cast<int64_t>(size), random);
  if (dtype == DType::kBool) {
    for (uint8_t& byte : bytes) byte = (*random)() % 3 == 0 ? 0 : byte;
  }
  if (!IsFloating(dtype) && !IsComplex(dtype)) return bytes;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {0.0f,
                                -0.0f,
                                1.0f,
                                -1.0f,
                                kInfinity,
                                -kInfinity,
                                std::numeric_limits<float>::quiet_NaN(),
                                -std::numeric_limits<float>::quiet_NaN(),
                                448.0f,
                                65504.0f,
                                57344.0f,
                                3e38f,
                                -3e38f,
                                1e-45f,
                                6e-8f,
                                2e-38f};
  const size_t part = IsComplex(dtype) ? size / 2 : size;
  for (size_t at = 0; at < bytes.size(); at += part) {
    if ((*random)() % 2 == 0) continue;
    const float value = (*random)() % 6 == 0 ? kSpecial[(*random)() % std::size(kSpecial)]
                                             : std::normal_distribution<float>()(*random);
    if (part == 8) {
      const double wide = value;
      std::memcpy(&bytes[at], &wide, 8);
    } else if (part == 4) {
      std::memcpy(&bytes[at], &value, 4);
    } else {
      kernels::FromFloat32(dtype, &value, &bytes[at], 1);
    }
  }
  return bytes;
}

}  // namespace rueda::cuda
