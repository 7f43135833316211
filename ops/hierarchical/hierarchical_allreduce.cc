#include "ops/hierarchical/hierarchical_allreduce.h"

namespace rueda {

BlockLayout HierarchicalAllreduce::Layout() {
  sums_.Reset(operation_, split_, narrow_);
  const size_t result_bytes = DTypeSize(operation_.dtype);
  pieces_.Reset(operation_.pieces, result_bytes);
  cut_ = MakeCut(limits_, operation_.elements, sums_.wire_bytes(), result_bytes);
  return {cut_.blocks, cut_.stripes, !cut_.direct};
}

void HierarchicalAllreduce::Pack(Range range, char* to) {
  sums_.Pack(range, to,
             [&](int64_t begin, int64_t end, char* at) { pieces_.Pack(begin, end, at); });
}

void HierarchicalAllreduce::Bring(int64_t block, char* to) {
  Timed(operation_.timed, &times_.pack, [&] { Pack(cut_.Block(block), to); });
}

const char* HierarchicalAllreduce::Collect(int64_t block, int host, char* to, bool may_stay) {
  const Range part = cut_.Part(Stripe(block), host);
  if (may_stay && !Shares() && !IsAbsent(split_.local) && sums_.TravelsAsItIs()) {
    const char* const input = pieces_.Input(part.begin, part.end);
    if (input != nullptr) return input;
  }
  const size_t offset = static_cast<size_t>(part.begin - cut_.Block(block).begin) * cut_.wire_bytes;
  operands_.clear();
  for (int local = 0; local < locals(); ++local) {
    if (IsAbsent(local)) continue;
    if (!Shares()) Pack(part, to);
    operands_.push_back(Shares() ? Brought(local, block) + offset : to);
  }
  sums_.Reduce(operands_, to, part.size());
  return to;
}

void HierarchicalAllreduce::Take(int64_t block) {
  if (IsAbsent(split_.local)) return;
  Timed(operation_.timed, &times_.unpack, [&] {
    for (int i = 0; i < cut_.stripes; ++i) {
      const Range stripe = cut_.Stripe(block, i);
      pieces_.Unpack(stripe.begin, stripe.end, Finished(i, block));
    }
  });
}

void HierarchicalAllreduce::TakeParts(int64_t block, absl::Span<const char* const> parts,
                                      char* scratch) {
  if (IsAbsent(split_.local)) return;
  const Range range = cut_.Block(block);
  char* const output = pieces_.Output(range.begin, range.end);
  sums_.Combine(parts, output == nullptr ? scratch : output, range.size());
  if (output != nullptr) return;
  Timed(operation_.timed, &times_.unpack, [&] { pieces_.Unpack(range.begin, range.end, scratch); });
}

BlockOperation::Place HierarchicalAllreduce::PlaceOf(int64_t block, int host) const {
  const Range stripe = Stripe(block);
  const Range part = cut_.Part(stripe, host);
  return {cut_.direct ? 0 : host, static_cast<size_t>(part.begin - stripe.begin) * cut_.wire_bytes};
}

// Nothing from a host that brings nothing; of two hosts, nothing directly to one that wants
// nothing.
size_t HierarchicalAllreduce::SentBytes(int64_t block, int from, int to) const {
  if (!sums_.Contributes(from)) return 0;
  if (cut_.direct && cut_.hosts == 2 && !sums_.Contributes(to)) return 0;
  return static_cast<size_t>(cut_.Part(Stripe(block), to).size()) * cut_.wire_bytes;
}

BlockOperation::Extent HierarchicalAllreduce::MadeBy(int64_t block, int host) const {
  const Range stripe = Stripe(block);
  const Range part = cut_.Part(stripe, host);
  return {static_cast<size_t>(part.begin - stripe.begin) * cut_.result_bytes,
          static_cast<size_t>(part.size()) * cut_.result_bytes};
}

void HierarchicalAllreduce::Finish(int64_t block, absl::Span<const char* const> parts,
                                   char* finished) {
  if (cut_.direct && !sums_.Contributes(split_.host)) return;  // nobody here wants it
  sums_.Combine(parts, finished + MadeBy(block, split_.host).offset,
                cut_.Part(Stripe(block), split_.host).size());
}

}  // namespace rueda
