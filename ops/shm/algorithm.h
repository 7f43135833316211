// One way to do a collective in shared memory. One file an algorithm: small.cc, staged.cc and
// direct.cc reduce, exchange.cc hands data on, pair.cc is for two.
#pragma once

#include <algorithm>

#include "ops/backend/communicator.h"
#include "ops/backend/pieces.h"
#include "ops/kernels/reduce.h"
#include "ops/shm/shm_group.h"

namespace rueda {

// Owned by the communicator, which runs one algorithm at a time.
class ShmAlgorithm {
 public:
  explicit ShmAlgorithm(ShmGroup* group) : group_(group) {}
  virtual ~ShmAlgorithm() = default;
  virtual void Start(const Collective& collective) = 0;
  virtual absl::StatusOr<Progress> Advance() = 0;
  virtual PhaseTimes phase_times() const { return {}; }

 protected:
  static kernels::Scaling ScalingOf(const Collective& collective) {
    return {collective.prescale, collective.postscale, collective.divisor};
  }
  ShmGroup* const group_;
};

// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Member i's slice of `range`: equal parts whose borders are multiples of a cache line.
inline Range SliceOf(Range range, int i, int members, size_t element_bytes) {
  const int64_t line = static_cast<int64_t>(64 / element_bytes);
  const auto border = [&](int k) {
    if (k == members) return range.end;
    // In whole lines first: the product fits, as the range has fewer than 2^63 bytes.
    const int64_t lines = (range.size() + line - 1) / line;
    return std::min(
        range.end, range.begin + lines / members * k * line + lines % members * k / members * line);
  };
  return {border(i), border(i + 1)};
}

}  // namespace rueda
