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

// How large blocks are. Each one more costs a message, and over Gloo some wake-ups, which on a fast
// network cost as much as some 100 KiB. Smaller ones stay in the cache on their way.
struct BlockSizes {
  size_t most;
  size_t reduced;  // at most, of a reduction to all
  size_t least;    // where that has several, which overlap
};
inline constexpr BlockSizes kBlocksOverGloo = {2 << 20, 2 << 20, 1 << 20};
inline constexpr BlockSizes kBlocksOverSockets = {1 << 20, 512 << 10, 128 << 10};

// What a communicator's memory is laid out by; equal on all members.
struct CutLimits {
  int hosts = 2;
  int stripes = 1;
  size_t block_bytes = 0;                     // of a block, as it travels; a multiple of 64
  size_t reduced_bytes = 0, least_bytes = 0;  // see BlockSizes
  size_t stripe_bytes = 0;                    // of the largest stripe
  size_t part_bytes = 0;                      // of the largest part that comes from another host
  size_t small_bytes = 0;  // up to which one member of each host takes all of it across, directly
};

CutLimits LimitsFor(int hosts, int stripes, BlockSizes blocks);

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
