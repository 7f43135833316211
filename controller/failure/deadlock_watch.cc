// PURE
#include "controller/failure/deadlock_watch.h"

namespace rueda {
namespace {

constexpr int kTicks = 16;  // in a limit: of time that is longer than two between two looks, only
                            // two count
constexpr int kLimitsWithOthers = 3;

}  // namespace

DeadlockWatch::DeadlockWatch(Nanos limit)
    : limit_(limit), tick_(std::clamp(limit / kTicks, 10 * kMillisecond, 5 * kSecond)) {}

std::optional<Blocked> DeadlockWatch::Check(Nanos now, bool waits, Facts& facts) {
  if (told_ == Blocked::kNot) {
    next_ = waits ? DeadlineAfter(since_, kMoments) : kForever;
    if (!waits) return std::nullopt;
  }
  if (now < next_ && !(told_ == Blocked::kForTheLimit && question_.has_value())) {
    return std::nullopt;
  }
  const Blocked::Level level = Judge(now, facts);
  if (level == Blocked::kForTheLimit && question_.has_value()) {
    told_ = level;
    const Blocked answer = {Blocked::kStill, *question_};
    question_.reset();
    return answer;
  }
  if (level == told_) return std::nullopt;
  told_ = level;
  return Blocked{level};
}

Blocked::Level DeadlockWatch::Judge(Nanos now, Facts& facts) {
  if (facts.Moves()) {
    since_ = now;
    next_ = DeadlineAfter(now, kMoments);
    return Blocked::kNot;
  }
  const WaitingThreads::State threads = facts.Threads(now);
  next_ = threads.changes_at;
  if (threads.since == kForever) return Blocked::kNot;
  const Nanos others_limit = limit_ == 0 ? kForever : kLimitsWithOthers * limit_;
  if (threads.waiter_left.has_value() && now - *threads.waiter_left < others_limit) {
    since_ = now;  // and nobody tells when it ends
    next_ = std::min(next_, DeadlineAfter(now, kMoments));
    return Blocked::kNot;
  }
  const Nanos since = std::max(since_, threads.since);
  if (since > counted_from_) {
    counted_from_ = counted_to_ = since;
    counted_ = 0;
  }
  if (now - since < kMoments) {
    next_ = std::min(next_, since + kMoments);
    return Blocked::kNot;
  }
  if (limit_ == 0) return Blocked::kForMoments;
  next_ = std::min(next_, now + tick_);
  const bool is_traced = facts.IsTraced();
  if (!is_traced) counted_ += std::min(now - counted_to_, std::max(2 * tick_, kMoments));
  counted_to_ = now;
  const bool others = threads.other_outside || threads.waiter_left.has_value();
  const Nanos limit = others ? others_limit : limit_;
  return counted_ >= limit && !is_traced ? Blocked::kForTheLimit : Blocked::kForMoments;
}

}  // namespace rueda
