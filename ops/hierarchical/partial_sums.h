// How a reduction over several hosts adds up: each host its members' operands, in rank order, to a
// partial that travels, and who makes the result the hosts' partials, in the order of the hosts.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/communicator.h"
#include "ops/backend/range.h"
#include "ops/hierarchical/cross_wire.h"
#include "ops/hierarchical/host_split.h"

namespace rueda {

class PartialSums {
 public:
  void Reset(const BucketOperation& operation, const HostSplit& split, bool narrow);

  // Of an element as it travels.
  size_t wire_bytes() const { return DTypeSize(wire_.type); }
  // Whether an operand that is a host's only one travels as the tensor has it.
  bool TravelsAsItIs() const { return !wire_.widens() && wire_.before.none(); }
  // Whether any member of a host brings something.
  bool Contributes(int host) const { return contributing_[static_cast<size_t>(host)]; }

  // Puts elements [begin, end) at `to` as they travel. `pack(begin, end, to)` puts those of the
  // tensors', ascending.
  template <typename Fn>
  void Pack(Range range, char* to, Fn pack) {
    if (!wire_.widens()) return pack(range.begin, range.end, to);
    if (narrow_ == nullptr) narrow_.reset(new char[kNarrowedAtATime * kernels::kNarrowBytesMax]);
    for (int64_t begin = range.begin; begin < range.end; begin += kNarrowedAtATime) {
      const int64_t end = std::min(begin + kNarrowedAtATime, range.end);
      pack(begin, end, narrow_.get());
      kernels::Widen(wire_, narrow_.get(),
                     to + static_cast<size_t>(begin - range.begin) * wire_bytes(), end - begin);
    }
  }
  // Makes a partial of operands, of which one may be at `to`.
  void Reduce(absl::Span<const void* const> operands, char* to, int64_t count) const;
  // Makes `count` elements of the result. `parts`: by host, those of hosts that contribute.
  void Combine(absl::Span<const char* const> parts, char* to, int64_t count);

 private:
  static constexpr int64_t kNarrowedAtATime = 4 << 10;

  ReduceOp reduce_op_ = ReduceOp::kSum;
  kernels::Wire wire_;
  std::vector<bool> contributing_;
  std::unique_ptr<char[]> narrow_;  // packed elements that are to be widened
  std::vector<const void*> partials_;
};

}  // namespace rueda
