// Digests of what happened, by which runs are compared.
#pragma once

#include <cstdint>

namespace rueda::sim {

inline uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace rueda::sim
