// PURE
#include "ops/hierarchical/segments.h"

#include <algorithm>

#include "core/base/round_up.h"

namespace rueda {
namespace {

constexpr size_t kLine = 64;

bool IsTo(int member, const std::vector<int>& members) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

}  // namespace

void Segments::Reset(const BucketOperation& operation, const HostSplit& split,
                     const CutLimits& limits, size_t element_bytes) {
  kind_ = operation.kind;
  root_ = operation.root;
  shared_ = kind_ == OpKind::kBroadcast || kind_ == OpKind::kAllgather;
  element_bytes_ = element_bytes;
  host_ = split.host;
  members_ = static_cast<size_t>(split.ranks());
  SumCounts(operation);
  to_.resize(split.members.size());
  from_.resize(split.members.size());
  for (size_t host = 0; host < split.members.size(); ++host) {
    AddSpans(split.own(), split.members[host], &to_[host]);
    AddSpans(split.members[host], split.own(), &from_[host]);
  }
  MakeBlocks(LongestSegment(split), limits);
}

void Segments::SumCounts(const BucketOperation& operation) {
  if (kind_ == OpKind::kBroadcast) {
    counts_.assign(1, operation.elements);
    return;
  }
  const size_t columns = operation.counts.size() / operation.pieces.size();
  counts_.assign(columns, 0);
  for (size_t i = 0; i < operation.counts.size(); ++i) {
    counts_[i % columns] += operation.counts[i];
  }
}

int64_t Segments::Elements(int giver, int taker) const {
  switch (kind_) {
    case OpKind::kBroadcast:
      return giver == root_ ? counts_[0] : 0;
    case OpKind::kAllgather:
    case OpKind::kGather:
      return counts_[static_cast<size_t>(giver)];
    case OpKind::kScatter:
      return giver == root_ ? counts_[static_cast<size_t>(taker)] : 0;
    case OpKind::kReducescatter:
      return counts_[static_cast<size_t>(taker)];
    default:  // alltoall
      return counts_[static_cast<size_t>(giver) * members_ + static_cast<size_t>(taker)];
  }
}

void Segments::AddSpans(const std::vector<int>& givers, const std::vector<int>& takers,
                        std::vector<Span>* spans) const {
  spans->clear();
  const auto add = [&](int giver, int taker, int64_t elements) {
    const int64_t begin = LengthOf(*spans);
    if (elements > 0) spans->push_back({giver, taker, {begin, begin + elements}});
  };
  if (kind_ == OpKind::kGather && !IsTo(root_, takers)) return;
  if (kind_ == OpKind::kReducescatter) {
    for (const int taker : takers) add(-1, taker, Elements(-1, taker));
    return;
  }
  const bool by_taker = kind_ == OpKind::kScatter || kind_ == OpKind::kAlltoall;
  for (const int giver : givers) {
    if (!by_taker) {
      add(giver, -1, Elements(giver, -1));
      continue;
    }
    for (const int taker : takers) add(giver, taker, Elements(giver, taker));
  }
}

// Of any two hosts: all members cut alike.
int64_t Segments::LongestSegment(const HostSplit& split) const {
  const auto hosts = split.members.size();
  if (kind_ == OpKind::kBroadcast) return counts_[0];
  int64_t longest = 0;
  if (kind_ != OpKind::kAlltoall) {
    for (const std::vector<int>& members : split.members) {
      int64_t sum = 0;
      for (const int member : members) sum += counts_[static_cast<size_t>(member)];
      longest = std::max(longest, sum);
    }
    return longest;
  }
  std::vector<size_t> host_of(members_);
  for (size_t host = 0; host < hosts; ++host) {
    for (const int member : split.members[host]) host_of[static_cast<size_t>(member)] = host;
  }
  std::vector<int64_t> sums(hosts);
  for (const std::vector<int>& givers : split.members) {
    std::fill(sums.begin(), sums.end(), 0);
    for (const int giver : givers) {
      const int64_t* const row = counts_.data() + static_cast<size_t>(giver) * members_;
      for (size_t taker = 0; taker < members_; ++taker) sums[host_of[taker]] += row[taker];
    }
    longest = std::max(longest, *std::max_element(sums.begin(), sums.end()));
  }
  return longest;
}

// A block has room for one slice of each host's segment.
void Segments::MakeBlocks(int64_t longest, const CutLimits& limits) {
  const auto hosts = static_cast<size_t>(limits.hosts);
  const auto bytes = static_cast<uint64_t>(longest) * element_bytes_;
  size_t block =
      std::max<size_t>(RoundUp(std::min<uint64_t>(bytes, limits.small_bytes), kLine), kLine);
  stripes_ = 1;
  small_ = bytes <= limits.small_bytes &&
           hosts * block <= std::min(limits.stripe_bytes, limits.block_bytes);
  if (!small_) {
    const size_t room = limits.block_bytes / hosts;
    stripes_ = static_cast<int>(std::clamp<size_t>(room / kLine, 1, limits.stripes));
    const size_t lines = kLine * static_cast<size_t>(stripes_);
    block = room / lines * lines;
  }
  block_elements_ = static_cast<int64_t>(block / element_bytes_);
  blocks_ = std::max<int64_t>(1, (longest + block_elements_ - 1) / block_elements_);
}

Range Segments::Block(int64_t block, int from, int to) const {
  const int64_t length = LengthOf(from == host_ ? To(to) : From(from));
  const int64_t begin = std::min(length, block * block_elements_);
  return {begin, std::min(length, begin + block_elements_)};
}

}  // namespace rueda
