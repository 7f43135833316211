#include "ops/hierarchical/hierarchical_exchange.h"

#include <algorithm>

#include "ops/kernels/copy.h"

namespace rueda {

BlockLayout HierarchicalExchange::Layout() {
  channels_.Reset(operation_, split_.self(), split_.ranks());
  segments_.Reset(operation_, split_, limits_, DTypeSize(operation_.dtype));
  root_host_ = -1;
  if (operation_.kind != OpKind::kBroadcast) return {segments_.blocks(), segments_.stripes()};
  root_host_ = split_.HostOf(operation_.root);
  return {segments_.blocks(), segments_.stripes(), split_.hosts() > 2 && !segments_.small()};
}

Range HierarchicalExchange::Relayed(int64_t block, int host) const {
  if (host == root_host_) return {};
  const Range stripe = segments_.Stripe(block, root_host_, split_.host, split_.local);
  return SliceOf(stripe, RelayOf(host), split_.hosts() - 1, DTypeSize(operation_.dtype));
}

void HierarchicalExchange::Bring(int64_t block, char* to) {
  Timed(operation_.timed, &times_.pack, [&] {
    const int hosts = segments_.shared() ? 1 : split_.hosts();
    for (int host = 0; host < hosts; ++host) {
      const Range range = segments_.Block(block, split_.host, host);
      Segments::ForEach(segments_.To(host), range, [&](const Segments::Span& span, Range part) {
        if (span.giver != split_.self() || KeptByItself(span)) return;
        Given(span).CopyTo(to + SegmentAt(host) + Size(part.begin - range.begin),
                           Size(part.size()));
      });
    }
  });
}

const char* HierarchicalExchange::Collect(int64_t block, int host, char* to, bool may_stay) {
  if (!Shares() && host == split_.host && (relays() || !segments_.shared())) return to;
  const Range range = segments_.Block(block, split_.host, host);
  Range stripe = segments_.Stripe(block, split_.host, host, split_.local);
  if (relays() && host != split_.host) stripe = Relayed(block, host);
  const auto brought = [&](const Segments::Span& span, Range part) {
    const auto giver = std::lower_bound(split_.own().begin(), split_.own().end(), span.giver);
    return Brought(static_cast<int>(giver - split_.own().begin()), block) + SegmentAt(host) +
           Size(part.begin - range.begin);
  };
  const Segments::Span* const whole =
      may_stay ? Segments::Whole(segments_.To(host), stripe) : nullptr;
  if (whole != nullptr && !KeptByItself(*whole)) {
    const char* const at =
        Shares() ? brought(*whole, stripe) : Given(*whole).TakeContiguous(Size(stripe.size()));
    if (at != nullptr) return at;
  }
  Segments::ForEach(segments_.To(host), stripe, [&](const Segments::Span& span, Range part) {
    char* const at = to + Size(part.begin - stripe.begin);
    if (KeptByItself(span)) return;
    if (!Shares()) {
      Given(span).CopyTo(at, Size(part.size()));
      return;
    }
    kernels::Copy(at, brought(span, part), Size(part.size()));
  });
  return to;
}

// The hosts to which a broadcast is relayed have their parts of the stripe one after another, and
// behind them is the whole for the root's own host.
BlockOperation::Place HierarchicalExchange::PlaceOf(int64_t block, int host) const {
  if (relays()) {
    if (split_.host != root_host_) return {0, 0};  // headers alone, and all the same
    const Range stripe = segments_.Stripe(block, root_host_, root_host_, split_.local);
    if (host == root_host_) return {split_.hosts() - 1, Size(stripe.size())};
    return {RelayOf(host), Size(Relayed(block, host).begin - stripe.begin)};
  }
  if (segments_.shared()) return {0, 0};
  return {host, static_cast<size_t>(host) * segments_.stripe_bytes()};
}

size_t HierarchicalExchange::SentBytes(int64_t block, int from, int to) const {
  if (relays() && from != to) return from == root_host_ ? Size(Relayed(block, to).size()) : 0;
  return Size(segments_.Stripe(block, from, to, split_.local).size());
}

BlockOperation::Extent HierarchicalExchange::MadeBy(int64_t block, int host) const {
  if (!relays() || host == root_host_) return {};
  const Range stripe = segments_.Stripe(block, root_host_, split_.host, split_.local);
  const Range part = Relayed(block, host);
  return {FinishedAt(root_host_) + Size(part.begin - stripe.begin), Size(part.size())};
}

void HierarchicalExchange::Finish(int64_t block, absl::Span<const char* const> parts,
                                  char* finished) {
  for (int host = 0; host < split_.hosts(); ++host) {
    if (host == split_.host && !Shares()) continue;
    char* const at = finished + FinishedFirst(block, host);
    const char* const part = parts[static_cast<size_t>(host)];
    if (part != at) kernels::Copy(at, part, SentBytes(block, host, split_.host));
  }
}

// No input lies where an output of another rank's data does: an alltoall is not done in place.
char* HierarchicalExchange::Destination(int64_t block, int host, char* finished) {
  if (!layout().taken_from_parts) return finished + FinishedFirst(block, host);
  const Range range = segments_.Block(block, host, split_.host);
  const Segments::Span* const span = Segments::Whole(segments_.From(host), range);
  if (span == nullptr) return nullptr;
  return channels_.taken(span->giver).At(Size(range.begin - span->range.begin), Size(range.size()));
}

void HierarchicalExchange::Take(int64_t block) {
  TakeAll(block, [&](int host, int stripe) { return Finished(stripe, block) + FinishedAt(host); });
}

void HierarchicalExchange::TakeParts(int64_t block, absl::Span<const char* const> parts,
                                     char* /*scratch*/) {
  TakeAll(block, [&](int host, int) { return parts[static_cast<size_t>(host)]; });
}

template <typename Fn>
void HierarchicalExchange::TakeAll(int64_t block, Fn at) {
  const auto take = [&](int host, const Segments::Span& span, Range part) {
    Stream& taken = channels_.taken(span.giver);
    if (span.giver == split_.self()) return channels_.own().PassTo(&taken, Size(part.size()));
    for (int i = 0; i < segments_.stripes(); ++i) {
      const Range stripe = segments_.Stripe(block, host, split_.host, i);
      const Range overlap = Overlap(part, stripe);
      const char* const from = at(host, i) + Size(overlap.begin - stripe.begin);
      const size_t bytes = Size(overlap.size());
      if (taken.Contiguous(bytes) == from) {  // it is there
        taken.TakeContiguous(bytes);
      } else {
        taken.CopyFrom(from, bytes);
      }
    }
  };
  Timed(operation_.timed, &times_.unpack, [&] {
    for (int host = 0; host < split_.hosts(); ++host) {
      const Range range = segments_.Block(block, host, split_.host);
      Segments::ForEach(segments_.From(host), range, [&](const Segments::Span& span, Range part) {
        if (span.taker < 0 || span.taker == split_.self()) take(host, span, part);
      });
    }
  });
}

}  // namespace rueda
