// PURE
#include "ops/hierarchical/cut.h"

#include <algorithm>

#include "core/base/round_up.h"

namespace rueda {
namespace {

constexpr size_t kLine = 64;
// An operation is cut in so many blocks, unless they would be too small.
constexpr int64_t kBlocksMin = 4;
// What is so small that trips and wake-ups cost more than bytes.
constexpr size_t kSmallBytes = 32 << 10;
// Of what a member receives of a small operation.
constexpr size_t kSmallReceivedBytesMax = 384 << 10;

}  // namespace

CutLimits LimitsFor(int hosts, int stripes, BlockSizes blocks) {
  CutLimits limits;
  limits.hosts = hosts;
  limits.stripes = stripes;
  limits.block_bytes = RoundUp(blocks.most, kLine);
  limits.reduced_bytes = std::min(blocks.reduced, limits.block_bytes);
  limits.least_bytes = blocks.least;
  limits.block_bytes = std::max(limits.block_bytes, static_cast<size_t>(hosts) * kLine);
  // Slices are equal but for a line.
  const auto slice = [](size_t bytes, int n) {
    return RoundUp(bytes / static_cast<size_t>(n), kLine) + kLine;
  };
  limits.stripe_bytes =
      std::max(slice(limits.block_bytes, stripes), static_cast<size_t>(hosts) * kLine);
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
  cut.block_elements = static_cast<int64_t>(limits.reduced_bytes / wire_bytes);
  const auto small = static_cast<int64_t>(limits.small_bytes / wire_bytes);
  if (elements <= small) return cut;
  cut.stripes = limits.stripes;
  // Two hosts send as much either way, unless results are narrower.
  cut.direct = limits.hosts == 2 && wire_bytes == result_bytes;
  const auto least = static_cast<int64_t>(limits.least_bytes / wire_bytes);
  const auto line = static_cast<int64_t>(kLine / wire_bytes);
  const int64_t wanted = RoundUp(elements / kBlocksMin, line);
  cut.block_elements = std::min(cut.block_elements, std::max(wanted, least));
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
