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

// A place for one process of an elastic job on a host, by the launcher's number. It keeps that when
// another process takes it.
using Slot = int32_t;
inline constexpr Slot kNoSlot = -1;

}  // namespace rueda
