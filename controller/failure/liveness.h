// Whom this process takes for dead, though nothing says so: a peer on another host that has been
// silent, or a neighbour that has been stopped, for a limit. Not while it is itself that did not
// run. PURE
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/base/clock.h"

namespace rueda {

class Liveness {
 public:
  // `limit` 0: nobody ever. `now`: everybody is taken to be well then.
  Liveness(Nanos limit, size_t remotes, size_t neighbours, Nanos now);

  // How long nothing may be heard of a peer: one that was out of reach for the limit may have
  // spoken an interval before. 0: for ever.
  static Nanos SilenceMax(Nanos limit);

  // How long between two looks. A remote peer hears of this process, and this process of it, at
  // least that often. An eighth of the limit, at most a second: a stop is known that soon after it.
  Nanos interval() const { return interval_; }
  // When to look next; kForever: never.
  Nanos next() const { return next_; }

  void OnHeard(size_t remote, Nanos now) { heard_[remote] = now; }
  // It has acknowledged something that this process said, or there is nothing that it has not.
  void OnReached(size_t remote, Nanos now) { reached_[remote] = now; }
  // Lately.
  bool IsReached(size_t remote, Nanos now) const { return now - reached_[remote] < limit_ / 2; }

  // Whether this process was stopped, or starved, in the last while: others may have missed it.
  bool WasAway(Nanos now) const;

  // A look. First this, then a question for each peer.
  void BeginLook(Nanos now);
  // For how long it has been silent, or stopped (`is_stopped`: as of now), if that is certainly
  // over the limit. A peer that was stopped for less is never accused: it was seen to run, or
  // heard, up to an interval before it was stopped.
  std::optional<Nanos> SilentFor(size_t remote, Nanos now) const {
    return OverLimit(heard_[remote], now);
  }
  // The same for how long nothing has reached it, where the network carries words in one direction
  // only: what it says still comes.
  std::optional<Nanos> UnreachedFor(size_t remote, Nanos now) const {
    return OverLimit(reached_[remote], now);
  }
  std::optional<Nanos> StoppedFor(size_t neighbour, bool is_stopped, Nanos now);

 private:
  std::optional<Nanos> OverLimit(Nanos since, Nanos now) const;

  const Nanos limit_;
  const Nanos interval_;
  const Nanos silence_max_;
  Nanos looked_;
  Nanos returned_;  // when this process was away last, until then
  Nanos next_;
  std::vector<Nanos> heard_;          // by remote
  std::vector<Nanos> reached_;        // by remote
  std::vector<Nanos> stopped_since_;  // by neighbour; kForever: it is not
};

}  // namespace rueda
