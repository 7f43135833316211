// What the kinds of operations over several hosts differ in, as BlockPipeline and StripeExchange
// drive them: block by block, and of each block by stripes, each of which one member of each host
// takes across the network.
//
// Of a block each member puts what it brings where its host's others find it. Who has a stripe
// collects from there what this host has for each other host, its *parts*, and sends them. Of what
// came, and what this host has for itself, its lane thread makes the *finished* stripe, from which
// the host's members take their results. Some operations take a second trip: finished pieces that
// each host makes for all.
#pragma once

#include "absl/types/span.h"
#include "ops/backend/communicator.h"
#include "ops/backend/timed.h"
#include "ops/hierarchical/cut.h"
#include "ops/hierarchical/host_split.h"
#include "ops/hierarchical/local_ring.h"

namespace rueda {

// What an operation of a communicator works with; outlives it.
struct BlockContext {
  HostSplit split;
  CutLimits limits;
  bool narrow = true;  // see CrossWire
  LocalRing* ring = nullptr;
};

struct BlockLayout {
  int64_t blocks = 1;  // at least one: without data the members meet all the same
  int stripes = 1;
  bool two_trips = false;
  // Who is alone on its host makes its results where they belong, of the parts that have come.
  bool taken_from_parts = false;
};

class BlockOperation {
 public:
  explicit BlockOperation(const BlockContext* context)
      : split_(context->split),
        limits_(context->limits),
        narrow_(context->narrow),
        ring_(*context->ring) {}
  virtual ~BlockOperation() = default;
  BlockOperation(const BlockOperation&) = delete;

  // The engine's calls, each for one block after the other.

  // Begins one; the one before is done. `first`: the number of its first block.
  void Reset(const BucketOperation& operation, uint64_t first) {
    operation_ = operation;
    first_ = first;
    times_ = {};
    layout_ = Layout();
    layout_.taken_from_parts = !Shares() && !layout_.two_trips;
  }
  const BucketOperation& operation() const { return operation_; }
  PhaseTimes times() const { return times_; }
  // Whether this rank brings nothing to any block.
  virtual bool BringsNothing() const { return false; }
  // Puts it where the host's others find it; not called where there are none.
  virtual void Bring(int64_t block, char* to) = 0;
  // Puts this host's part of this rank's stripe for a host, its own too, at `to`, and returns that.
  // Or where it lies as it travels, if `may_stay`: until the block is finished. All members of this
  // host have brought theirs. Of hosts that have one place: for the first.
  virtual const char* Collect(int64_t block, int host, char* to, bool may_stay) = 0;
  // Where what a host sends of a block belongs in the end, if nothing is to be done to it; null: it
  // has to be looked at. This host has sent the block, whose finished stripe is at `finished`.
  virtual char* Destination(int64_t /*block*/, int /*host*/, char* /*finished*/) { return nullptr; }
  // Takes this rank's results. All stripes of the block are finished; or, of one that is taken from
  // parts, `parts` has come, by host, and `scratch` has room for a finished stripe.
  virtual void Take(int64_t block) = 0;
  virtual void TakeParts(int64_t block, absl::Span<const char* const> parts, char* scratch) = 0;

  // Of this rank's stripe, equal on all who have it. Any of the two threads.

  const BlockLayout& layout() const { return layout_; }
  uint64_t Number(int64_t block) const { return first_ + static_cast<uint64_t>(block); }
  struct Place {
    int index;      // among the hosts' places
    size_t before;  // bytes of the places before it
  };
  virtual Place PlaceOf(int64_t block, int host) const = 0;
  // Of the part of one host for another; 0: a header alone goes.
  virtual size_t SentBytes(int64_t block, int from, int to) const = 0;
  // With two trips: which bytes of the finished stripe a host makes, and sends to all others that
  // take them.
  struct Extent {
    size_t offset = 0, bytes = 0;
  };
  virtual Extent MadeBy(int64_t /*block*/, int /*host*/) const { return {}; }
  virtual bool TakesWhatOthersMake(int /*host*/) const { return true; }
  // Whether a host takes a second trip's results.
  bool TakesMade(int host) const { return layout_.two_trips && TakesWhatOthersMake(host); }

  // The lane thread's: makes what this host makes of the finished stripe. `parts`: by host, for
  // this one.
  virtual void Finish(int64_t block, absl::Span<const char* const> parts, char* finished) = 0;

 protected:
  virtual BlockLayout Layout() = 0;            // of operation_
  int locals() const { return ring_.size(); }  // members of this host
  bool Shares() const { return locals() > 1; }
  bool IsAbsent(int local) const {
    return operation_.IsAbsent(split_.own()[static_cast<size_t>(local)]);
  }
  // What a member of this host has brought; what the `stripe`-th member has finished.
  const char* Brought(int local, int64_t block) const { return ring_.input(local, Number(block)); }
  const char* Finished(int stripe, int64_t block) const {
    return ring_.output(stripe, Number(block));
  }

  const HostSplit& split_;
  const CutLimits& limits_;
  const bool narrow_;
  BucketOperation operation_;
  PhaseTimes times_;

 private:
  LocalRing& ring_;
  uint64_t first_ = 0;
  BlockLayout layout_;
};

}  // namespace rueda
