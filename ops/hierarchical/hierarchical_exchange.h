// Broadcast, allgather, gather, scatter and alltoall over several hosts: between two hosts each
// byte goes once, and all members take part in that. What a large broadcast to three hosts and more
// sends leaves the root's host once: each of the others gets a part of it, and passes it on.
#pragma once

#include "ops/backend/channels.h"
#include "ops/hierarchical/block_operation.h"
#include "ops/hierarchical/segments.h"

namespace rueda {

class HierarchicalExchange : public BlockOperation {
 public:
  using BlockOperation::BlockOperation;

  static bool Does(OpKind kind) { return Channels::Carry(kind) && kind != OpKind::kReducescatter; }

  void Bring(int64_t block, char* to) override;
  const char* Collect(int64_t block, int host, char* to, bool may_stay) override;
  char* Destination(int64_t block, int host, char* finished) override;
  void Take(int64_t block) override;
  void TakeParts(int64_t block, absl::Span<const char* const> parts, char* scratch) override;
  Place PlaceOf(int64_t block, int host) const override;
  size_t SentBytes(int64_t block, int from, int to) const override;
  Extent MadeBy(int64_t block, int host) const override;
  bool TakesWhatOthersMake(int host) const override { return host != root_host_; }
  void Finish(int64_t block, absl::Span<const char* const> parts, char* finished) override;

 private:
  BlockLayout Layout() override;
  size_t Size(int64_t elements) const {
    return static_cast<size_t>(elements) * DTypeSize(operation_.dtype);
  }
  // What takes it where it is needed does not look where the others find things.
  bool KeptByItself(const Segments::Span& span) const { return span.giver == span.taker; }
  Stream& Given(const Segments::Span& span) {
    return channels_.given(channels_.by_taker() ? span.taker : 0);
  }
  // Whether hosts pass on what they get.
  bool relays() const { return layout().two_trips; }
  // A host's number among those that are not the root's.
  int RelayOf(int host) const { return host < root_host_ ? host : host - 1; }
  // What goes first from the root's host to another, of this rank's stripe.
  Range Relayed(int64_t block, int host) const;
  // Where a host's segment begins in what a member brings.
  size_t SegmentAt(int host) const {
    return segments_.shared() ? 0 : static_cast<size_t>(host) * segments_.block_bytes();
  }
  // Where what came from a host begins in a finished stripe.
  size_t FinishedAt(int host) const { return static_cast<size_t>(host) * segments_.stripe_bytes(); }
  // Where in a finished stripe goes what a host sends first.
  size_t FinishedFirst(int64_t block, int host) const {
    const bool passes_on = relays() && host == root_host_ && host != split_.host;
    return passes_on ? MadeBy(block, split_.host).offset : FinishedAt(host);
  }
  // `at(host, stripe)`: where a stripe is of what came from a host.
  template <typename Fn>
  void TakeAll(int64_t block, Fn at);

  Channels channels_;
  Segments segments_;
  int root_host_ = -1;  // of a broadcast
};

}  // namespace rueda
