// PURE
#include "controller/failure/liveness.h"

#include <algorithm>

namespace rueda {
namespace {

constexpr int kLooksPerLimit = 8;
constexpr Nanos kIntervalMax = kSecond;

Nanos IntervalFor(Nanos limit) {
  return std::clamp<Nanos>(limit / kLooksPerLimit, kMillisecond, kIntervalMax);
}

}  // namespace

Nanos Liveness::SilenceMax(Nanos limit) {
  return limit == 0 ? 0 : limit + IntervalFor(limit);
}

Liveness::Liveness(Nanos limit, size_t remotes, size_t neighbours, Nanos now)
    : limit_(limit),
      interval_(IntervalFor(limit)),
      silence_max_(SilenceMax(limit)),
      looked_(now),
      returned_(now - limit),
      next_(limit > 0 && remotes + neighbours > 0 ? DeadlineAfter(now, interval_) : kForever),
      heard_(remotes, now),
      reached_(remotes, now),
      stopped_since_(neighbours, kForever) {}

bool Liveness::WasAway(Nanos now) const {
  return now - looked_ > limit_ / 2 || now - returned_ < limit_;
}

void Liveness::BeginLook(Nanos now) {
  if (now - looked_ > limit_ / 2) {  // what it did not see is nobody's fault
    returned_ = now;
    std::fill(heard_.begin(), heard_.end(), now);
    std::fill(reached_.begin(), reached_.end(), now);
    std::fill(stopped_since_.begin(), stopped_since_.end(), kForever);
  }
  looked_ = now;
  if (next_ == kForever) return;
  next_ = DeadlineAfter(now, interval_);
  // Not later than when something may be said.
  for (const std::vector<Nanos>* sinces : {&heard_, &reached_}) {
    for (const Nanos since : *sinces) {
      if (since + silence_max_ > now) next_ = std::min(next_, since + silence_max_);
    }
  }
}

std::optional<Nanos> Liveness::OverLimit(Nanos since, Nanos now) const {
  const Nanos silence = now - since;
  if (limit_ == 0 || silence < silence_max_) return std::nullopt;
  return silence;
}

std::optional<Nanos> Liveness::StoppedFor(size_t neighbour, bool is_stopped, Nanos now) {
  Nanos& since = stopped_since_[neighbour];
  since = is_stopped ? std::min(since, now) : kForever;
  if (limit_ == 0 || !is_stopped) return std::nullopt;
  if (now - since >= limit_) return now - since;
  next_ = std::min(next_, since + limit_);
  return std::nullopt;
}

}  // namespace rueda
