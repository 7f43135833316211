// PURE
#include "ops/hierarchical/cut.h"

#include <algorithm>

#include "core/base/round_up.h"

namespace rueda {
namespace {

constexpr size_t kLine = 64;
// A part of a block should have about this size; blocks must stay small enough for a core's cache.
constexpr size_t kPartBytes = 32 << 10;
constexpr size_t kBlockBytesMin = 512 << 10;
constexpr size_t kBlockBytesMax = 2 << 20;
// In how many blocks an operation is cut if they are not larger than these: so many steps overlap.
constexpr int64_t kBlocksMin = 8;
constexpr size_t kOverlapBytes = 128 << 10;
// What is so small that trips and wake-ups cost more than bytes.
constexpr size_t kSmallBytes = 32 << 10;
// Of what a member receives of a small operation.
constexpr size_t kSmallReceivedBytesMax = 384 << 10;

}  // namespace

CutLimits LimitsFor(int hosts, int stripes, size_t block_bytes) {
  CutLimits limits;
  limits.hosts = hosts;
  limits.stripes = stripes;
  const size_t parts = static_cast<size_t>(hosts) * static_cast<size_t>(stripes);
  limits.block_bytes =
      RoundUp(block_bytes > 0 ? block_bytes
                              : std::clamp(parts * kPartBytes, kBlockBytesMin, kBlockBytesMax),
              kLine);
  // Slices are equal but for a line.
  const auto slice = [](size_t bytes, int n) {
    return RoundUp(bytes / static_cast<size_t>(n), kLine) + kLine;
  };
  limits.stripe_bytes = slice(limits.block_bytes, stripes);
  limits.small_bytes = std::min(
      {kSmallBytes, limits.stripe_bytes, kSmallReceivedBytesMax / static_cast<size_t>(hosts - 1)});
  limits.part_bytes =
      hosts == 2 ? limits.stripe_bytes
                 : std::max(slice(limits.stripe_bytes, hosts), RoundUp(limits.small_bytes, kLine));
  return limits;
}

Cut MakeCut(const CutLimits& limits, int64_t elements, size_t wire_bytes, size_t result_bytes) {
  Cut cut;
  cut.hosts = limits.hosts;
  cut.wire_bytes = wire_bytes;
  cut.result_bytes = result_bytes;
  cut.elements = elements;
  cut.block_elements = static_cast<int64_t>(limits.block_bytes / wire_bytes);
  const auto small = static_cast<int64_t>(limits.small_bytes / wire_bytes);
  if (elements <= small) return cut;
  cut.stripes = limits.stripes;
  // Two hosts send as much either way, unless results are narrower.
  cut.direct = limits.hosts == 2 && wire_bytes == result_bytes;
  const auto overlap = static_cast<int64_t>(kOverlapBytes / wire_bytes);
  const auto line = static_cast<int64_t>(kLine / wire_bytes);
  const int64_t wanted = RoundUp(elements / kBlocksMin, line);
  cut.block_elements = std::min(cut.block_elements, std::max(wanted, overlap));
  cut.blocks = (elements + cut.block_elements - 1) / cut.block_elements;
  return cut;
}

Range Cut::Block(int64_t block) const {
  const int64_t begin = block * block_elements;
  return {begin, std::min(begin + block_elements, elements)};
}

Range Cut::Stripe(int64_t block, int stripe) const {
  return SliceOf(Block(block), stripe, stripes, wire_bytes);
}

Range Cut::Part(Range stripe, int host) const {
  return direct ? stripe : SliceOf(stripe, host, hosts, wire_bytes);
}

}  // namespace rueda
