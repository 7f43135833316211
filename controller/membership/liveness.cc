// PURE
#include "controller/membership/liveness.h"

#include <algorithm>

namespace rueda {
namespace {

constexpr int kLooksPerLimit = 8;
constexpr Nanos kIntervalMax = kSecond;

}  // namespace

Liveness::Liveness(Nanos limit, size_t remotes, size_t neighbours, Nanos now)
    : limit_(limit),
      interval_(std::clamp<Nanos>(limit / kLooksPerLimit, kMillisecond, kIntervalMax)),
      looked_(now),
      returned_(now - limit),
      next_(limit > 0 && remotes + neighbours > 0 ? DeadlineAfter(now, interval_) : kForever),
      heard_(remotes, now),
      stopped_since_(neighbours, kForever) {}

bool Liveness::WasAway(Nanos now) const {
  return now - looked_ > limit_ / 2 || now - returned_ < limit_;
}

void Liveness::BeginLook(Nanos now) {
  if (now - looked_ > limit_ / 2) {  // what it did not see is nobody's fault
    returned_ = now;
    std::fill(heard_.begin(), heard_.end(), now);
    std::fill(stopped_since_.begin(), stopped_since_.end(), kForever);
  }
  looked_ = now;
  if (next_ == kForever) return;
  next_ = DeadlineAfter(now, interval_);
  for (const Nanos heard : heard_) {  // not later than when it may be said
    if (heard + limit_ > now) next_ = std::min(next_, heard + limit_);
  }
}

std::optional<Nanos> Liveness::SilentFor(size_t remote, Nanos now) const {
  const Nanos silence = now - heard_[remote];
  if (limit_ == 0 || silence < limit_) return std::nullopt;
  return silence;
}

std::optional<Nanos> Liveness::StoppedFor(size_t neighbour, bool is_stopped, Nanos now) {
  Nanos& since = stopped_since_[neighbour];
  since = is_stopped ? std::min(since, now) : kForever;
  // It may have been stopped right after the look before.
  if (limit_ == 0 || !is_stopped || now - since < limit_ - interval_) return std::nullopt;
  return now - since;
}

}  // namespace rueda
