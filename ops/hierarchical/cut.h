// How an operation over several hosts is cut. PURE
//
//   block    what goes through the ring at a time
//   stripe   a block's slice that one member of each host takes across the network
//   part     a stripe's slice that one host reduces
//
// In a direct operation every host reduces whole stripes: each gets everybody's, one trip.
// Otherwise each reduces its part, and gets the others' reduced: two trips, and less to send from
// three hosts on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend/range.h"

namespace rueda {

// What a communicator's memory is laid out by; equal on all members.
struct CutLimits {
  int hosts = 2;
  int stripes = 1;
  size_t block_bytes = 0;   // of a block, as it travels; a multiple of 64
  size_t stripe_bytes = 0;  // of the largest stripe
  size_t part_bytes = 0;    // of the largest part that comes from another host
  size_t small_bytes = 0;   // up to which one member of each host takes all of it across, directly
};

// `block_bytes` 0: one that suits them.
CutLimits LimitsFor(int hosts, int stripes, size_t block_bytes = 0);

struct Cut {
  int hosts = 2;
  int stripes = 1;
  bool direct = true;
  size_t wire_bytes = 1;    // of an element as it travels
  size_t result_bytes = 1;  // of an element of the result
  int64_t elements = 0;
  int64_t block_elements = 1;
  int64_t blocks = 1;  // at least one: without data the members meet all the same

  Range Block(int64_t block) const;
  Range Stripe(int64_t block, int stripe) const;
  // What `host` reduces of the stripe; of a direct operation, all of it.
  Range Part(Range stripe, int host) const;
};

Cut MakeCut(const CutLimits& limits, int64_t elements, size_t wire_bytes, size_t result_bytes);

}  // namespace rueda
