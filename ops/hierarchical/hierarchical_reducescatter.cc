#include "ops/hierarchical/hierarchical_reducescatter.h"

namespace rueda {

BlockLayout HierarchicalReducescatter::Layout() {
  sums_.Reset(operation_, split_, narrow_);
  channels_.Reset(operation_, split_.self(), split_.ranks());
  segments_.Reset(operation_, split_, limits_, sums_.wire_bytes());
  return {segments_.blocks(), segments_.stripes()};
}

// This rank's own of the segment for a host; ascending.
void HierarchicalReducescatter::Pack(Range range, int host, char* to) {
  const size_t bytes = DTypeSize(operation_.dtype);
  Segments::ForEach(segments_.To(host), range, [&](const Segments::Span& span, Range part) {
    char* const at = to + static_cast<size_t>(part.begin - range.begin) * sums_.wire_bytes();
    sums_.Pack(part, at, [&](int64_t begin, int64_t end, char* packed) {
      channels_.given(span.taker).CopyTo(packed, static_cast<size_t>(end - begin) * bytes);
    });
  });
}

void HierarchicalReducescatter::Bring(int64_t block, char* to) {
  Timed(operation_.timed, &times_.pack, [&] {
    for (int host = 0; host < split_.hosts(); ++host) {
      Pack(segments_.Block(block, split_.host, host), host,
           to + static_cast<size_t>(host) * segments_.block_bytes());
    }
  });
}

const char* HierarchicalReducescatter::Collect(int64_t block, int host, char* to, bool may_stay) {
  const Range stripe = segments_.Stripe(block, split_.host, host, split_.local);
  if (may_stay && !Shares() && !IsAbsent(split_.local) && sums_.TravelsAsItIs()) {
    const Segments::Span* const span = Segments::Whole(segments_.To(host), stripe);
    const size_t bytes = static_cast<size_t>(stripe.size()) * sums_.wire_bytes();
    if (span != nullptr) {
      const char* const given = channels_.given(span->taker).TakeContiguous(bytes);
      if (given != nullptr) return given;
    }
  }
  const int64_t before = stripe.begin - segments_.Block(block, split_.host, host).begin;
  const size_t offset = static_cast<size_t>(host) * segments_.block_bytes() +
                        static_cast<size_t>(before) * sums_.wire_bytes();
  operands_.clear();
  for (int local = 0; local < locals(); ++local) {
    if (IsAbsent(local)) continue;
    if (!Shares()) Pack(stripe, host, to);
    operands_.push_back(Shares() ? Brought(local, block) + offset : to);
  }
  sums_.Reduce(operands_, to, stripe.size());
  return to;
}

BlockOperation::Place HierarchicalReducescatter::PlaceOf(int64_t /*block*/, int host) const {
  return {host, static_cast<size_t>(host) * segments_.stripe_bytes()};
}

size_t HierarchicalReducescatter::SentBytes(int64_t block, int from, int to) const {
  if (!sums_.Contributes(from)) return 0;
  return static_cast<size_t>(segments_.Stripe(block, from, to, split_.local).size()) *
         sums_.wire_bytes();
}

void HierarchicalReducescatter::Finish(int64_t block, absl::Span<const char* const> parts,
                                       char* finished) {
  sums_.Combine(parts, finished,
                segments_.Stripe(block, split_.host, split_.host, split_.local).size());
}

void HierarchicalReducescatter::TakeParts(int64_t block, absl::Span<const char* const> parts,
                                          char* scratch) {
  if (IsAbsent(split_.local)) return;
  const int64_t count = segments_.Block(block, split_.host, split_.host).size();
  const size_t bytes = static_cast<size_t>(count) * DTypeSize(operation_.dtype);
  Stream& taken = channels_.taken(0);
  char* const output = taken.TakeContiguous(bytes);
  sums_.Combine(parts, output == nullptr ? scratch : output, count);
  if (output != nullptr) return;
  Timed(operation_.timed, &times_.unpack, [&] { taken.CopyFrom(scratch, bytes); });
}

void HierarchicalReducescatter::Take(int64_t block) {
  if (IsAbsent(split_.local)) return;
  const size_t bytes = DTypeSize(operation_.dtype);
  Timed(operation_.timed, &times_.unpack, [&] {
    for (int i = 0; i < segments_.stripes(); ++i) {
      const Range stripe = segments_.Stripe(block, split_.host, split_.host, i);
      Segments::ForEach(
          segments_.To(split_.host), stripe, [&](const Segments::Span& span, Range part) {
            if (span.taker != split_.self()) return;
            channels_.taken(0).CopyFrom(
                Finished(i, block) + static_cast<size_t>(part.begin - stripe.begin) * bytes,
                static_cast<size_t>(part.size()) * bytes);
          });
    }
  });
}

}  // namespace rueda
