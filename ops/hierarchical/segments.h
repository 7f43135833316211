// What the hosts of a process set send each other in an operation that hands data on, and how it is
// cut. PURE
//
// A *segment* is all that one host sends to another one, or keeps for itself: a sequence of spans,
// each from one member and for one, or for all who take. Blocks cut every segment alike: a block
// has the next so many elements of each.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/backend/communicator.h"
#include "ops/backend/range.h"
#include "ops/hierarchical/cut.h"
#include "ops/hierarchical/host_split.h"

namespace rueda {

class Segments {
 public:
  struct Span {
    int giver;    // member index; of a reducescatter -1: all of the host give
    int taker;    // -1: all of the host take
    Range range;  // in the segment
  };

  // An operation for which Channels::Carry holds. `element_bytes`: of one as it travels.
  void Reset(const BucketOperation& operation, const HostSplit& split, const CutLimits& limits,
             size_t element_bytes);

  int64_t blocks() const { return blocks_; }
  int stripes() const { return stripes_; }
  // Whether trips and wake-ups cost more than bytes: one member of each host does it all.
  bool small() const { return small_; }
  // Whether all hosts are sent the same.
  bool shared() const { return shared_; }
  // Room for a block's slice of a segment, and for a stripe of that.
  size_t block_bytes() const { return static_cast<size_t>(block_elements_) * element_bytes_; }
  size_t stripe_bytes() const { return block_bytes() / static_cast<size_t>(stripes_); }

  // This host's segments.
  const std::vector<Span>& To(int host) const { return to_[static_cast<size_t>(host)]; }
  const std::vector<Span>& From(int host) const { return from_[static_cast<size_t>(host)]; }
  // A block's slice of one of this host's segments.
  Range Block(int64_t block, int from, int to) const;
  // Calls fn(span, overlap) for those of a segment's spans that have a part in `range`, in order.
  template <typename Fn>
  static void ForEach(const std::vector<Span>& spans, Range range, Fn fn) {
    auto span = std::partition_point(spans.begin(), spans.end(), [&](const Span& each) {
      return each.range.end <= range.begin;
    });
    for (; span != spans.end() && span->range.begin < range.end; ++span) {
      fn(*span, Overlap(span->range, range));
    }
  }
  // The span that all of `range` is a part of; null: there is none, or nothing in it.
  static const Span* Whole(const std::vector<Span>& spans, Range range) {
    const Span* found = nullptr;
    ForEach(spans, range, [&](const Span& span, Range part) {
      if (part.size() == range.size()) found = &span;
    });
    return found;
  }
  Range Stripe(int64_t block, int from, int to, int stripe) const {
    return SliceOf(Block(block, from, to), stripe, stripes_, element_bytes_);
  }

 private:
  void SumCounts(const BucketOperation& operation);
  int64_t Elements(int giver, int taker) const;
  void AddSpans(const std::vector<int>& givers, const std::vector<int>& takers,
                std::vector<Span>* spans) const;
  static int64_t LengthOf(const std::vector<Span>& spans) {
    return spans.empty() ? 0 : spans.back().range.end;
  }
  int64_t LongestSegment(const HostSplit& split) const;
  void MakeBlocks(int64_t longest, const CutLimits& limits);

  OpKind kind_ = OpKind::kBroadcast;
  int root_ = -1;
  bool shared_ = false;
  bool small_ = false;
  size_t element_bytes_ = 1;
  int host_ = 0;
  int stripes_ = 1;
  int64_t blocks_ = 1;
  int64_t block_elements_ = 1;
  std::vector<int64_t> counts_;  // of all pieces together
  size_t members_ = 1;
  std::vector<std::vector<Span>> to_, from_;  // by host; to_[host_] is from_[host_]
};

}  // namespace rueda
