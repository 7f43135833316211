// The numbers by which things are called. PURE
#pragma once

#include <cstdint>

namespace rueda {

using Rank = int32_t;   // a world rank unless its name says otherwise
using SetId = int32_t;  // a process set; 0 is the world
using TensorId =
    uint32_t;  // short for (process set, name, signature); see negotiation/tensor_table.h

inline constexpr SetId kWorldSet = 0;
inline constexpr TensorId kNoTensor = 0;

}  // namespace rueda
